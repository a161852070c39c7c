"""What a kernel takes in real use, and how sure that is.

    timing = time_kernel(kernel, task, seconds=0.05)
    timing.seconds, timing.noise, timing.samples      # 1.4e-05, 0.01, 24

A sample is one native call that launches the kernel many times between two readings of the clock,
made by the call's first thread, so that Python, and the waking of threads, do not count. As in a
program, each launch waits for the one before. An argument that is cold in use is another copy for
each launch, and the copies together exceed twice the last cache; all others stay where they are.
Times from a busy machine are too long: samples in which our threads waited for a core are dropped.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from ..dialect.dtypes import DTYPES
from ..dialect.errors import Error
from .checking import Kind, one_kernel_program, ordinary_inputs
from .cpu import CpuRunner, thread_count
from .driver import waited_seconds
from .executable import Executable
from .jit import compile_for_host
from .memory import ALIGNMENT, aligned, plan_memory
from .program import Buffer, Kernel, Launch, Program
from .trial import Task

LEAST = 5  # samples that make a figure
PATIENCE = 3  # times the seconds that were asked for, to get as many from a busy machine
OVERTIME = 20  # times the seconds that were asked for, after which fewer samples must do
BUSY = 0.03  # the share of a sample in which our threads may wait for a core
SAMPLE = 0.002  # seconds of launches in a sample
LAUNCHES = 500  # of a sample, at most
LAST_CACHE = 64 << 20  # bytes, where the machine does not say
UNSURE = 1.0  # the noise of a single sample
_PROGRAM_SCALE = 0.1  # of a program's random inputs: many layers after each other stay finite


@dataclass(frozen=True)
class Timing:
    """Seconds of a launch or a call."""

    seconds: float  # the median
    noise: float  # half the width of the middle half of the samples, as a part of the median
    samples: int


@dataclass(frozen=True)
class Sample:
    """Seconds of a launch or a call, and the share of its time in which we waited for a core."""

    seconds: float
    waited: float


Sampler = Callable[[], Sample]


def time_kernel(
    kernel: Kernel,
    task: Task,
    seconds: float,
    limit: float = math.inf,
    buffers: TimingBuffers | None = None,
) -> Timing:
    """Time a kernel for some seconds. One that takes longer than `limit` is given up at once.

    `buffers`: those that another kernel of the task was timed with.
    """
    timer = KernelTimer(kernel, buffers or TimingBuffers(kernel, task), task.threads)
    if timer.estimate > limit:
        return Timing(timer.estimate, UNSURE, 1)
    return alternate([timer.sample], seconds)[0]


# --- samples to figures -------------------------------------------------------------------------


def alternate(
    samplers: Sequence[Sampler], seconds: float, *, until_sure: bool = False
) -> list[Timing]:
    """Take a sample of each in turn, for some seconds, but at least `LEAST` of each.

    On a busy machine this takes `PATIENCE` times as long, to get as many quiet samples.

    `until_sure`: until the gap between the two fastest exceeds the sum of their noises, if sooner.
    """
    taken: list[list[Sample]] = [[] for _ in samplers]
    look = 2 * LEAST  # at how many samples we look whether we are sure
    start = time.perf_counter()
    while samplers:
        for sampler, samples in zip(samplers, taken, strict=True):
            samples.append(sampler())
        spent = time.perf_counter() - start
        enough = len(taken[0]) >= LEAST
        if spent >= seconds and enough and (spent >= PATIENCE * seconds or _all_quiet(taken)):
            break
        if spent >= OVERTIME * seconds:
            break
        if until_sure and len(taken[0]) >= look:
            look = math.ceil(1.2 * look)  # seldom, for this sorts all samples
            if _sure([figure(samples) for samples in taken]):
                break
    return [figure(samples) for samples in taken]


def figure(samples: Sequence[Sample]) -> Timing:
    """The median and the noise of the samples that had the cores they wanted.

    Where those are fewer than `LEAST`, of as many that waited the least.
    """
    quiet = [s for s in samples if s.waited <= BUSY]
    if len(quiet) < LEAST:
        quiet = sorted(samples, key=lambda sample: sample.waited)[:LEAST]
    times = [sample.seconds for sample in quiet]
    median = statistics.median(times)
    if len(times) == 1:
        return Timing(median, UNSURE, 1)
    if not median:
        return Timing(0.0, 0.0, len(times))
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(median, (high - low) / 2 / median, len(times))


def _all_quiet(taken: Sequence[Sequence[Sample]]) -> bool:
    """Whether there are enough quiet samples of each."""
    return all(sum(s.waited <= BUSY for s in samples) >= LEAST for samples in taken)


def _sure(timings: Sequence[Timing]) -> bool:
    """Whether the fastest is the fastest."""
    if len(timings) < 2:
        return False
    first, second = sorted(timings, key=lambda t: t.seconds)[:2]
    noise = first.seconds * first.noise + second.seconds * second.noise
    return second.seconds - first.seconds > noise


# --- kernels ------------------------------------------------------------------------------------


class TimingBuffers:
    """Arrays for a kernel's arguments, cold ones with their copies: for all kernels of a task."""

    def __init__(self, kernel: Kernel, task: Task):
        reads = len(kernel.arguments) - kernel.outputs
        firsts = [*ordinary_inputs(kernel.arguments[:reads])]
        for shape, dtype in kernel.arguments[reads:]:
            firsts.append(np.zeros(shape, DTYPES[dtype].numpy))
        cold = [*task.cold, *[False] * len(firsts)][: len(firsts)]
        strides = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in firsts]
        moving = sum(stride for stride, moves in zip(strides, cold, strict=True) if moves)
        self.copies = max(1, math.ceil(2 * last_cache() / moving)) if moving else 1
        # The next copy is far from the last one, or a prefetcher would have it there already.
        self._step = next(
            n
            for n in range(int(self.copies * 0.618) or 1, 2 * self.copies + 2)
            if math.gcd(n, self.copies) == 1
        )
        self.cold = [i for i, moves in enumerate(cold) if moves and firsts[i].nbytes]
        self._strides = strides
        self._slabs = [
            _copies(array, stride, self.copies if i in self.cold else 1)
            for i, (array, stride) in enumerate(zip(firsts, strides, strict=True))
        ]
        self._kinds = [(array.shape, array.dtype, array.nbytes) for array in firsts]

    def array(self, argument: int, number: int) -> np.ndarray:
        """The argument's array for launch `number`."""
        copy = number * self._step % self.copies if argument in self.cold else 0
        start = copy * self._strides[argument]
        shape, dtype, size = self._kinds[argument]
        return self._slabs[argument][start : start + size].view(dtype).reshape(shape)


def _copies(array: np.ndarray, stride: int, count: int) -> np.ndarray:
    """The bytes of so many copies of an array."""
    slab = aligned(stride * count)
    rows = slab.reshape(count, stride)
    rows[:, array.nbytes :] = 0
    rows[:, : array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return slab


@cache
def last_cache() -> int:
    """The bytes of this machine's last cache."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(int(file.read_text().strip().rstrip("K")) << 10)
    return max(sizes) or LAST_CACHE


class KernelTimer:
    """A kernel that is ready to be timed. `estimate`: about the seconds of a launch."""

    def __init__(self, kernel: Kernel, buffers: TimingBuffers, threads: int):
        self._kernel, self._buffers, self._threads = kernel, buffers, threads
        self._next = 0  # the number of the next launch
        self._build(1)
        first = self.sample().seconds  # has page faults, and the code is new
        self.estimate = first if first > SAMPLE else min(first, self.sample().seconds)
        launches = min(LAUNCHES, int(SAMPLE / max(self.estimate, 1e-9)))
        if launches > 1:
            self._build(launches)

    def _build(self, launches: int) -> None:
        program, self._moving, self._fixed = _timed_program(
            self._kernel, self._buffers, self._threads, launches
        )
        self._stamps = [np.zeros(2, np.int64) for _ in range(2)]
        self._launches = launches
        self._runner = CpuRunner(program, {}, plan_memory(program, program.plan), self._threads)

    def sample(self) -> Sample:
        """Seconds of a launch, from one native call."""
        arrays = dict(enumerate(self._stamps))
        for index, argument in self._fixed:
            arrays[index] = self._buffers.array(argument, 0)
        for index, argument, launch in self._moving:
            arrays[index] = self._buffers.array(argument, self._next + launch)
        self._next += self._launches
        before = waited_seconds()
        self._runner.run(arrays)
        waited = waited_seconds() - before
        (s0, n0), (s1, n1) = self._stamps
        taken = float(s1 - s0) + float(n1 - n0) * 1e-9
        return Sample(taken / self._launches, waited / taken if taken > 0 else 0.0)


def _timed_program(
    kernel: Kernel, buffers: TimingBuffers, threads: int, launches: int
) -> tuple[Program, list[tuple[int, int, int]], list[tuple[int, int]]]:
    """A program that stamps the time, launches the kernel, and stamps the time again.

    Also the ids of the buffers that move from launch to launch, each with the argument and launch
    that it is for, and the ids of those that stay, with their arguments. Buffers 0 and 1 are the
    stamps.
    """
    plain = one_kernel_program(kernel)
    reads = len(plain.inputs)
    stamp = Buffer((2,), "int64", "output")
    made = [stamp, stamp]
    fixed: list[tuple[int, int]] = []
    moving: list[tuple[int, int, int]] = []
    stays: dict[int, int] = {}
    for argument, buffer in enumerate(plain.buffers):
        if argument not in buffers.cold:
            stays[argument] = len(made)
            fixed.append((len(made), argument))
            made.append(buffer)
    # All threads are awake when the clock is read: it waits for the grid before it.
    meet, clock = _meet(threads), _clock()
    plan = [Launch(meet.name, (0,)), Launch(clock.name, (0, 0))]
    outputs = range(reads, len(plain.buffers))
    waits = any(argument in stays for argument in outputs)  # a launch writes what the last one did
    for launch in range(launches):
        ids = []
        for argument, buffer in enumerate(plain.buffers):
            if argument not in stays:
                moving.append((len(made), argument, launch))
                made.append(buffer)
            ids.append(stays.get(argument, len(made) - 1))
        plan.append(Launch(kernel.name, tuple(ids)))
        if not waits:
            plan.append(Launch(meet.name, (ids[-1],)))
    plan.append(Launch(clock.name, (plan[-1].arguments[-1], 1)))
    roles = range(len(made))
    program = replace(
        plain,
        kernels={one.name: one for one in (kernel, meet, clock)},
        buffers=tuple(made),
        plan=tuple(plan if kernel.grid else plan[:2] + plan[-1:]),
        inputs=tuple(i for i in roles if made[i].role == "input"),
        outputs=tuple(i for i in roles if made[i].role == "output"),
    )
    return program, moving, fixed


@cache
def _meet(threads: int) -> Kernel:
    """Does nothing, on every thread."""
    return _tiny_kernel("timing.meet", "ptr %any", "", max(threads, 2), 1)


@cache
def _clock() -> Kernel:
    """Writes the time, seconds and nanoseconds, into its last argument."""
    address = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    call = f"call i32 inttoptr (i64 {address} to ptr)(i32 {time.CLOCK_MONOTONIC}, ptr %stamp)"
    return _tiny_kernel("timing.clock", "ptr %after, ptr %stamp", f"%code = {call}", 1, 2)


def _tiny_kernel(name: str, arguments: str, body: str, grid: int, outputs: int) -> Kernel:
    text = (
        f'define void @"{name}"({arguments}, i64 %begin, i64 %end) {{\n  {body}\n  ret void\n}}\n'
    )
    return Kernel(
        name=name,
        target="cpu",
        grid=grid,
        block=1,
        arguments=(((2,), "int64"),) * outputs,
        outputs=outputs,
        fused=(),
        stages={},
        llvm_ir=text,
        binary=compile_for_host(llvm.parse_assembly(text), name, optimise=False),
    )


# --- programs -----------------------------------------------------------------------------------


def time_programs(
    programs: Sequence[Program], seconds: float, threads: int | None = None
) -> list[Timing]:
    """Time whole calls of programs that take the same inputs and weights, call by call in turn.

    All share the arrays, which are made here. Ends early where the fastest is sure to be it.
    """
    inputs, weights = _program_arrays(programs)
    count = thread_count(threads)
    timers = [ProgramTimer(program, inputs, weights, count) for program in programs]
    return alternate([timer.sample for timer in timers], seconds, until_sure=True)


class ProgramTimer:
    """A program that is ready to be timed."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[np.ndarray],
        weights: dict[str, np.ndarray],
        threads: int,
    ):
        self._run = Executable(program, weights, threads=threads)
        self._inputs = inputs
        self.sample()  # the first call has page faults, and wakes the threads

    def sample(self) -> Sample:
        """Seconds of one call, as a caller in Python sees it."""
        before = waited_seconds()
        start = time.perf_counter()
        self._run(*self._inputs)
        taken = time.perf_counter() - start
        return Sample(taken, (waited_seconds() - before) / taken)


def agreed_arguments(programs: Sequence[Program]) -> dict[int | str, Kind]:
    """What programs take: inputs by position, weights by name; an Error if they do not agree."""
    takes = []
    for program in programs:
        ids = [*enumerate(program.inputs), *program.weights.items()]
        buffers = ((name, program.buffers[index]) for name, index in ids)
        takes.append({name: (buffer.shape, buffer.dtype) for name, buffer in buffers})
    for number, other in enumerate(takes):
        if other != takes[0]:
            raise Error(f"program {number} takes other inputs or weights than program 0")
    return takes[0]


def _program_arrays(
    programs: Sequence[Program],
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Inputs and weights for programs."""
    kinds = agreed_arguments(programs)
    arrays = map(_held, ordinary_inputs(list(kinds.values()), scale=_PROGRAM_SCALE))
    made = dict(zip(kinds, arrays, strict=True))
    inputs = [array for name, array in made.items() if isinstance(name, int)]
    return inputs, {name: array for name, array in made.items() if isinstance(name, str)}


def _held(array: np.ndarray) -> np.ndarray:
    """A read-only array that starts a cache line, so that no executable makes a copy of its own."""
    held = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(held, array)
    held.flags.writeable = False
    return held
