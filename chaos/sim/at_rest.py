"""Whether a group is at rest: it has a leader, its links work, its replicas agree.

Questions to a world, which change nothing in it. How long an answer is waited for is the run's
matter.
"""

from __future__ import annotations

from chaos.sim.machine import Life
from chaos.sim.node import SimNode
from chaos.sim.world import World
from dledger.core.quorum import has_quorum
from dledger.core.types import Configuration


def somebody_leads(world: World) -> bool:
    """A majority follows one leader, which has committed in its term."""
    cores = {node.name: node.life.core for node in world.nodes.values() if node.life}
    return any(
        core.is_ready_leader
        and has_quorum(
            core.configuration,
            [
                name
                for name, each in cores.items()
                if (each.term, each.leader) == (core.term, core.leader)
            ],
        )
        for core in cores.values()
    )


def is_preference_met(world: World) -> bool:
    """Who is preferred leads, unless it doesn't vote or doesn't run."""
    for node in world.nodes.values():
        life = node.life
        if life is not None and life.replica.leadership.serving:
            configuration = life.core.configuration
            preferred = configuration.preferred
            is_well = preferred in configuration.voters and preferred in {
                each.name for each in world.nodes.values() if each.is_running
            }
            return not is_well or preferred == node.name
    return False


def what_is_old_has_gone(world: World) -> bool:
    """No member's log begins with a full segment that is too old, where segments go by their age
    alone, and no topic wishes them for longer."""
    ages = world.archive.ages if world.archive is not None else None
    if ages is None or world.plan.wisher:
        return True
    size = world.plan.tuning.segment_bytes
    lives = [node.life for node in world.nodes.values() if node.life and not node.altered_from]
    # A full disk once refused a queue's sync: nothing goes there until that node is started anew,
    # and where it leads nothing goes anywhere.
    held = [life for life in lives if life.replica.housekeeping.is_checkpoint_held]
    if any(life.replica.leadership.serving for life in held):
        return True
    for life in lives:
        log, machine = life.replica.log, life.replica.machine
        if log.first_index > log.last_index or life in held:
            continue
        first = log.position_of(log.first_index)
        last = log.ends_by(first - first % size + size)
        is_full = log.first_index <= last < machine.applied_index
        if is_full and ages.is_older(last, machine.applied_index):
            return False
    return True


def links_work(world: World) -> bool:
    """Every node has heard lately of each peer, on the one stream that it dialed."""
    nodes = world.nodes
    lives = {name: node.life for name, node in nodes.items() if node.life is not None}
    return all(
        link.connected and life.links.dialed_to(peer) == 1
        for name, life in lives.items()
        for peer, link in life.links.links().items()
        if peer in lives and not _holds_a_lie(lives[peer], nodes[name])
    )


def _holds_a_lie(life: Life, liar: SimNode) -> bool:
    """Whether a start that never was is held against `liar`, which said that there was one: it
    isn't heard there until its disk is replaced."""
    known = life.links.promises().get(liar.name)
    return liar.has_lied and known is not None and known.start.number > liar.identity.start.number


def replicas_agree(world: World) -> bool:
    """Every node that can run does, and has applied and made durable the same log; one serves, and
    nothing is under way that changes, mends or settles anything."""
    nodes = [node for node in world.nodes.values() if not (node.is_ruined or node.is_spare)]
    if any(node.is_foreign or node.altered_from for node in nodes):
        return False
    lives = [node.life for node in nodes if node.life is not None and not node.life.failed]
    if any(life.replica.mender.is_at_work or life.replica.repairs.is_at_work for life in lives):
        return False
    if any(node.has_log_rot for node in nodes if node.life is not None):
        return False  # nobody has looked there yet
    if len(lives) < len(nodes) or not any(life.replica.leadership.serving for life in lives):
        return False
    if any(_is_changing(life.core.configuration) for life in lives):
        return False
    if any(life.replica.machine.outcomes.to_settle() for life in lives):
        return False  # the log hasn't said of all units what became of them
    ends = {
        (life.core.last_index, life.core.durable_index, life.replica.driver.applied_index)
        for life in lives
    }
    return len(ends) == 1 and len(set(ends.pop())) == 1


def entries_held(world: World) -> int:
    """By all nodes that run, together: it grows while somebody copies what others have."""
    lives = [node.life for node in world.nodes.values() if node.life is not None]
    return sum(life.core.durable_index for life in lives)


def is_held_back(world: World, leader: Life) -> bool:
    """Whether the level of formats and commands never rises: this leader hears a member no more
    that holds it back. Who is only down or cut off comes, or another disk does in its place."""
    configuration = leader.core.configuration
    members = [node for node in world.nodes.values() if node.name in configuration.members()]
    return not _is_changing(configuration) and any(
        (node.is_ruined and not node.is_lost) or _holds_a_lie(leader, node) for node in members
    )


def _is_changing(configuration: Configuration) -> bool:
    """Whether more is to come by itself."""
    return bool(configuration.voters_outgoing or configuration.learners - configuration.observers)


def told_of_nodes(world: World) -> list[str]:
    """What each node is, for whoever reads why a group hasn't come to rest."""
    return [
        f"{node.name}: " + ("ruined" if node.is_ruined else "down")
        if node.life is None
        else f"{node.name}: {node.life.core.role.value} of term {node.life.core.term}, "
        f"last {node.life.core.last_index}, commit {node.life.core.commit_index}, "
        f"applied {node.life.replica.driver.applied_index}, "
        f"serving {node.life.replica.leadership.serving}"
        f"{', rotten at ' + str(sorted(node.rot)[:3]) if node.rot else ''}"
        for node in world.nodes.values()
    ]
