"""A program on this CPU: its object code in memory, its buffers, one native call for the plan.

runner = CpuRunner(program, {weight id: array}, threads=2)
runner.run({input id: array, output id: array})
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Mapping, Sequence

import llvmlite.binding as llvm
import numpy as np

from ..dialect.dtypes import DTYPES
from ..dialect.errors import ArgumentError
from .driver import available_cores, native, pool
from .environment import flag
from .jit import compile_for_host, load_objects
from .memory import PAGE, Layout, aligned, plan_memory, waits
from .program import Buffer, Kernel, Launch, Program


def thread_count(threads: int | None = None) -> int:
    """How many threads to use: what the user said, else OMP_NUM_THREADS, else the cores we have."""
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ArgumentError(f"threads: expected a whole number of at least 1, got {threads!r}")
        return threads
    asked = flag("OMP_NUM_THREADS").split(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) > 0 else available_cores()


def _trampoline(kernel: Kernel) -> str:
    """LLVM IR that gives a kernel its pointers: (buffer table, argument ids, begin, end)."""
    count = len(kernel.arguments)
    lines = [f'declare void @"{kernel.name}"({"ptr, " * count}i64, i64)']
    lines += [f'define void @"call.{kernel.name}"(ptr %table, ptr %ids, i64 %begin, i64 %end) {{']
    for i in range(count):
        lines += [
            f"  %at{i} = getelementptr i64, ptr %ids, i64 {i}",
            f"  %id{i} = load i64, ptr %at{i}",
            f"  %slot{i} = getelementptr ptr, ptr %table, i64 %id{i}",
            f"  %a{i} = load ptr, ptr %slot{i}",
        ]
    pointers = "".join(f"ptr %a{i}, " for i in range(count))
    lines += [f'  call void @"{kernel.name}"({pointers}i64 %begin, i64 %end)', "  ret void", "}"]
    return "\n".join(lines)


class Code:
    """Kernels in executable memory. `address[name]` is the kernel's trampoline."""

    def __init__(self, kernels: Mapping[str, Kernel]):
        text = "\n".join(_trampoline(kernel) for kernel in kernels.values())
        objects = [kernel.binary for kernel in kernels.values()]
        objects.append(compile_for_host(llvm.parse_assembly(text), "trampolines", optimise=False))
        self._engine = load_objects(objects)
        self.address = {
            name: self._engine.get_function_address(f"call.{kernel.name}")
            for name, kernel in kernels.items()
        }


class Table:
    """Launches as the driver reads them: code, argument ids, grid, whether to wait."""

    def __init__(
        self,
        launches: Sequence[Launch],
        kernels: Mapping[str, Kernel],
        code: Code,
        buffers: Sequence[Buffer],
        offsets: Mapping[int, int],
    ):
        self.count = len(launches)
        self.widest = max((kernels[launch.kernel].grid for launch in launches), default=0)
        ids = np.array([i for launch in launches for i in launch.arguments], np.int64)
        rows = np.zeros((len(launches), 4), np.int64)
        position = 0
        for row, launch, wait in zip(
            rows, launches, waits(launches, kernels, buffers, offsets), strict=True
        ):
            at = ids.ctypes.data + 8 * position
            row[:] = code.address[launch.kernel], at, kernels[launch.kernel].grid, wait
            position += len(launch.arguments)
        self._memory = rows, ids
        self.address = rows.ctypes.data


class Frame:
    """What one call at a time needs: the arena and the table of buffer pointers."""

    def __init__(self, count: int, arena: Layout, resident: Mapping[int, np.ndarray]):
        self._arena = aligned(arena.bytes, PAGE)
        self.pointers = (ctypes.c_uint64 * max(count, 1))()
        self.address = ctypes.addressof(self.pointers)
        for index, offset in arena.offsets.items():
            self.pointers[index] = self._arena.ctypes.data + offset
        for index, array in resident.items():
            self.pointers[index] = array.ctypes.data


class CpuRunner:
    """Runs a program's plan. Calls from several Python threads are safe; each gets its own frame.

    `resident` maps buffer ids to the arrays that stay from call to call: weights as given, and the
    prepared buffers, which are computed here. A weight that only `prepare` reads is let go.
    """

    def __init__(
        self, program: Program, weights: Mapping[int, np.ndarray], arena: Layout, threads: int
    ):
        native()  # now, and not in the first call
        self._program = program
        self._code = Code(program.kernels)
        self._arena = arena
        self.threads = threads
        self._frames: list[Frame] = []
        prepared = {
            index: aligned(buffer.bytes).view(DTYPES[buffer.dtype].numpy).reshape(buffer.shape)
            for index, buffer in enumerate(program.buffers)
            if buffer.role == "prepared"
        }
        everything = {**weights, **prepared}
        if program.prepare:
            once = plan_memory(program, program.prepare)
            frame = Frame(len(program.buffers), once, everything)
            self._launch(self._table(program.prepare, once), frame)
        needed = {i for launch in program.plan for i in launch.arguments} | {*program.outputs}
        self.resident = {index: everything[index] for index in needed if index in everything}
        self._plan = self._table(program.plan, self._arena)

    def _table(self, launches: Sequence[Launch], arena: Layout) -> Table:
        program = self._program
        return Table(launches, program.kernels, self._code, program.buffers, arena.offsets)

    def _launch(self, table: Table, frame: Frame) -> None:
        threads = min(self.threads, table.widest)
        if threads > 1:
            team = pool(threads)
            with team.lock:
                team.run(table.address, table.count, frame.address)
        elif threads == 1:
            native().alone(table.address, table.count, frame.address)

    def run(self, arrays: Mapping[int, np.ndarray]) -> None:
        """Run the plan on arrays for inputs and outputs: row-major, aligned, not overlapping."""
        frame = self._frame(arrays)
        self._launch(self._plan, frame)
        self._frames.append(frame)

    def profile(self, arrays: Mapping[int, np.ndarray], repeats: int) -> list[float]:
        """Run the plan `repeats` times, launch by launch; the median seconds of each launch.

        A first round is not counted. Each launch ends before the next begins, so the buffers hold
        what they hold in a call.
        """
        frame = self._frame(arrays)
        tables = [self._table([launch], self._arena) for launch in self._program.plan]
        times: list[list[float]] = [[] for _ in tables]
        for _ in range(repeats + 1):
            for table, taken in zip(tables, times, strict=True):
                start = time.perf_counter()
                self._launch(table, frame)
                taken.append(time.perf_counter() - start)
        self._frames.append(frame)
        return [statistics.median(taken[1:]) for taken in times]

    def _frame(self, arrays: Mapping[int, np.ndarray]) -> Frame:
        """A frame with these arrays in its table."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Frame(len(self._program.buffers), self._arena, self.resident)
        for index, array in arrays.items():
            frame.pointers[index] = array.__array_interface__["data"][0]
        return frame
