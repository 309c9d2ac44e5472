"""A disk and a clock that fail on order, for real nodes under test (ADR 16).

The tester (`chaos.real`) writes orders into a node's faults folder; the node's file layer and
clock follow them. Only `chaos.node` puts them below a node, and this package knows nothing of
nodes, Raft or the tester: it imports the store's file layer.

    <directory>/orders.json     what is to fail now (`orders`)
    <directory>/undo/           what a power cut would take back (`undo`, `power`)
"""

from typing import Final

from chaos.faults.clock import FaultyClock
from chaos.faults.files import FaultyFiles
from chaos.faults.orders import (
    NO_FAULTS,
    ClockFault,
    FaultOrders,
    Orders,
    OrdersBroken,
    give_orders,
)
from chaos.faults.power import Loss, cut_power

# Without it in the environment, set to 1, no disk or clock here is put below a node.
FAULT_INJECTION_VARIABLE: Final = "DLEDGER_FAULT_INJECTION"

__all__ = [
    "FAULT_INJECTION_VARIABLE",
    "NO_FAULTS",
    "ClockFault",
    "FaultOrders",
    "FaultyClock",
    "FaultyFiles",
    "Loss",
    "Orders",
    "OrdersBroken",
    "cut_power",
    "give_orders",
]
