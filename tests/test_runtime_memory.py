"""The memory plan: what lives together lies apart, and nothing runs before what it needs."""

import ml_dtypes
import numpy as np
import pytest
from dodeca.runtime.memory import ALIGNMENT, PAGE, address_of, aligned, layout, waits
from dodeca.runtime.program import Buffer, Kernel, Launch
from hypothesis import given, settings
from hypothesis import strategies as st

plans = st.lists(st.lists(st.integers(0, 11), max_size=4), max_size=14)
sizes = st.dictionaries(st.integers(0, 11), st.integers(0, 400))


def lives(uses):
    """The first and the last launch that uses each buffer."""
    found = {}
    for step, used in enumerate(uses):
        for one in used:
            found[one] = (found.get(one, (step,))[0], step)
    return found


@given(sizes, plans)
@settings(max_examples=300, deadline=None)
def test_buffers_that_live_together_never_overlap(sizes, uses):
    plan, life = layout(sizes, uses), lives(uses)
    assert plan.offsets.keys() == sizes.keys() & life.keys()
    for one, offset in plan.offsets.items():
        assert offset % ALIGNMENT == 0 and 0 <= offset <= offset + sizes[one] <= plan.bytes
        for other, place in plan.offsets.items():
            together = life[one][0] <= life[other][1] and life[other][0] <= life[one][1]
            if one != other and together and sizes[one] and sizes[other]:
                assert offset + sizes[one] <= place or place + sizes[other] <= offset
    most = max((sum(sizes[o] for o in plan.offsets if life[o][0] <= step <= life[o][1])
                for step in range(len(uses))), default=0)  # fmt: skip
    assert plan.bytes >= most


def test_a_chain_needs_two_buffers_and_a_hole_is_used():
    assert layout(dict.fromkeys(range(9), 64), [(i, i + 1) for i in range(8)]).bytes == 128
    # 2 dies between 1 and 3; 4 fits its hole
    plan = layout({1: 128, 2: 128, 3: 128, 4: 64}, [(1, 2, 3), (1, 3), (1, 3, 4)])
    assert plan.bytes == 384


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", ml_dtypes.bfloat16, "V2"])
@pytest.mark.parametrize(
    "part", [np.s_[:], np.s_[1:], np.s_[::2], np.s_[::-1], np.s_[:, 1], np.s_[2, 3], np.s_[:0]]
)
@pytest.mark.parametrize("writeable", [True, False])
def test_the_address_of_any_array(dtype, part, writeable):
    array = np.zeros((4, 6), dtype)[part]
    array = array if isinstance(array, np.ndarray) else np.array(array)
    array.flags.writeable = writeable
    assert address_of(array) == array.ctypes.data


def test_aligned_memory():
    for size in (1, 5000):
        memory = aligned(size, PAGE)
        assert memory.size == size and memory.ctypes.data % PAGE == 0
    assert aligned(0).size == 0


def kernel(grid, arguments, outputs):
    types = (((1,), "float32"),) * arguments
    return Kernel("k", "cpu", grid, 1, types, outputs, (), {}, "", b"")


def waits_of(*launches, offsets=None):
    """The waits of launches given as (grid, buffers read, buffers written); each has 4 bytes."""
    kernels, plan = {}, []
    for i, (grid, read, written) in enumerate(launches):
        kernels[f"k{i}"] = kernel(grid, len(read) + len(written), len(written))
        plan.append(Launch(f"k{i}", (*read, *written)))
    buffers = [Buffer((1,), "float32", "scratch")] * 9
    return waits(plan, kernels, buffers, offsets or {})


def test_a_launch_waits_for_what_it_reads_and_for_who_reads_what_it_writes():
    assert waits_of((2, [0], [1]), (2, [1], [2])) == [False, True]
    assert waits_of((2, [0], [1]), (2, [2], [0])) == [False, True]
    assert waits_of((2, [0], [1]), (2, [2], [1])) == [False, True]


def test_independent_launches_do_not_wait():
    assert waits_of((2, [0], [1]), (2, [0], [2]), (2, [1, 2], [3])) == [False, False, True]
    # one wait is enough for all that came before it
    assert waits_of((2, [0], [1]), (2, [1], [2]), (2, [1], [3])) == [False, True, False]


def test_launches_of_one_program_share_a_thread():
    assert waits_of((1, [0], [1]), (1, [1], [2]), (2, [2], [3])) == [False, False, True]
    assert waits_of((2, [0], [1]), (1, [1], [2]), (1, [2], [1])) == [False, True, False]
    assert waits_of((2, [0], [1]), (0, [1], [2]), (2, [2], [3])) == [False, False, False]


def test_a_shared_place_in_the_arena_counts():
    assert waits_of((2, [0], [1]), (2, [2], [3]), offsets={1: 0, 3: 0}) == [False, True]
    assert waits_of((2, [0], [1]), (2, [2], [3]), offsets={1: 0, 3: 64}) == [False, False]


@st.composite
def random_launches(draw):
    ids = st.lists(st.integers(0, 6), min_size=1, max_size=2, unique=True)
    return draw(st.lists(st.tuples(st.sampled_from([0, 1, 2]), ids, ids), max_size=10))


@given(random_launches(), st.dictionaries(st.integers(0, 6), st.sampled_from([0, 64])))
@settings(max_examples=300, deadline=None)
def test_every_conflict_has_a_wait_in_between(launches, offsets):
    found = waits_of(*launches, offsets=offsets)
    place = [(-1, offsets[i]) if i in offsets else (i, 0) for i in range(7)]
    for later, (grid, read, written) in enumerate(launches):
        for earlier, (grid0, read0, written0) in enumerate(launches[:later]):
            touched = {place[i] for i in written} & {place[i] for i in (*read0, *written0)}
            touched |= {place[i] for i in read} & {place[i] for i in written0}
            if touched and grid and grid0 and max(grid, grid0) > 1:
                assert any(found[earlier + 1 : later + 1])


def test_the_plan_is_quick_for_a_large_model():
    count = 2000
    offsets = layout(dict.fromkeys(range(count), 100), [(i, i + 1) for i in range(count - 1)])
    assert offsets.bytes == 256
    assert np.count_nonzero(waits_of(*[(1, [0], [1])] * count)) == 0
