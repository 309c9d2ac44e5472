"""What a message is before it is sent: its body as it will be stored, its properties encoded.

This owns what the options of a producer say of that: compression, and the hook `stamp`. It runs in
the thread of who sends, as both are the sender's: the time that compressing takes, and the context
in which a hook finds its span. It must be usable by several threads at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from dledger.client.errors import MessageTooLarge, Subject
from dledger.client.hooks import Stamping, Told
from dledger.client.options import ProducerOptions
from dledger.client.routing import labels
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.records.compression import USUAL_LEVELS, Codec, compress


class Packed(NamedTuple):
    """The parts of a record that don't depend on its queue."""

    body: bytes
    sysflag: int
    properties: bytes


class Packer:
    """Packs the messages of one producer.

    Args:
        tell: is called with a context for the loop's exception handler when the hook fails.
    """

    def __init__(self, options: ProducerOptions, tell: Told) -> None:
        self._codec = None if options.compression is None else Codec[options.compression.upper()]
        level = options.compression_level
        self._level = USUAL_LEVELS[self._codec] if self._codec and level is None else level or 0
        self._above = options.compress_above_bytes
        self._stamping = None if options.stamp is None else Stamping(options.stamp, tell)

    @property
    def is_plain(self) -> bool:
        """Whether all it does is to encode the properties."""
        return self._codec is None and self._stamping is None

    @property
    def hook_failures(self) -> int:
        """How often the hook has failed."""
        return 0 if self._stamping is None else self._stamping.failures.count

    def pack(
        self, body: bytes, key: str | None, tag: str | None, properties: Mapping[str, str] | None
    ) -> Packed:
        """The message as it is to be stored.

        Raises:
            InvalidArgument: key, tag or properties can't be encoded.
            MessageTooLarge: the body is over 4 MiB, however little would be stored of it: nobody
                could read it.
        """
        check_size(len(body))
        encode = partial(labels, key, tag)
        stamping = self._stamping
        encoded = encode(properties) if stamping is None else stamping.encoded(properties, encode)
        codec = self._codec
        if codec is not None and len(body) > self._above:
            stored = compress(body, codec, self._level)
            if len(stored) < len(body):
                return Packed(stored, codec.sysflag, encoded)
        return Packed(body, _AS_IT_IS, encoded)


def check_size(body_size: int) -> None:
    """Returns for a body that can be sent.

    Raises:
        MessageTooLarge: the body has over 4 MiB.
    """
    if body_size > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"the body has {body_size} bytes, the limit is {MAX_MESSAGE_BYTES}",
            subject=Subject.MESSAGE,
        )


_AS_IT_IS: Final = 0  # SYSFLAG of a body that isn't compressed
