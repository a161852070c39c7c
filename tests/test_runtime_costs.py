"""What a call costs beside its kernels: launches, memory, page faults, callers at the same time.

Limits in seconds are many times what an idle machine takes.
"""

import gc
import resource
import threading
import time
import tracemalloc
from pathlib import Path

import dodeca as dd
import numpy as np
import pytest
from dodeca.runtime import driver
from dodeca.runtime.executable import Executable
from dodeca.runtime.memory import HUGE, Lender, aligned
from test_runtime_executable import add_one, chain, kernel, one_launch, program, vector

LARGE = 12 << 20  # elements: 48 MB, which the C library would give back to the system at each free


def best(run, rounds=30):
    """The shortest seconds of some rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.fixture(scope="module")
def large():
    """An executable with a large result, and its argument."""
    return one_launch(LARGE, threads=2), np.zeros(LARGE, np.float32)


# --- time


@pytest.mark.parametrize(("threads", "limit"), [(1, 3e-6), (2, 100e-6)])
def test_a_launch_costs_little(threads, limit):
    """A plan of 1,000 launches that wait for each other: 0.03 us each alone, 1 us for two."""
    exe, x = chain(1000, threads=threads), np.zeros(64, np.float32)
    assert best(lambda: exe(x)) / 1000 < limit


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [64, 4096])
def test_a_call_costs_as_much_as_some_additions_of_numpy(size, threads, monkeypatch):
    """All that is around the kernels: 8 to 11 times a small `x + y`; it was 20 to 28 times."""
    text = "define void @nothing(ptr %a, ptr %b, ptr %c, i64 %begin, i64 %end) {\n  ret void\n}"
    nothing = kernel("nothing", text, 2, (((size,), "float32"),) * 3)
    buffers = [vector("input", size), vector("input", size), vector("output", size)]
    made = program([nothing], buffers, [("nothing", (0, 1, 2))], (0, 1), (2,))
    exe = Executable(made, {}, threads=threads)
    x, y, few = np.zeros(size, np.float32), np.zeros(size, np.float32), np.zeros(64, np.float32)
    exe(x, y)
    monkeypatch.setattr(driver.Pool, "run", lambda *_: None)  # other processes may have its cores

    def seconds(run):
        start = time.perf_counter()
        for _ in range(20):
            run()
        return time.perf_counter() - start

    rounds = [(seconds(lambda: exe(x, y)), seconds(lambda: few + few)) for _ in range(200)]
    call, addition = (min(times) for times in zip(*rounds, strict=True))
    assert call < 15 * addition


def test_a_call_does_not_grow_with_the_weights():
    """What stays from call to call costs nothing in one: all is in place already."""

    def with_weights(count):
        weights = {f"w{i}": i + 2 for i in range(count)}
        buffers = [vector("input"), vector("output"), *[vector("weight")] * count]
        plan = [("add_one", (0, 1))]
        made = program([add_one()], buffers, plan, (0,), (1,), weights=weights)
        arrays = {name: np.zeros(10, np.float32) for name in weights}
        return Executable(made, arrays, threads=1)

    x = np.zeros(10, np.float32)
    few, many = (with_weights(count) for count in (0, 3000))
    assert best(lambda: many(x), 300) < 5 * best(lambda: few(x), 300)


# --- memory


def faults(run, rounds=10):
    """Page faults of a round, after some to warm up."""
    for _ in range(3):
        run()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / rounds


def test_calls_have_no_page_faults(large):
    """Fresh results lie where earlier ones lay; numpy's would have one for each huge page."""
    exe, x = large
    assert faults(lambda: exe(x)) < 5
    kept = [exe(x)]

    def keep():
        kept[0] = exe(x)  # the earlier one is alive until then

    assert faults(keep) < 5
    assert faults(lambda: exe(x, out=kept[0])) < 5


@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_allocates_nothing_that_stays(threads):
    """With out=, a call takes some hundred bytes for the length of the call; none stay."""
    exe = chain(50, size=1 << 12, threads=threads)
    x, y = np.zeros(1 << 12, np.float32), np.empty(1 << 12, np.float32)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(200):
            exe(x, out=y)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(200):
            exe(x, out=y)
        after, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 500
    assert most - before < 4096


def test_large_pieces_are_on_huge_pages():
    for size in (HUGE, HUGE + 1, 5 * HUGE):
        memory = aligned(size)
        assert memory.size == size and memory.ctypes.data % HUGE == 0
        assert "hg" in _flags(memory.ctypes.data)
    assert aligned(HUGE - 1).size == HUGE - 1


def _flags(address):
    """What the system was told of the mapping that an address lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first:
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= address < high
        elif inside and first == "VmFlags:":
            return rest.split()
    raise AssertionError("no such mapping")


def test_what_is_lent_is_lent_to_one():
    lender = Lender(1000)
    first = lender.lend()
    address = first.ctypes.data
    part = first.view(np.float32).reshape(10, 25)[3:, ::2]  # the piece is used by this alone
    del first
    second = lender.lend()
    assert second.ctypes.data != address and not np.may_share_memory(second, part)
    del part
    assert lender.lend().ctypes.data == address


def test_a_result_that_is_held_is_never_written(large):
    """Results are held for some calls, whole or in part, and dropped in any order."""
    exe, x = one_launch(HUGE, threads=2), np.zeros(HUGE, np.float32)
    rng, held = np.random.default_rng(0), {}
    for call in range(40):
        x[:] = call
        result = exe(x)
        held[call] = result if call % 3 else result[call::7].reshape(1, -1)
        del result
        for one in rng.permutation([*held])[: max(0, len(held) - int(rng.integers(1, 6)))]:
            del held[int(one)]
        for one, array in held.items():
            assert (array[..., :: array.size // 5] == one + 1).all()
    assert (exe(x, out=np.empty_like(x)) == 40).all()


def test_results_outlive_the_executable():
    exe = one_launch(HUGE, threads=1)
    result = exe(np.zeros(HUGE, np.float32))
    del exe
    gc.collect()
    assert (result == 1).all()


# --- the same from run to run, and for several callers


def test_results_are_the_same_from_run_to_run_and_for_any_number_of_threads():
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((3, 50, 20)).astype(np.float32) for _ in range(3)]

    def attention(q, k, v):
        return dd.softmax(q @ k.mT) @ v

    compiled, found = dd.compile(attention, *arrays, threads=1), set()
    for threads in (1, 2, 3):
        exe = Executable(compiled.program, {}, threads=threads)
        found |= {exe(*arrays).tobytes() for _ in range(20)}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("cores", "threads", "others", "part"),
    [
        (8, 8, [8], 4),  # from the next call on each has a half
        (8, 8, [1], 7),
        (8, 8, [4, 4], 2),
        (16, 4, [4], 4),  # there are cores enough
        (2, 2, [2], 1),
        (2, 1, [2, 2], 1),
        (2, 3, [1], 2),  # more threads than cores were asked for
    ],
)
def test_calls_at_once_divide_the_cores(cores, threads, others, part, monkeypatch):
    monkeypatch.setattr(driver, "available_cores", lambda: cores)
    assert driver.part_of(threads, others) == part


def test_a_call_that_was_interrupted_takes_no_part_of_later_ones(monkeypatch):
    """What calls take is forgotten when they end, in whatever way; a lone call has all threads."""
    exe, x = chain(3, threads=2), np.zeros(64, np.float32)
    exe(x)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(driver.Pool, "run", interrupt)
        exe(x)
    assert not driver._parts and len(driver._idle[2]) >= 1
    assert (exe(x) == 3).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_two_callers_at_once_do_not_fight(threads):
    """All is right, and both at once take about as long as one after the other, or less."""
    executables = [chain(200, size=1 << 14, threads=threads) for _ in range(2)]
    x, wrong = np.zeros(1 << 14, np.float32), []

    def run(exe):
        for _ in range(50):
            if not (exe(x) == 200).all():
                wrong.append(exe)

    def at_once():
        callers = [threading.Thread(target=run, args=(exe,)) for exe in executables]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    def in_turns():
        for exe in executables:
            run(exe)

    assert best(at_once, 5) < 3 * best(in_turns, 5)
    assert not wrong
