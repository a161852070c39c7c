"""Times that can be believed: what a kernel takes in real use, on a machine that others use too."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from dodeca.runtime import timing
from dodeca.runtime.memory import waits
from dodeca.runtime.timing import Sample, alternate, figure, time_kernel
from faulty import SIZE, kernel, task

INF = float("inf")


def settled(measure: Callable[[], float], low: float, high: float) -> float:
    """The median of several measurements; of more where a loaded machine spoils some."""
    found: list[float] = []
    for _ in range(9):
        found.append(measure())
        if len(found) >= 3 and low < statistics.median(found) < high:
            break
    return statistics.median(found)


# --- kernels


def test_ten_times_the_work_takes_ten_times_as_long():
    of = task(threads=1)

    def ratio():
        ten, hundred = (time_kernel(kernel(name), of, 0.02) for name in ("ten", "hundred"))
        assert 0 < ten.noise < 10 and ten.samples >= timing.LEAST
        return hundred.seconds / ten.seconds

    assert 5 < settled(ratio, 5, 20) < 20


def test_cold_data_take_longer():
    """120 kB stay near the core between two launches; other 120 kB each time do not."""
    quick = kernel("good", size=30_000)

    def ratio(*cold):
        of = (task(threads=1, size=30_000, cold=where) for where in ((False, False), cold))
        warm, far = (time_kernel(quick, one, 0.02).seconds for one in of)
        return far / warm

    assert settled(lambda: ratio(True, False), 1.5, INF) > 1.5
    assert settled(lambda: ratio(False, True), 1.5, INF) > 1.5


def test_cold_arguments_move_through_more_than_the_cache(monkeypatch):
    monkeypatch.setattr(timing, "last_cache", lambda: 1 << 20)
    size = SIZE * 4 // 64 * 64 + 64  # a copy begins a cache line
    buffers = timing.TimingBuffers(kernel("good"), task(cold=(True, False)))
    assert buffers.cold == [0] and buffers.copies * size >= 2 << 20
    first, second = ({id_of(buffers.array(i, n)) for n in range(buffers.copies)} for i in (0, 1))
    assert len(first) == buffers.copies and len(second) == 1
    values = [buffers.array(0, n) for n in range(3)]
    assert (values[0] == values[1]).all() and (values[0] == values[2]).all()
    assert np.abs(np.diff(sorted(first))).min() == size


def id_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("cold", [(x, y) for x in (False, True) for y in (False, True)])
def test_each_launch_waits_for_the_one_before(cold):
    one = kernel("good")
    buffers = timing.TimingBuffers(one, task(cold=cold))
    program, *_ = timing._timed_program(one, buffers, 2, 10)
    waiting = waits(program.plan, program.kernels, program.buffers, {})
    names = [launch.kernel for launch in program.plan]
    assert names.count("plus_one") == 10
    between = waiting[names.index("plus_one") : len(names) - names[::-1].index("plus_one")]
    assert sum(between) == 9
    assert names[1] == names[-1] == "timing.clock" and waiting[1] and waiting[-1]


def test_a_kernel_over_the_limit_has_one_sample():
    given_up = time_kernel(kernel("hundred"), task(threads=1), 0.02, limit=1e-6)
    assert given_up.samples == 1 and given_up.seconds > 1e-6 and given_up.noise == timing.UNSURE


# --- samples


def test_samples_that_waited_for_a_core_are_dropped():
    quiet = [Sample(t, 0.01) for t in (1.0, 1.1, 1.2, 1.3, 1.4)]
    busy = [Sample(9.0, 0.5)] * 20
    assert figure(busy + quiet) == figure(quiet)
    assert figure(quiet).seconds == 1.2 and figure(quiet).noise == pytest.approx(0.1 / 1.2)
    few = busy + [Sample(8.0, 0.1)] * 3 + quiet[:2]  # then the quietest must do
    assert figure(few).seconds == 8.0 and figure(few).samples == timing.LEAST
    assert figure(quiet[:1]) == timing.Timing(1.0, timing.UNSURE, 1)


def sampler(seconds, log, waited=0.0, takes=0.0):
    """A sampler of those seconds, over and over, that takes real time."""

    def sample():
        log.append(seconds[0])
        time.sleep(takes)
        return Sample(seconds[len(log) % len(seconds)], waited)

    return sample


def test_samples_are_taken_in_turns_until_it_is_sure():
    log: list[float] = []
    fast, slow, close = [1.0, 1.1], [3.0, 3.1], [1.05, 1.15, 0.95]
    found = alternate([sampler(fast, log), sampler(slow, log)], 5.0, until_sure=True)
    assert log[:4] == [1.0, 3.0, 1.0, 3.0] and len(log) == 4 * timing.LEAST
    assert found[0].seconds < 1.2 and found[1].seconds > 2.9
    log.clear()
    found = alternate([sampler(fast, log), sampler(close, log)], 0.05, until_sure=True)
    assert len(log) > 100 and found[0].samples == len(log) / 2  # to the end


def test_a_busy_machine_is_given_more_time():
    def taken(waited, takes, seconds):
        log: list[float] = []
        start = time.perf_counter()
        alternate([sampler([1.0], log, waited, takes)], seconds)
        return time.perf_counter() - start, len(log)

    assert taken(0.9, 0.001, 0.05)[0] >= 0.05 * timing.PATIENCE
    assert taken(0.0, 0.02, 0.01)[1] == timing.LEAST
    assert taken(0.0, 0.05, 0.001)[1] == 1  # twenty times as long as it should take


def test_our_threads_waiting_for_a_core_is_noticed():
    """Four processes that never rest, on one core, wait for three quarters of the time."""
    script = """
import os, time
from dodeca.runtime.timing import waited_seconds
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
for _ in range(3):
    if os.fork() == 0:
        end = time.perf_counter() + 1.0
        while time.perf_counter() < end: pass
        os._exit(0)
start, before = time.perf_counter(), waited_seconds()
while time.perf_counter() < start + 0.8: pass
print(waited_seconds() - before)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert 0.4 < float(ran.stdout) < 0.9, ran.stderr
