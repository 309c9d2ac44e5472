"""The members as a node's log has them, put together for whoever asks."""

from __future__ import annotations

from collections.abc import Mapping

from broker.services.cluster import Members, MemberStatus
from dledger.core import Raft
from dledger.core.types import Configuration, NodeId
from dledger.peers import PeerLink


def members_of(node: NodeId, core: Raft, links: Mapping[NodeId, PeerLink]) -> Members:
    """The members as `node` knows them, by name."""
    configuration, place = core.configuration, core.configuration_place
    addresses, progress = dict(configuration.addresses), core.statistics().peers
    found = []
    for name in sorted(configuration.members()):
        match_index = progress[name].match_index if name in progress else 0
        link = links.get(name)
        found.append(
            MemberStatus(
                name,
                role_of(configuration, name),
                configuration.disk_of(name),
                addresses.get(name, ""),
                is_connected=name == node or (link is not None and link.connected),
                match_index=core.durable_index if name == node else match_index,
            )
        )
    return Members(
        tuple(found),
        bool(configuration.voters_outgoing),
        place.at,
        place.at <= core.commit_index,
        core.last_index,
        configuration.preferred or "",
    )


def role_of(configuration: Configuration, node: NodeId) -> str:
    """What a member is; see `MemberStatus`."""
    if node in configuration.voters:
        return "voter"
    if node in configuration.observers:
        return "observer"
    return "learner" if node in configuration.learners else "leaving"
