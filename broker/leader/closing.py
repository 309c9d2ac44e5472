"""Whether a leader may propose a batch for a topic, by the topic's permission (ADR 62).

The state machine makes void whatever lies behind a permission without writing. A leader proposes no
such batch: what follows it in its queue would be void as well, of other producers too. While that
permission is on its way nobody knows whether it will be in the log, so who sends is asked to wait.
"""

from __future__ import annotations

from broker.errors import BrokerError, ErrorCode, not_writable
from broker.leader.flight import InFlight
from broker.state.machine import StateMachine
from broker.state.topics import TopicState


def check_open(machine: StateMachine, flight: InFlight, topic: TopicState) -> None:
    """Returns if a batch for the topic would be stored, as far as permissions go.

    Raises:
        BrokerError: TOPIC_NOT_WRITABLE; NOT_READY, that is being decided.
    """
    if not machine.topic_permissions.is_writable(topic.incarnation):
        raise not_writable(topic.name)
    if flight.is_closing(topic.name):
        text = f"topic {topic.name!r} is about to take no more messages"
        raise BrokerError(ErrorCode.NOT_READY, text)
