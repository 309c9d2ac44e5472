"""Defects in what the simulator excuses: it would pass what a node, or a message, must not do."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_JUDGE = "nothing is wrong with what is judged"
_TESTS = ("tests/chaos/test_excuses.py",)


def _mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"chaos/sim/{file}", old, new, masked=_JUDGE, tests=_TESTS)


EXCUSES = (
    Mutant(
        "whatever-fails-is-rejected",
        "dledger/client/members/membership.py",
        "self.member.send_back(work, is_rejected=is_rejection(error))",
        "self.member.send_back(work, is_rejected=True)",
        applications=True,
    ),
    Mutant(
        "dead-letter-that-nobody-gave-up-passed-over",
        "chaos/sim/applications/books.py",
        "            if begun < attempts and not (",
        "            if False and not (",
        masked=_JUDGE,
        tests=("tests/chaos/test_library.py",),
    ),
    _mutant(
        "what-a-sound-node-failed-at-is-weather",
        "endings.py",
        "        if error.code == epb.INTERNAL:\n",
        "        if False:\n",
    ),
    _mutant(
        "failure-of-a-disk-is-none",
        "endings.py",
        "    if node.spoiled or any(node.disk.failures.of_process()):\n",
        "    if node.spoiled:\n",
    ),
    _mutant(
        "copy-of-something-else-passed-over",
        "originals.py",
        "        if _content(copy) != _content(first) or ",
        "        if ",
    ),
    _mutant(
        "any-failure-of-a-disk-excuses-any-end",
        "endings.py",
        "    return isinstance(cause, OSError) and node.disk.failures.have_caused(cause)\n",
        "    return isinstance(cause, OSError) and len(node.disk.failures) > 0\n",
    ),
    _mutant(
        "rot-excuses-what-a-service-does-wrong",
        "endings.py",
        "        return node.disk.failures.have_caused(cause) or is_lost_sector(cause)\n",
        "        return node.spoiled or node.disk.failures.have_caused(cause)\n",
    ),
    _mutant(
        "wrong-call-is-the-disks",
        "disk_failures.py",
        "            if isinstance(each, OSError) and each.errno in OURS:\n"
        "                return False\n",
        "",
    ),
    _mutant(
        "failure-of-a-dead-process-excuses-the-next",
        "disk_failures.py",
        "        self._raised.clear()\n",
        "        pass\n",
    ),
    _mutant(
        "read-that-nothing-failed-passed-over",
        "machine.py",
        "            if self._node.disk.failures.have_caused(error) or is_lost_sector(error):\n",
        "            if error:\n",
    ),
    _mutant(
        "lie-excuses-all-that-follows",
        "told_lies.py",
        "        return last is not None and self._now_us() - last < LATELY_US\n",
        "        return last is not None\n",
    ),
    _mutant(
        "lie-excuses-who-has-not-heard-it",
        "endings.py",
        "node.world.network.lies.have_touched(node.name)\n",
        "len(node.world.network.lies) > 0\n",
    ),
    _mutant(
        "refused-whoever-has-heard-no-lie",
        "machine.py",
        "        are_touched = any(map(network.lies.have_touched, (peer, self._node.name)))\n",
        "        are_touched = len(network.lies) > 0\n",
    ),
    _mutant(
        "requests-are-of-any-length",
        "door_sizes.py",
        'unparsed(request.SerializeToString()) if request.ByteSize() > MAX_LENGTH else ""',
        '""',
    ),
    _mutant(
        "requests-hold-any-number",
        "door_sizes.py",
        "why or excess(request)",
        "why",
    ),
)
