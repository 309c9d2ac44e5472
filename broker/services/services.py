"""Everything that a broker can be asked, in one value: what a door is given."""

from __future__ import annotations

from dataclasses import dataclass

from broker.services.audit import Audit
from broker.services.cluster import Cluster
from broker.services.consumers import Consumers
from broker.services.deliveries import Deliveries
from broker.services.groups import Groups
from broker.services.messages import Lookups, Pulls, Sends
from broker.services.offsets import Offsets
from broker.services.producers import Producers
from broker.services.queue_pulls import QueuePulls
from broker.services.retries import Retries
from broker.services.topic_figures import TopicFigures
from broker.services.topics import Topics


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one replica."""

    sends: Sends
    producers: Producers
    pulls: Pulls
    queue_pulls: QueuePulls
    lookups: Lookups
    offsets: Offsets
    groups: Groups
    consumers: Consumers
    deliveries: Deliveries
    retries: Retries
    topics: Topics
    topic_figures: TopicFigures
    cluster: Cluster
    audit: Audit
