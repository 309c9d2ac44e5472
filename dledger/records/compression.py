"""Compressed bodies: what SYSFLAG says of them, how they are made, and how they are read.

    SYSFLAG bit 0         the body is compressed
    SYSFLAG bits 8 to 10  by what: 1 LZ4 (frames), 2 Zstandard, 3 zlib; 0 is zlib as well

Records of RocketMQ's clients are read, and theirs read ours: LZ4 frames have independent blocks,
as the library that Java programs use knows no others. A body is compressed by the producer's client
and read by whoever shows it; the brokers store what they are given, and BODYCRC is over that.

What is read was written by a stranger: nothing here may give more than the largest body, nor take
much more memory than that on the way to finding out. The codecs are loaded when they are needed.

Source: RocketMQ `MessageSysFlag`, `CompressionType`, `ZlibCompressor`, `Lz4Compressor`,
`ZstdCompressor`.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from dledger.limits import MAX_MESSAGE_BYTES
from dledger.records.errors import BodyUnreadable, CodecMissing

COMPRESSED_BIT: Final = 0x1
_CODEC_SHIFT: Final = 8
_CODEC_BITS: Final = 0x7


class Codec(Enum):
    """How a body is compressed; the value is the number in SYSFLAG."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sysflag(self) -> int:
        """The bits that say so."""
        return COMPRESSED_BIT | self.value << _CODEC_SHIFT


LEVELS: Final = {Codec.LZ4: range(17), Codec.ZSTD: range(1, 23), Codec.ZLIB: range(1, 10)}
USUAL_LEVELS: Final = {Codec.LZ4: 0, Codec.ZSTD: 3, Codec.ZLIB: 6}
# Of older records: the number was zlib's before there was one.
_CODECS: Final = {0: Codec.ZLIB} | {codec.value: codec for codec in Codec}
_EMPTY_LAST_BLOCK: Final = b"\x01\x00\x00"  # of Zstandard
_kept: Final = threading.local()  # Zstandard's contexts: dear to make, and of one thread each


def codec_of(sysflag: int) -> Codec | None:
    """What a record's body is compressed with; None: with nothing.

    Raises:
        BodyUnreadable: with something that is not known here.
    """
    if not sysflag & COMPRESSED_BIT:
        return None
    number = sysflag >> _CODEC_SHIFT & _CODEC_BITS
    codec = _CODECS.get(number)
    if codec is None:
        raise BodyUnreadable(f"codec {number}", "it is not known here")
    return codec


def check_installed(codec: Codec) -> None:
    """Its library can be loaded.

    Raises:
        CodecMissing: it can't.
    """
    match codec:
        case Codec.LZ4:
            _lz4()
        case Codec.ZSTD:
            _zstandard()
        case Codec.ZLIB:
            pass  # Python's own


def compress(body: bytes, codec: Codec, level: int) -> bytes:
    """`body`, compressed; it may be larger than before.

    Args:
        level: one of the codec's `LEVELS`.

    Raises:
        CodecMissing: the codec's library isn't installed.
    """
    match codec:
        case Codec.LZ4:
            packed: bytes = _lz4().compress(body, compression_level=level, block_linked=False)
        case Codec.ZSTD:
            library = _zstandard()
            compressor = _of_thread(f"c{level}", lambda: library.ZstdCompressor(level=level))
            packed = compressor.compress(body)
        case Codec.ZLIB:
            packed = zlib.compress(body, level)
    return packed


def decompress(stored: bytes, sysflag: int) -> bytes:
    """The body that `stored`, of a record with this SYSFLAG, was made of.

    Raises:
        BodyUnreadable: it is not what SYSFLAG says, not whole, or larger than a body may be.
        CodecMissing: the codec's library isn't installed.
    """
    codec = codec_of(sysflag)
    match codec:
        case None:
            return stored
        case Codec.LZ4:
            body = _decompress_lz4(stored)
        case Codec.ZSTD:
            body = _decompress_zstd(stored)
        case Codec.ZLIB:
            body = _decompress_zlib(stored)
    if len(body) > MAX_MESSAGE_BYTES:
        raise _too_large(codec)
    return body


def _decompress_zlib(stored: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(stored, MAX_MESSAGE_BYTES + 1)
    except zlib.error as error:
        raise BodyUnreadable("zlib", str(error)) from error
    _check_end(Codec.ZLIB, body, inflater)
    return body


def _decompress_lz4(stored: bytes) -> bytes:
    reader = _lz4().LZ4FrameDecompressor()
    try:
        body: bytes = reader.decompress(stored, MAX_MESSAGE_BYTES + 1)
    except (RuntimeError, ValueError, EOFError) as error:
        raise BodyUnreadable("lz4", str(error)) from error
    _check_end(Codec.LZ4, body, reader)
    return body


def _decompress_zstd(stored: bytes) -> bytes:
    library = _zstandard()
    reader = _of_thread("d", library.ZstdDecompressor)
    try:
        # A frame that tells its size is given so much memory, whatever limit is asked for.
        size = library.frame_content_size(stored)
        if size > MAX_MESSAGE_BYTES:
            raise _too_large(Codec.ZSTD)
        if size == 0:
            _check_empty(library, stored)
        body: bytes = reader.decompress(
            stored, max_output_size=MAX_MESSAGE_BYTES + 1, allow_extra_data=False
        )
    except library.ZstdError as error:
        raise BodyUnreadable(
            "zstd", f"{error}; it is broken, or larger than {MAX_MESSAGE_BYTES} bytes"
        ) from error
    return body


def _check_empty(library: Any, stored: bytes) -> None:
    """The frame that tells that it holds nothing holds nothing, is whole, and is all: the library
    believes it, and looks at no byte behind its header.

    Source: RFC 8878, 3.1.1: an empty frame has one block, the last one, raw and of size 0.
    """
    end = library.frame_header_size(stored)
    checksum_bytes = 4 if library.get_frame_parameters(stored).has_checksum else 0
    if stored[end : end + 3] != _EMPTY_LAST_BLOCK or len(stored) != end + 3 + checksum_bytes:
        raise BodyUnreadable("zstd", "it tells that it is empty, and isn't that alone")


def _check_end(codec: Codec, body: bytes, reader: Any) -> None:
    """All of the stored bytes were used, and they were whole."""
    if len(body) > MAX_MESSAGE_BYTES:
        raise _too_large(codec)
    if not reader.eof:
        raise BodyUnreadable(codec.name.lower(), "its end is missing")
    if reader.unused_data:
        count = len(reader.unused_data)
        raise BodyUnreadable(codec.name.lower(), f"{count} bytes follow its end")


def _too_large(codec: Codec) -> BodyUnreadable:
    return BodyUnreadable(
        codec.name.lower(), f"it is larger than the largest body, {MAX_MESSAGE_BYTES} bytes"
    )


def _of_thread(name: str, make: Callable[[], Any]) -> Any:
    """The calling thread's context of that name."""
    found = getattr(_kept, name, None)
    if found is None:
        found = make()
        setattr(_kept, name, found)
    return found


def _lz4() -> Any:
    try:
        import lz4.frame
    except ImportError as error:
        raise CodecMissing("lz4", "lz4") from error
    return lz4.frame


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise CodecMissing("zstd", "zstandard") from error
    return zstandard
