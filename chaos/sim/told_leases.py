"""What members are told of the queues that they gain: what the node has applied, as it says it.

Each assignment is made as it is taken (`broker.services.attendance`), so that nothing lies between
the two. Who is told too little works on what is finished once more, and in the end nothing shows
it; who is told too much passes over messages.
"""

from __future__ import annotations

from broker.state.leases import Place
from broker.state.machine import StateMachine
from chaos.sim.defect import Defect
from dledger.wire import groups_pb2 as pb


def check_gained(who: str, machine: StateMachine, group: str, told: pb.Assignment) -> None:
    """Each lease that is told is one of the group, and what is finished of its queue is so.

    Raises:
        Defect: it isn't.
    """
    for topic in told.gained:
        for lease in topic.leases:
            if not lease.epoch:
                continue  # of everybody's, in a group whose members share nothing
            place = Place(group, topic.incarnation, lease.queue_id)
            known = machine.leases.of(place)
            frontier = machine.offsets.of(group, topic.topic).get(lease.queue_id)
            is_so = (known.epoch, frontier) == (lease.epoch, lease.frontier)
            if not is_so or list(known.finished) != _finished(lease):
                raise Defect("lease", f"{who} tells {group}: {lease}, and has {known}, {frontier}")


def _finished(lease: pb.QueueLease) -> list[tuple[int, int]]:
    """Ranges above the frontier, each from its first offset to the one after its last."""
    found, at = list[tuple[int, int]](), lease.frontier
    for left, done in zip(lease.finished[::2], lease.finished[1::2], strict=True):
        found.append((at + left, at + left + done))
        at += left + done
    return found
