"""What applications test themselves with: real nodes that can be killed, and fake ones that lie.

    from dledger.testing import BrokerGroup

    with BrokerGroup(nodes=3) as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        ...
        group.kill()

`BrokerGroup` runs the installed program `dledger` in a folder of its own; it needs the extra
`node`. `BlockingFakeGroup` (and `FakeGroup`, for tests that are asynchronous themselves) speak the
client's protocol from within the test's process, and can lose an answer or refuse a call on
command. `dledger.testing.fixtures` has them as pytest fixtures. This imports the client and what it
stands on, nothing above.
"""

from dledger.testing.broker_group import BrokerGroup
from dledger.testing.errors import GroupFailed
from dledger.testing.fake import BlockingFakeGroup
from dledger.testing.fake_nodes import FakeGroup
from dledger.testing.messages import make_message

__all__ = ["BlockingFakeGroup", "BrokerGroup", "FakeGroup", "GroupFailed", "make_message"]
