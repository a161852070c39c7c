"""A program on this CPU: its object code in memory, its buffers, one native call for the plan.

runner = CpuRunner(program, {weight id: array}, threads=2)
runner.run({input id: array, output id: array})
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ..dialect.errors import ArgumentError
from .arguments import new_array
from .driver import Word, available_cores, native, run_launches
from .environment import flag
from .memory import PAGE, Layout, address_of, aligned, plan_memory, waits
from .program import Buffer, Kernel, Launch, Program


def thread_count(threads: int | None = None) -> int:
    """How many threads to use: what the user said, else OMP_NUM_THREADS, else the cores we have."""
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ArgumentError(f"threads: expected a whole number of at least 1, got {threads!r}")
        return threads
    asked = flag("OMP_NUM_THREADS").split(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) > 0 else available_cores()


def read_by_calls(program: Program) -> set[int]:
    """The buffers that a call uses or gives back."""
    return {i for launch in program.plan for i in launch.arguments} | {*program.outputs}


class Code(Protocol):
    """A program's kernels in executable memory, compiled here or loaded from a file."""

    def entry(self, kernel: Kernel) -> tuple[int, int]:
        """The addresses of the trampoline for a kernel, and of the kernel."""
        ...


class Table:
    """Launches as the driver reads them: trampoline, kernel, ids, grid, whether to wait."""

    def __init__(
        self,
        launches: Sequence[Launch],
        kernels: Mapping[str, Kernel],
        code: Code,
        buffers: Sequence[Buffer],
        offsets: Mapping[int, int],
        threads: int,
    ):
        widest = max((kernels[launch.kernel].grid for launch in launches), default=0)
        self.threads = min(threads, widest)  # which have something to do
        ids = np.array([i for launch in launches for i in launch.arguments], np.int64)
        rows = np.zeros((len(launches), 5), np.int64)
        used = {launch.kernel for launch in launches}
        entries = {name: code.entry(kernels[name]) for name in used}
        position = 0
        for row, launch, wait in zip(
            rows, launches, waits(launches, kernels, buffers, offsets), strict=True
        ):
            at = ids.ctypes.data + 8 * position
            row[:] = *entries[launch.kernel], at, kernels[launch.kernel].grid, wait
            position += len(launch.arguments)
        self._memory = rows, ids
        self.address, self.count = Word(rows.ctypes.data), Word(len(launches))


class Frame:
    """What one call at a time needs: the arena and the table of buffer pointers."""

    def __init__(self, count: int, arena: Layout, resident: Mapping[int, np.ndarray]):
        self._arena = aligned(arena.bytes, PAGE)
        self.pointers = (ctypes.c_uint64 * max(count, 1))()
        self.address = Word(ctypes.addressof(self.pointers))
        for index, offset in arena.offsets.items():
            self.pointers[index] = self._arena.ctypes.data + offset
        for index, array in resident.items():
            self.pointers[index] = address_of(array)


class CpuRunner:
    """Runs a program's plan. Calls from several Python threads are safe; each gets its own frame.

    `resident` maps buffer ids to the arrays that stay from call to call: weights as given, and the
    prepared buffers, which are computed here unless they are given too. A weight that only
    `prepare` reads is let go. `code` is the kernels where they are in memory already.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[int, np.ndarray],
        arena: Layout,
        threads: int,
        code: Code | None = None,
    ):
        native()  # now, and not in the first call
        self._program = program
        if code is None:
            from .jit import JitCode  # and with it LLVM, which a saved executable does without

            code = JitCode(program.kernels)
        self.code = code
        self._arena = arena
        self.threads = threads
        self._frames: list[Frame] = []
        prepared = {
            index: new_array(buffer)
            for index, buffer in enumerate(program.buffers)
            if buffer.role == "prepared" and index not in weights
        }
        everything = {**weights, **prepared}
        if program.prepare:
            once = plan_memory(program, program.prepare)
            frame = Frame(len(program.buffers), once, everything)
            self._launch(self._table(program.prepare, once), frame)
        needed = read_by_calls(program)
        self.resident = {index: everything[index] for index in needed if index in everything}
        self._plan = self._table(program.plan, self._arena)

    def _table(self, launches: Sequence[Launch], arena: Layout) -> Table:
        program = self._program
        return Table(
            launches, program.kernels, self.code, program.buffers, arena.offsets, self.threads
        )

    def _launch(self, table: Table, frame: Frame) -> None:
        if table.threads:
            run_launches(table.threads, table.address, table.count, frame.address)

    def run(self, arrays: Mapping[int, np.ndarray]) -> None:
        """Run the plan on arrays for inputs and outputs: row-major, aligned, not overlapping."""
        frame = self._frame(arrays)
        self.launch(frame)
        self.give_back(frame)

    def launch(self, frame: Frame) -> None:
        """Run the plan on the arrays that a frame points to."""
        self._launch(self._plan, frame)

    def profile(self, arrays: Mapping[int, np.ndarray], repeats: int) -> list[float]:
        """Run the plan `repeats` times, launch by launch; the median seconds of each launch.

        A first round is not counted. Each launch ends before the next begins, so the buffers hold
        what they hold in a call.
        """
        from statistics import median  # which takes longer to import than most programs to load

        frame = self._frame(arrays)
        tables = [self._table([launch], self._arena) for launch in self._program.plan]
        times: list[list[float]] = [[] for _ in tables]
        for _ in range(repeats + 1):
            for table, taken in zip(tables, times, strict=True):
                start = time.perf_counter()
                self._launch(table, frame)
                taken.append(time.perf_counter() - start)
        self.give_back(frame)
        return [median(taken[1:]) for taken in times]

    def borrow(self) -> Frame:
        """A frame that no other call has, to be given back."""
        try:
            return self._frames.pop()
        except IndexError:
            return Frame(len(self._program.buffers), self._arena, self.resident)

    def give_back(self, frame: Frame) -> None:
        """Leave a frame to later calls."""
        self._frames.append(frame)

    def _frame(self, arrays: Mapping[int, np.ndarray]) -> Frame:
        """A frame with these arrays in its table."""
        frame = self.borrow()
        for index, array in arrays.items():
            frame.pointers[index] = address_of(array)
        return frame
