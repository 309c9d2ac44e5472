"""Defects in the client, `dledger/client`: what it says of a message's fate."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_NO_SUCH_CLIENT = "the simulator's clients have no such code"
_ARGUMENTS = ("tests/client/test_arguments.py",)
_DISPATCH = ("tests/client/test_dispatch.py",)
_FAULTS = ("tests/client/test_faults.py",)

CLIENT = (
    Mutant(
        "send-takes-arguments-of-any-kind",
        "dledger/client/producer.py",
        "if (type(topic), type(body), type(key), type(tag), type(queue_id)) not in USUAL:",
        "if False:",
        masked=_NO_SUCH_CLIENT,
        tests=_ARGUMENTS,
    ),
    Mutant(
        "keys-with-blanks",
        "dledger/client/arguments.py",
        "    if _NOT_IN_A_KEY.search(decoded):\n",
        "    if not decoded:\n",
        masked=_NO_SUCH_CLIENT,
        tests=_ARGUMENTS,
    ),
    Mutant(
        "one-bad-message-takes-those-behind-it",
        "dledger/client/producer.py",
        'with contained("placing a message", partial(self._fail_one, message)):',
        "if message:",
        masked=_NO_SUCH_CLIENT,
        tests=_FAULTS,
    ),
    Mutant(
        "search-for-a-topic-breaks-in-silence",
        "dledger/client/producer.py",
        "        except Exception as error:  # noqa: BLE001 - those who wait must hear of it\n",
        "        except NotImplementedError as error:\n",
        masked=_NO_SUCH_CLIENT,
        tests=_FAULTS,
    ),
    Mutant(
        "flush-forgets-who-waits-for-a-topic",
        "dledger/client/producer.py",
        "        if self._resolving:\n            await asyncio.wait(list(self._resolving))\n",
        "",
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client/test_producer.py",),
    ),
    Mutant(
        "request-named-by-the-epoch-that-came-since",
        "dledger/client/dispatch.py",
        "            producer_id=producer_id,\n",
        "            producer_id=self._epochs.producer_id(parcel[0][0].epoch),\n",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "wait-for-the-topic-comes-on-top",
        "dledger/client/dispatch.py",
        "        lane.gather_deadline = min(lane.gather_deadline, deadline)\n",
        "",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "request-that-breaks-is-nobodys",
        "dledger/client/dispatch.py",
        "        except Exception as error:  # noqa: BLE001 - a fault of ours costs an attempt\n",
        "        except NotImplementedError as error:\n",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "deadlines-end-with-the-first-lane",
        "dledger/client/dispatch.py",
        "            self._arm_expiry(max(soonest, now + PAUSE_MIN_S))\n",
        "            pass\n",
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client",),
    ),
    Mutant(
        "given-up-taken-for-not-stored",
        "dledger/client/lane.py",
        "        sent, unsent = Outcome.MAY_HAVE_HAPPENED, Outcome.DID_NOT_HAPPEN\n",
        "        sent, unsent = Outcome.DID_NOT_HAPPEN, Outcome.DID_NOT_HAPPEN\n",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "numbers-used-again-after-giving-up",
        "dledger/client/lane.py",
        "        self._begin_epoch()\n        sent, unsent",
        "        sent, unsent",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "watch-ends-with-a-fault",
        "dledger/client/connection.py",
        '            with contained(f"watching {self.address}"):\n',
        "            if True:\n",
        masked=_NO_SUCH_CLIENT,
        tests=_FAULTS,
    ),
    Mutant(
        "reading-that-breaks-in-silence",
        "dledger/client/consumer.py",
        '            self._fail(client_error("reading a queue", error))\n',
        "            del error\n",
        masked=_NO_SUCH_CLIENT,
        tests=_FAULTS,
    ),
    Mutant(
        "reading-goes-on-behind-what-could-not-be-decoded",
        "dledger/client/consumer.py",
        '            self._failure = client_error("decoding messages", error)\n'
        "            raise self._failure",
        '            raise client_error("decoding messages", error)',
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client/test_consumer.py",),
    ),
    Mutant(
        "registration-for-every-refusal",
        "dledger/client/lane.py",
        "        if self._needs_epoch or freed is None:\n",
        "        if True:\n",
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client/test_registration.py",),
    ),
    Mutant(
        "numbers-in-doubt-used-again",
        "dledger/client/lane.py",
        "            if batch.state is BatchState.STORED or batch.doubtful:\n",
        "            if batch.state is BatchState.STORED:\n",
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client/test_lane.py",),
    ),
    Mutant(
        "forgotten-name-goes-on-with-its-numbers",
        "dledger/client/registrar.py",
        "        if self._epochs.name and answer.origin != origin:\n",
        "        if False:\n",
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client/test_registration.py",),
    ),
    Mutant(
        "fenced-producer-asks-again",
        "dledger/client/registrar.py",
        "token=self._epochs.token, name=self._epochs.name, previous=self._epochs.previous_id",
        "token=self._epochs.token, name=self._epochs.name",
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client/test_registration.py",),
    ),
    Mutant(
        "lane-outlives-its-topic",
        "dledger/client/dispatch.py",
        "        if lane is None or lane.incarnation < incarnation:\n",
        "        if lane is None:\n",
        masked="the simulator's clients are its own",
        tests=("tests/client/test_producer.py",),
    ),
)
