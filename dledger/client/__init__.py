"""The public client library: `from dledger.client import Client`.

    async with Client.connect("127.0.0.1:7001") as client:
        async with client.producer() as producer:
            stored = await producer.send("topic", b"body", key="k")

Everything named here is the API; the modules behind it are not. The blocking face is
`dledger.client.blocking`. It imports `dledger.records` (pure) and `dledger.wire`, nothing else of
the project.
"""

from dledger.client.client import Client
from dledger.client.consumer import PullConsumer
from dledger.client.epochs import Registration
from dledger.client.errors import (
    BrokerGroupUnreachable,
    BufferFull,
    Busy,
    ClientClosed,
    ClientError,
    ClientFault,
    ConsumerInUse,
    DeadlineExceeded,
    Forked,
    InvalidArgument,
    LeadershipLost,
    LimitReached,
    MessageNotFound,
    MessageTooLarge,
    NotLeader,
    NotReady,
    OffsetOutOfRange,
    OutOfSequence,
    ProducerClosed,
    ProducerFenced,
    QueueNotFound,
    RecordCorrupt,
    SendsFailed,
    ServerError,
    StorageFull,
    TopicExists,
    TopicNotFound,
    TopicReplaced,
    TransferFailed,
    Unavailable,
    UnknownProducer,
    WrongBrokerGroup,
    WrongThread,
)
from dledger.client.options import (
    ALL,
    AllQueues,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    StartFrom,
    WhenGone,
)
from dledger.client.producer import Producer
from dledger.client.results import (
    LeaderInfo,
    Message,
    NewMessage,
    NodeState,
    PeerState,
    ProducerStatistics,
    PullResult,
    QueueInfo,
    QueueOffsets,
    SendResult,
    TopicDescription,
    TopicInfo,
)
from dledger.client.routing import queue_of_key
from dledger.credentials.tls import TlsFiles
from dledger.outcome import Outcome

__all__ = [
    "ALL",
    "AllQueues",
    "BrokerGroupUnreachable",
    "BufferFull",
    "Busy",
    "Client",
    "ClientClosed",
    "ClientError",
    "ClientFault",
    "ClientOptions",
    "ConsumerInUse",
    "ConsumerOptions",
    "DeadlineExceeded",
    "Forked",
    "InvalidArgument",
    "LeaderInfo",
    "LeadershipLost",
    "LimitReached",
    "Message",
    "MessageNotFound",
    "MessageTooLarge",
    "NewMessage",
    "NodeState",
    "NotLeader",
    "NotReady",
    "OffsetOutOfRange",
    "OutOfSequence",
    "Outcome",
    "PeerState",
    "Producer",
    "ProducerClosed",
    "ProducerFenced",
    "ProducerOptions",
    "ProducerStatistics",
    "PullConsumer",
    "PullResult",
    "QueueInfo",
    "QueueNotFound",
    "QueueOffsets",
    "RecordCorrupt",
    "Registration",
    "SendResult",
    "SendsFailed",
    "ServerError",
    "StartFrom",
    "StorageFull",
    "TlsFiles",
    "TopicDescription",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "TopicReplaced",
    "TransferFailed",
    "Unavailable",
    "UnknownProducer",
    "WhenGone",
    "WrongBrokerGroup",
    "WrongThread",
    "queue_of_key",
]
