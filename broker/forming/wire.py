"""Foundings and descriptions on the wire and back; for those who ask and those who answer."""

from __future__ import annotations

from broker.forming.planning import Description
from dledger.wire import formation_pb2 as fpb
from store.starting.founding import Founding


def wire_founding(founding: Founding) -> fpb.Founding:
    """The founding as it travels."""
    return fpb.Founding(
        broker_group=founding.broker_group,
        segment_size_bytes=founding.segment_size_bytes,
        time_ms=founding.time_ms,
        configuration=founding.configuration,
        adopted=founding.is_adopted,
    )


def plain_founding(wire: fpb.Founding) -> Founding:
    """The inverse of `wire_founding`."""
    return Founding(
        broker_group=wire.broker_group,
        segment_size_bytes=wire.segment_size_bytes,
        time_ms=wire.time_ms,
        configuration=wire.configuration,
        is_adopted=wire.adopted,
    )


def wire_description(member: Description) -> fpb.MemberDescription:
    """A member's words as they travel."""
    return fpb.MemberDescription(
        broker_group=member.broker_group,
        node_id=member.node_id,
        segment_size_bytes=member.segment_size_bytes,
        disk_id=member.disk_id,
        born_ms=member.born_ms,
        state=member.state,
        founding=wire_founding(member.founding) if member.founding else None,
        last_index=member.last_index,
        last_term=member.last_term,
        peers=dict(member.peers),
        known_level=member.known_level,
    )


def plain_description(wire: fpb.MemberDescription) -> Description:
    """The inverse of `wire_description`."""
    return Description(
        broker_group=wire.broker_group,
        node_id=wire.node_id,
        segment_size_bytes=wire.segment_size_bytes,
        disk_id=wire.disk_id,
        born_ms=wire.born_ms,
        state=wire.state,
        founding=plain_founding(wire.founding) if wire.HasField("founding") else None,
        last_index=wire.last_index,
        last_term=wire.last_term,
        peers=tuple(sorted(wire.peers.items())),
        known_level=wire.known_level,
    )
