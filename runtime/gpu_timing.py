"""What kernels and plans take on a GPU, by the device's own clock.

    timing = time_kernel(kernel, seconds=0.05)
    timing.seconds, timing.noise, timing.samples          # 1.4e-05, 0.01, 24
    time_plan(exe.on_gpu(), [x]).seconds                  # a whole call, without copies

A sample is what passes between two events around the launch. Before each the device writes to
memory of twice its last cache: so nothing of the kernel's data is there, and while the device
writes, the launch and both events are put on the stream, so that no sample holds time of the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .gpu import Call, Driver, Handle, device_for, open_driver
from .gpu_runner import Code, GpuRunner
from .gpu_session import Session, session_on
from .program import Kernel, Launch, Program

if TYPE_CHECKING:
    from .timing import Timing  # which loads LLVM

WARM_UP = 3  # launches before those that count
LEAST, MOST = 5, 500  # samples
BATCH = 20  # samples between two waits, so that a limit is kept
SMALLEST_FLUSH = 64 << 20  # bytes: what a driver says of its cache may be 0


class Timer:
    """Times work on a session's stream; all calls inside `session.working()`."""

    def __init__(self, session: Session):
        self._session = session
        size = max(2 * session.facts.cache, SMALLEST_FLUSH)
        self._flush = session.allocate(size)
        events = [session.driver.new_event(timed=True) for _ in range(2 * BATCH)]
        self._pairs: list[tuple[Handle, Handle]] = list(zip(events[::2], events[1::2], strict=True))

    def samples(self, work: Callable[[], None], count: int) -> list[float]:
        """Seconds of so many runs of what `work` puts on the stream, with a cold cache each."""
        session, driver, taken = self._session, self._session.driver, []
        while len(taken) < count:
            pairs = self._pairs[: count - len(taken)]
            for first, last in pairs:
                driver.fill(self._flush.address, 0, self._flush.size, session.stream)
                driver.record(first, session.stream)
                work()
                driver.record(last, session.stream)
            session.wait()
            taken += [driver.seconds(first, last) for first, last in pairs]
        return taken

    def timing(
        self, work: Callable[[], None], seconds: float, limit: float = float("inf")
    ) -> Timing:
        """The median and noise of samples for some seconds of the host's, after a warm-up.

        Work that takes longer than `limit` is measured once.
        """
        from .timing import Sample, Timing, figure

        began = time.perf_counter()
        first = self.samples(work, 1)[0]
        if first > limit:
            return Timing(first, 1.0, 1)
        self.samples(work, WARM_UP - 1)
        one = (time.perf_counter() - began) / WARM_UP
        count = int(min(MOST, max(LEAST, seconds / max(one, 1e-6))))
        return figure([Sample(taken, 0.0) for taken in self.samples(work, count)])

    def end(self) -> None:
        """Give the events back."""
        for event in (event for pair in self._pairs for event in pair):
            self._session.driver.end_event(event)


def profile_plan(
    runner: GpuRunner, arrays: Sequence[Any], repeats: int
) -> tuple[list[float], list[np.ndarray]]:
    """The median seconds of each launch of the program's plan, and the results.

    The launches run in order, each by itself, so the buffers hold what they hold in a call.
    """
    from statistics import median

    session = runner.session
    with session.working():
        plan, timer = runner.ready(arrays), Timer(session)
        times: list[list[float]] = [[] for _ in plan.calls]
        for _ in range(repeats + 1):
            for number, taken in enumerate(times):
                taken += timer.samples(lambda number=number: plan.launch(number), 1)
        timer.end()
        medians = iter([median(taken[1:]) for taken in times])
        ran = {id(launch) for launch in plan.launches}
        measured = [next(medians) if id(n) in ran else 0.0 for n in runner.program.plan]
        return measured, runner.results()


def time_plan(
    runner: GpuRunner, arrays: Sequence[Any], seconds: float = 0.2, limit: float = float("inf")
) -> Timing:
    """What a whole call takes on the device, with all arrays there: the plan as calls run it."""
    session = runner.session
    with session.working():
        plan, timer = runner.ready(arrays), Timer(session)
        try:
            return timer.timing(plan.enqueue, seconds, limit)
        finally:
            timer.end()


def time_kernel(
    kernel: Kernel,
    seconds: float = 0.05,
    limit: float = float("inf"),
    driver: Driver | None = None,
) -> Timing:
    """Time a kernel on ordinary inputs; one that takes longer than `limit` is measured once."""
    from .checking import ordinary_inputs

    driver = open_driver(kernel.target) if driver is None else driver
    texts = kernel.binary[:4] != b"\x7fELF"
    session = session_on(driver, device_for(driver, kernel.target, texts))
    reads = len(kernel.arguments) - kernel.outputs
    with session.working():
        code = Code(session, _alone(kernel))
        call: Call = code.call(Launch(kernel.name, ()))
        held = []
        arrays = [*ordinary_inputs(kernel.arguments[:reads])]
        for position, (shape, dtype) in enumerate(kernel.arguments):
            array = arrays[position] if position < reads else _zeros(shape, dtype)
            memory = session.allocate(array.nbytes)
            session.upload(memory.address, np.ascontiguousarray(array))
            held.append(memory)
            call.pointers[position] = memory.address
        session.kernels.add(kernel.name)
        timer = Timer(session)

        def launch() -> None:
            session.kernels.add(kernel.name)
            driver.launch(call, session.stream)

        try:
            return timer.timing(launch, seconds, limit)
        finally:
            timer.end()
            for module in code.modules:
                driver.unload(module)


def _zeros(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    from ..dialect.dtypes import DTYPES

    return np.zeros(shape, DTYPES[dtype].numpy)


def _alone(kernel: Kernel) -> Program:
    """A program that has this kernel and nothing else."""
    return Program(kernel.target, {kernel.name: kernel}, (), (), (), (), (), {}, {})
