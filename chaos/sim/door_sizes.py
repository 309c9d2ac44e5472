"""What the door would refuse of a request unread, although here requests come in as objects.

Whoever is at work in the simulator, the library or a client of its own, asks for what it may. So
what is too long, or holds too many of anything, is the defect of who sends it, or of the bounds:
they have to leave room for all that the library makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from broker.doors.grpc.offered import OFFERED
from broker.doors.grpc.sizes import MAX_LENGTH, not_worth_parsing, too_many
from chaos.sim.defect import Defect

Check = tuple[Callable[[bytes], str], Callable[[Message], str]]


def check_request(who: str, request: object) -> None:
    """The door reads it, and takes it; anything but a message doesn't come to the door.

    Raises:
        Defect: it is refused.
        KeyError: it is no method's.
    """
    if not isinstance(request, Message):
        return
    unparsed, excess = _CHECKS[request.DESCRIPTOR.full_name]
    why = unparsed(request.SerializeToString()) if request.ByteSize() > MAX_LENGTH else ""
    if why := why or excess(request):
        raise Defect("request beyond the door", f"{who}: {why}")


def _checks() -> dict[str, Check]:
    """By a request's type.

    Raises:
        AssertionError: two methods have the same, so that it doesn't tell which is called.
    """
    methods: list[MethodDescriptor] = [each for one in OFFERED for each in one.service.methods]
    checks = {
        each.input_type.full_name: (not_worth_parsing(each), too_many(each)) for each in methods
    }
    assert len(checks) == len(methods), "a request's type tells its method"
    return checks


_CHECKS: Final = _checks()
