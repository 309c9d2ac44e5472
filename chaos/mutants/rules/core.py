"""Defects in the protocol, `dledger/core`: votes, terms, commitment, what a peer may say."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

CORE = (
    Mutant(
        "vote-before-fsync",
        "dledger/core/persistence.py",
        "return self._hard_state_sequence <= self._completed",
        "return True",
    ),
    Mutant(
        "acknowledge-before-fsync",
        "dledger/core/state.py",
        "return min(log.durable_index, max(self.verified_index, log.commit_index))",
        "return max(self.verified_index, log.commit_index)",
    ),
    Mutant(
        "commit-an-old-term-by-counting",
        "dledger/core/replication.py",
        "if index > state.log.commit_index and index >= state.term_start_index:",
        "if index > state.log.commit_index:",
    ),
    Mutant(
        "leader-counts-itself-before-fsync",
        "dledger/core/state.py",
        "            return self.log.durable_index\n",
        "            return self.log.last_index\n",
    ),
    Mutant(
        "commit-with-one-too-few",
        "dledger/core/quorum.py",
        "return values[len(values) // 2]",
        "return values[len(values) // 2 - 1]",
    ),
    Mutant(
        "two-votes-in-a-term",
        "dledger/core/election.py",
        "    return state.vote == candidate\n",
        "    return True\n",
    ),
    Mutant(
        "vote-for-a-shorter-log",
        "dledger/core/election.py",
        "return (last_term, last_index) >= (state.log.last_term, state.log.last_index)",
        "return True",
    ),
    Mutant(
        "freshness-by-length-only",
        "dledger/core/election.py",
        "return (last_term, last_index) >= (state.log.last_term, state.log.last_index)",
        "return last_index >= state.log.last_index",
    ),
    Mutant(
        "vote-lost-on-stepping-down",
        "dledger/core/roles.py",
        "    if old_role is Role.LEADER:\n        _lay_down_leadership(state)",
        "    state.vote = None\n"
        "    if old_role is Role.LEADER:\n        _lay_down_leadership(state)",
    ),
    Mutant(
        "term-not-persisted",
        "dledger/core/state.py",
        "        self.persists.want_hard_state(HardState(term, None))\n",
        "",
    ),
    Mutant(
        "truncate-a-matching-suffix",
        "dledger/core/follower.py",
        "if log.term_at(entry.index) != entry.term:",
        "if True:",
    ),
    Mutant(
        "keep-a-conflicting-entry",
        "dledger/core/follower.py",
        "if log.term_at(entry.index) != entry.term:",
        "if False:",
    ),
    Mutant(
        "append-without-matching-the-previous-entry",
        "dledger/core/follower.py",
        "elif not log.matches(previous, message.prev_term):",
        "elif previous > log.last_index:",
    ),
    Mutant(
        "commit-what-was-not-verified",
        "dledger/core/follower.py",
        "    index = min(leader_commit, state.verified_index)\n",
        "    index = min(leader_commit, state.log.last_index)\n",
        masked="the leader clamps what heartbeats carry; truncation comes first",
    ),
    Mutant(
        "heartbeat-forgets-to-clamp-the-commit-index",
        "dledger/core/follower.py",
        "    index = min(leader_commit, state.verified_index)\n",
        "    index = leader_commit\n",
    ),
    Mutant(
        "late-fsync-of-an-overwritten-entry-counts",
        "dledger/core/persistence.py",
        "            (sequence, min(last, Index(index - 1))) "
        "for sequence, last in self._outstanding\n",
        "            (sequence, last) for sequence, last in self._outstanding\n",
    ),
    Mutant(
        "conflict-hint-off-by-one",
        "dledger/core/replication.py",
        "return Index(max(1, min(next_index, message.rejected_prev_index)))",
        "return Index(max(1, min(next_index, message.rejected_prev_index) + 1))",
    ),
    Mutant(
        "probe-never-repeated",
        "dledger/core/progress.py",
        "        if not self.probe_paused:\n            return False\n",
        "        return False\n",
    ),
    Mutant(
        "lost-appends-never-noticed",
        "dledger/core/progress.py",
        "return round_number > self.progress_round + patience",
        "return False",
    ),
    Mutant(
        "window-never-reopens",
        "dledger/core/progress.py",
        "        while inflight and inflight[0][0] <= match_index:\n",
        "        while False:\n",
        masked="the window is given up as lost after eight rounds",
    ),
    Mutant(
        "next-index-skips-one",
        "dledger/core/progress.py",
        "        self.next_index = Index(last + 1)\n",
        "        self.next_index = Index(last + 2)\n",
    ),
    Mutant(
        "read-without-a-quorum",
        "dledger/core/heartbeat.py",
        "if has_quorum(state.log.configuration, (state.node,)):",
        "if True:",
    ),
    Mutant(
        "read-confirmed-by-an-older-round",
        "dledger/core/heartbeat.py",
        "state.reads_round = state.heartbeat_round + 1",
        "state.reads_round = state.heartbeat_round",
        masked="an older round's answers are rarely under way",
    ),
    Mutant(
        "transfer-never-ends",
        "dledger/core/transfer.py",
        "if transfer.elapsed_ticks >= state.options.transfer_timeout_ticks:",
        "if False:",
        masked="the target is caught up when peace comes",
    ),
    Mutant(
        "no-election-timeout",
        "dledger/core/election.py",
        "    state.election_elapsed_ticks += 1\n",
        "    state.election_elapsed_ticks += state.suspicion_attempt > 0\n",
    ),
    Mutant(
        "no-noop-after-an-election",
        "dledger/core/roles.py",
        "    index = state.log.append(state.term, state.options.noop_size)\n"
        "    state.persists.want_append(index, index)\n"
        "    state.term_start_index = index\n"
        "    state.noop = Proposed(index, state.term)\n",
        "    state.term_start_index = Index(state.log.last_index + 1)\n",
    ),
    Mutant(
        "leadership-to-a-full-disk",
        "dledger/core/sick_disk.py",
        "        not progress.is_short_of_space\n        and progress.acked_round",
        "        progress.acked_round",
        masked="the full follower refuses honestly and hands over again",
    ),
    Mutant(
        "leadership-to-a-minority-with-room",
        "dledger/core/sick_disk.py",
        "    if not has_quorum(state.log.configuration, with_room):\n        return None\n",
        "",
        masked="nothing can be committed there, and nothing is lost either",
    ),
    Mutant(
        "full-node-stands-for-election-at-once",
        "dledger/core/election.py",
        "state.election_timeout_ticks + yielded_ticks(state)",
        "state.election_timeout_ticks",
        masked="it leads, refuses, and hands over",
    ),
    Mutant(
        "round-of-an-older-term-echoed",
        "dledger/core/raft.py",
        "                state.send(HeartbeatResponse(node, sender, term))\n",
        "                state.send(HeartbeatResponse(node, sender, term, message.read_context))\n",
        seed=45,
    ),
    Mutant(
        "any-term-is-followed",
        "dledger/core/admission.py",
        "    furthest = min(MAX_TERM, state.term + terms_in_reach(state))\n",
        "    furthest = 1 << 64\n",
    ),
    Mutant(
        "terms-that-others-moved-are-not-counted",
        "dledger/core/roles.py",
        "        state.terms_adopted += term - state.term\n",
        "",
        masked="it takes longer than any run to be led to the end of all terms",
    ),
    Mutant(
        "acknowledgement-beyond-the-log",
        "dledger/core/admission.py",
        "    furthest = state.log.last_index if leads else MAX_INDEX\n",
        "    furthest = MAX_INDEX\n",
    ),
    Mutant(
        "answer-to-a-round-that-has-not-begun",
        "dledger/core/admission.py",
        "state.heartbeat_round if leads else MAX_ROUND)",
        "MAX_ROUND)",
        masked="a stale read needs a leader that is cut off after the lie",
    ),
    Mutant(
        "settled-entries-not-compared",
        "dledger/core/admission.py",
        "        _check_settled(state, message)\n",
        "",
        masked="the digest of the frames tells it too",
    ),
    Mutant(
        "second-leader-of-a-term",
        "dledger/core/admission.py",
        "    if leader is not None and leader != message.sender:\n",
        "    if False:\n",
        masked="only a lie of leading would show it",
    ),
    Mutant(
        "anybody-hands-over",
        "dledger/core/election.py",
        "    if state.term_leader == message.sender and state.is_promotable():\n",
        "    if state.is_promotable():\n",
        masked="one more election does no harm",
    ),
    Mutant(
        "old-term-append-answered-with-its-index",
        "dledger/core/raft.py",
        "state.send(AppendResponse(node, sender, term, accepted=False))",
        "state.send(AppendResponse(node, sender, term, accepted=False, "
        "rejected_prev_index=message.prev_index))",
        masked="the leader of two terms has to be cut between them while an answer travels",
        tests=("tests/core/test_admission.py",),
    ),
    Mutant(
        "append-of-any-number-of-entries",
        "dledger/core/replication.py",
        "last = Index(min(log.last_index, previous + state.options.max_append_entries))",
        "last = log.last_index",
    ),
    Mutant(
        "all-appends-in-one-turn",
        "dledger/core/replication.py",
        "    if _is_behind(state, progress):\n        _send_one(state, progress)\n",
        "    while _is_behind(state, progress):\n        _send_one(state, progress)\n",
    ),
)
