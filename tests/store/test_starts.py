"""Starts and the newest frames: what is remembered, forgotten and cut agrees with plain lists."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from store.files import Buffer
from store.starts import SPARSE_BYTES, Run, Starts
from store.tail import TailCache

ADDED = st.tuples(st.just("add"), st.lists(st.sampled_from((60, 4_000, 70_000)), max_size=60))
CUT = st.tuples(st.just("cut"), st.floats(0, 1))
FORGOTTEN = st.tuples(st.just("forget"), st.none())


@given(st.lists(st.one_of(ADDED, CUT, FORGOTTEN), max_size=12))
def test_starts_are_found_after_any_forgetting_and_cutting(steps: list[tuple[str, object]]) -> None:
    """Every slot and every offset; no walk is longer than a block, and a cut walks nothing."""
    starts, used = Starts(), 0
    model: list[int] = []
    walks: list[int] = []

    def walk(run: Run) -> array[int]:
        first, start, count = run.slot, run.start, run.next_slot - run.slot
        assert model[first] == start
        assert [*model, None][run.next_slot] == run.next_start
        walks.append(count)
        assert model[first + count - 1] < start + SPARSE_BYTES or count == 1
        return array("I", model[first : first + count])

    for what, value in steps:
        if what == "add" and isinstance(value, list):
            for size in value:
                starts.add(used)
                model.append(used)
                used += size
        elif what == "cut" and isinstance(value, float) and model:
            slot = int(value * (len(model) - 1))
            used, before = model[slot], len(walks)
            starts.cut(slot)
            assert len(walks) == before
            del model[slot:]
        elif what == "forget":
            starts.forget(walk)
        assert [starts.start_of(slot) for slot in range(len(model))] == model
        for offset in {0, used // 2, used, *(each + 1 for each in model[::7])}:
            slot = starts.slot_at(offset)
            assert slot == bisect_right(model, offset) - 1
            if slot >= 0:
                run, before = starts.run_at(offset), len(walks)
                assert run.slot <= slot < run.next_slot
                assert model[run.slot] == run.start
                ends = [*model, None]
                assert ends[run.next_slot] == run.next_start
                assert len(walks) == before


@given(
    st.lists(st.sampled_from((60, 4_000, 70_000)), min_size=2, max_size=200),
    st.floats(0, 1),
    st.lists(st.sampled_from((60, 70_000)), max_size=20),
)
def test_what_is_passed_over_is_found_by_its_marks(
    sizes: list[int], share: float, more: list[int]
) -> None:
    """Of a segment whose first entries were looked at: every start is found, by walks that are no
    longer than a block, and so is what is added behind."""
    whole, model = Starts(), [0]
    for size in sizes:
        model.append(model[-1] + size)
    for start in model:
        whole.add(start)
    looked_at = 1 + int(share * (len(model) - 2))

    def walk(run: Run) -> array[int]:
        first, start, count = run.slot, run.start, run.next_slot - run.slot
        assert model[first] == start
        assert model[first + count - 1] < start + SPARSE_BYTES or count == 1
        return array("I", model[first : first + count])

    starts = Starts()
    for start in model[:looked_at]:
        starts.add(start)
    left = len(model) - looked_at
    starts.pass_over(model[looked_at], left, walk, whole.marks(len(model)))
    for size in more:
        model.append(model[-1] + size)
        starts.add(model[-1])
    assert [starts.start_of(slot) for slot in range(len(model))] == model


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=700)


@given(st.lists(st.tuples(SIZES, st.floats(0, 1), st.integers(0, 30)), max_size=6))
def test_the_tail_holds_what_a_plain_list_would(rounds: list[tuple[list[int], float, int]]) -> None:
    """Appending, evicting and cutting anywhere, before what is held too."""
    cache = TailCache(2_000, 5)
    model: dict[int, bytes] = {}
    for sequence, (sizes, cut, behind) in enumerate(rounds, 1):
        for size in sizes:
            body = bytes((cache.next_index % 251,)) * size
            model[cache.next_index] = body
            cache.add((body,), size, sequence)
        cache.evict(sequence - behind % 2)
        first = cache.first_index
        model = {index: body for index, body in model.items() if index >= first}
        assert cache.size_bytes == sum(map(len, model.values()))
        into: list[Buffer] = []
        cache.collect(first, cache.next_index - 1, into)
        assert into == list(model.values())
        index = max(1, first - 3 + int(cut * (cache.next_index - first + 3)))
        cache.truncate_from(index)
        model = {each: body for each, body in model.items() if each < index}
        assert cache.size_bytes == sum(map(len, model.values()))
        assert (cache.first_index, cache.next_index) == (min(first, index), index)
