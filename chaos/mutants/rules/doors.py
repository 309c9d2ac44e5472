"""Defects at the doors and in the process around a replica: what strangers can do to a node.

The simulator has neither descriptors nor HTTP, so these are found by tests of real nodes.
"""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

NO_PROCESS = "the simulator has no process: no descriptors, ports or threads"
DESCRIPTORS = ("tests/hostile/test_descriptors.py", "tests/store/test_descriptors.py")
NOISE = ("tests/hostile/test_noise.py",)
_WATCHES = ("tests/broker/test_watches.py",)

DOORS = (
    Mutant(
        "who-stands-by-tells-no-figures",
        "broker/standby.py",
        'lambda: (Gauge("standing_by", text, 1),)',
        "tuple",
        masked=NO_PROCESS,
        tests=("tests/integration/test_strangers_on_the_wire.py",),
    ),
    Mutant(
        "an-errors-text-beyond-what-grpc-carries",
        "broker/doors/grpc/errors.py",
        "        message=_beginning(failure.message),\n",
        "        message=failure.message,\n",
        masked="no simulated client gives what an error would repeat at length",
        tests=("tests/broker/test_grpc_door.py",),
    ),
    Mutant(
        "connections-unbounded",
        "broker/doors/grpc/bounds.py",
        '        ("grpc.max_allowed_incoming_connections", bounds.count),\n',
        "",
        masked=NO_PROCESS,
        tests=DESCRIPTORS,
    ),
    Mutant(
        "idle-connections-stay",
        "broker/doors/grpc/bounds.py",
        '        ("grpc.max_connection_idle_ms", bounds.idle_ms),\n',
        "",
        masked=NO_PROCESS,
        tests=DESCRIPTORS,
    ),
    Mutant(
        "half-greetings-stay",
        "broker/doors/grpc/bounds.py",
        '        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),\n',
        "",
        masked=NO_PROCESS,
        tests=DESCRIPTORS,
    ),
    Mutant(
        "limit-of-descriptors-not-raised",
        "broker/descriptors.py",
        "        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))\n",
        "",
        masked=NO_PROCESS,
        tests=DESCRIPTORS,
    ),
    Mutant(
        "reserve-of-descriptors-not-refilled",
        "store/files.py",
        "        os.close(handle)\n        self._reserve.refill()\n",
        "        os.close(handle)\n",
        masked=NO_PROCESS,
        tests=DESCRIPTORS,
    ),
    Mutant(
        "no-descriptors-is-a-broken-disk",
        "store/files.py",
        "PASSING_ERRNOS: Final = FULL_ERRNOS | SCARCE_ERRNOS\n",
        "PASSING_ERRNOS: Final = FULL_ERRNOS\n",
        masked=NO_PROCESS,
        tests=DESCRIPTORS,
    ),
    Mutant(
        "event-loop-waits-for-descriptors",
        "store/descriptors.py",
        "                if waited >= PATIENCE_S or _is_on_a_loop():\n",
        "                if waited >= PATIENCE_S:\n",
        masked=NO_PROCESS,
        tests=DESCRIPTORS,
    ),
    Mutant(
        "malformed-stream-is-our-fault",
        "broker/doors/grpc/health.py",
        "        if request is MALFORMED:\n            raise malformed_request()\n",
        "        if request is MALFORMED:\n            raise TypeError(request)\n",
        masked=NO_PROCESS,
        tests=NOISE,
    ),
    Mutant(
        "watches-of-health-unbounded",
        "broker/doors/grpc/health.py",
        "        if self._watches >= MAX_WATCHES:\n",
        "        if self._watches < 0:\n",
        masked=NO_PROCESS,
        tests=NOISE,
    ),
    Mutant(
        "metrics-requests-without-a-deadline",
        "dledger/endpoint.py",
        "        async with asyncio.timeout(REQUEST_S):\n",
        "        async with asyncio.timeout(None):\n",
        masked=NO_PROCESS,
        tests=NOISE,
    ),
    Mutant(
        "metrics-connections-unbounded",
        "dledger/endpoint.py",
        "        if task is None or len(self._busy) >= MAX_CONNECTIONS:\n",
        "        if task is None:\n",
        masked=NO_PROCESS,
        tests=NOISE,
    ),
    Mutant(
        "said-every-time",
        "dledger/sparing.py",
        "            said.unreported += 1\n            return None\n",
        "            said.unreported += 1\n            return 0\n",
        masked=NO_PROCESS,
        tests=NOISE,
    ),
    Mutant(
        "replaced-streams-said-every-time",
        "dledger/transport.py",
        "            and (unreported := self._sparing.due((why, peer))) is not None\n",
        "            and (unreported := self._sparing.due(object())) is not None\n",
        masked=NO_PROCESS,
        tests=NOISE,
    ),
    Mutant(
        "void-batches-said-every-time",
        "broker/announcing.py",
        "        if (unreported := self._sparing.due(type(refusal).__name__)) is not None:\n",
        "        if (unreported := self._sparing.due(index)) is not None:\n",
        masked="no leader writes them",
        tests=NOISE,
    ),
    Mutant(
        "what-was-said-is-remembered-without-bound",
        "dledger/sparing.py",
        "        if len(self._said) > MAX_KEYS:\n",
        "        if len(self._said) < 0:\n",
        masked=NO_PROCESS,
        tests=NOISE,
    ),
    Mutant(
        "file-in-the-place-of-a-standard-stream",
        "dledger/terminal/standard_streams.py",
        "            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)",
        "            pass",
        masked="the simulator has no processes",
        tests=("tests/cli/test_process.py",),
    ),
    Mutant(
        "stop-waits-for-scrapes-that-wait-for-it",
        "broker/node.py",
        "        self._doors.push_async_callback(asyncio.to_thread, close)\n",
        "        self._doors.callback(close)\n",
        masked="the simulator has no metrics endpoint",
        tests=("tests/integration/test_stop.py",),
    ),
    Mutant(
        "an-election-told-piece-by-piece",
        "broker/services/cluster.py",
        "        if self._told is not None and is_undecided(now)",
        "        if False and is_undecided(now)",
        masked="the simulator's clients take every word",
        tests=_WATCHES,
    ),
    Mutant(
        "end-of-service-told-late",
        "broker/services/cluster.py",
        " and not self._told.is_serving:\n",
        ":\n",
        masked="the simulator's clients are refused, and go elsewhere",
        tests=_WATCHES,
    ),
    Mutant(
        "that-nobody-leads-told-never",
        "broker/services/cluster.py",
        "                self._undecided = loop.call_later(UNDECIDED_S, self._tell)\n",
        "                self._undecided = loop.call_later(3_600, self._tell)\n",
        masked="the simulator's clients are refused, and go elsewhere",
        tests=_WATCHES,
    ),
)
