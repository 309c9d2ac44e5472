"""Whether whoever answers at a local group's addresses is the group's.

Groups that are made one after the other with a base port have the same addresses: where one is
down, the other's nodes answer in its place, under the same ids and in a group of the same name. A
node is known by its id and its data directory; nothing is asked of another one on the word of
`group.json`. A node whose process was started here and runs has its ports, as it would have ended
without them: only where that isn't so is anybody asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc

from broker.local_group.errors import OtherGroupAnswers
from broker.local_group.layout import LocalNode
from broker.local_group.status import CHANNEL_OPTIONS, GET_STATUS, PROBE_TIMEOUT_S
from dledger.credentials.tls import open_blocking_channel
from dledger.reading.files import is_same_directory
from dledger.wire.cluster_pb2 import GetStatusRequest, NodeStatus


def is_it(node: LocalNode, answer: NodeStatus) -> bool:
    """Whether that node gave the answer."""
    is_directory = is_same_directory(node.data_directory, answer.data_directory)
    return answer.node_id == node.id and is_directory


def check_answers(directory: Path, nodes: Sequence[LocalNode]) -> None:
    """Nobody else answers in the place of the group's nodes; one call to each at most, all at once.

    Raises:
        OtherGroupAnswers: somebody does.
    """
    asked = [node for node in nodes if not node.is_running()]
    with ExitStack() as channels:
        calls = []
        for node in asked:
            channel = open_blocking_channel(node.address, CHANNEL_OPTIONS, None)
            get_status = channels.enter_context(channel).unary_unary(
                GET_STATUS,
                request_serializer=GetStatusRequest.SerializeToString,
                response_deserializer=NodeStatus.FromString,
            )
            calls.append(get_status.future(GetStatusRequest(), timeout=PROBE_TIMEOUT_S))
        for node, call in zip(asked, calls, strict=True):
            try:
                answer: NodeStatus = call.result()
            except grpc.RpcError:
                continue  # nobody, or no node: whoever is asked next says what that means
            if not is_it(node, answer):
                raise OtherGroupAnswers(directory, node.id, node.address, answer)
