"""How large messages may be, for everybody who sends or receives one over gRPC.

One number for nodes, clients and auditors: a message that one side sends and the other refuses is
a call that fails for ever. The largest things that travel stay far below it: a Send with the
largest batch, an append with one entry of that batch, an answer to a Pull (8 MiB at most).
"""

from __future__ import annotations

from typing import Final

RPC_LIMIT_BYTES: Final = 16 << 20
MAX_MESSAGE_BYTES: Final = 4 << 20  # of a message's body; RocketMQ's maxMessageSize
# Of a configuration. It is copied into the note of where a log begins, which is read up to 64 KiB
# (`store.atomic_file.MAX_ATOMIC_BYTES`): a larger one would end every member that has let go of
# what was before it. Fifty members with the longest names and addresses fit into what a leader
# writes.
MAX_CONFIGURATION_BYTES: Final = 32 << 10  # that a leader writes
MAX_CONFIGURATION_TAKEN_BYTES: Final = (
    48 << 10
)  # that is taken from a peer, with its entry's header
MAX_SEND_BATCHES: Final = 1_024  # in one Send

# With a call, once the group was ever recovered by force: number u32 of the newest epoch that the
# caller was told of, and the 16 bytes of its last recovery's id.
EPOCH_METADATA_KEY: Final = "dledger-epoch-bin"
# Beside it, where it was told of them: the ids of the recoveries before, 16 bytes each, the first
# one first. Who doesn't know this key goes by the other one.
EARLIER_METADATA_KEY: Final = "dledger-epochs-before-bin"

# With a call that ended without an answer: the serialized `dledger.wire.errors_pb2.Error`.
ERROR_METADATA_KEY: Final = "dledger-error-bin"

# For channels and servers alike.
MESSAGE_LENGTHS: Final = (
    ("grpc.max_send_message_length", RPC_LIMIT_BYTES),
    ("grpc.max_receive_message_length", RPC_LIMIT_BYTES),
)
