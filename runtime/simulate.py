"""The SIMT executor: a GPU program's plan on this CPU, every thread of every block.

    results = simulate(program, {input id: array}, {weight id: array})
    results, counts = simulate_with_counts(program, {input id: array}, {weight id: array})
    counts[0].global_load.sectors, counts[0].shared_load.extra

Every buffer lies between guard bytes that are checked after each launch, and holds NaNs until it is
written; so does shared memory at the start of a block. `reverse=True` runs the last thread first: a
result that changes shows a race in global memory. What else is seen is in `simt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..dialect.dtypes import DTYPES
from ..dialect.errors import Error
from .counters import Counts
from .memory import ALIGNMENT, aligned
from .program import Buffer, Kernel, Launch, Program
from .simt import device_kernel

GUARD = 4096  # bytes before and after each buffer
_CANARY, _UNWRITTEN = 0xC5, 0xFF  # all ones is a NaN in every float format, and -1


def simulate(
    program: Program,
    inputs: Mapping[int, np.ndarray],
    weights: Mapping[int, np.ndarray],
    *,
    reverse: bool = False,
    checked: bool = True,
) -> list[np.ndarray]:
    """The results of a call, in order.

    `checked` looks at each access before it happens, and at the order of those to shared memory;
    without it a kernel that leaves its buffers far enough ends the process. TargetError: a kernel
    uses what is not simulated; Error: it does what no kernel may.
    """
    results, _ = _run(program, inputs, weights, reverse, checked, False)
    return results


def simulate_with_counts(
    program: Program,
    inputs: Mapping[int, np.ndarray],
    weights: Mapping[int, np.ndarray],
    *,
    reverse: bool = False,
) -> tuple[list[np.ndarray], list[Counts]]:
    """The results of a call, and what each launch of the plan did to memory, in order."""
    return _run(program, inputs, weights, reverse, True, True)


def _run(
    program: Program,
    inputs: Mapping[int, np.ndarray],
    weights: Mapping[int, np.ndarray],
    reverse: bool,
    checked: bool,
    counting: bool,
) -> tuple[list[np.ndarray], list[Counts]]:
    cells = [Cell(buffer) for buffer in program.buffers]
    for index, array in {**weights, **inputs}.items():
        np.copyto(cells[index].array, array)
    for launch in program.prepare:
        _launch(program.kernels[launch.kernel], launch, cells, reverse, checked, False)
    counts = [
        _launch(program.kernels[launch.kernel], launch, cells, reverse, checked, counting)
        for launch in program.plan
    ]
    return [cells[index].array.copy() for index in program.outputs], counts


class Cell:
    """A buffer with guard bytes on both sides."""

    def __init__(self, buffer: Buffer):
        self.name = buffer.name
        self._end = GUARD + buffer.bytes
        self._memory = aligned(self._end + GUARD, ALIGNMENT)
        self._memory[:] = _CANARY
        inside = self._memory[GUARD : self._end]
        inside[:] = 0 if buffer.dtype == "bool" else _UNWRITTEN
        self.array = inside.view(DTYPES[buffer.dtype].numpy).reshape(buffer.shape)
        self.address = self._memory.ctypes.data + GUARD

    def breach(self) -> str:
        """Where the guard bytes have changed, in words; empty if they have not."""
        before = np.flatnonzero(self._memory[:GUARD] != _CANARY)
        if before.size:
            return f"{GUARD - int(before[-1])} bytes before its start"
        after = np.flatnonzero(self._memory[self._end :] != _CANARY)
        return f"{int(after[0])} bytes after its end" if after.size else ""


def _launch(
    kernel: Kernel,
    launch: Launch,
    cells: Sequence[Cell],
    reverse: bool,
    checked: bool,
    counting: bool,
) -> Counts:
    if kernel.grid == 0:
        return Counts(kernel.name)
    buffers = [(cells[index].address, cells[index].array.nbytes) for index in launch.arguments]
    code = device_kernel(kernel.name, kernel.llvm_ir, len(kernel.arguments), kernel.target, checked)
    names = [
        f"its argument {position}" + (f" ({cells[index].name!r})" if cells[index].name else "")
        for position, index in enumerate(launch.arguments)
    ]
    counts = code.launch(
        (kernel.blocks, 1, 1),
        (kernel.block, 1, 1),
        buffers,
        shared_bytes=int(kernel.resources.get("dynamic_shared_bytes", 0)),
        reverse=reverse,
        counting=counting,
        names=names,
    )
    for name, index in zip(names, launch.arguments, strict=True):
        breach = cells[index].breach()
        if breach:
            raise Error(f"kernel {kernel.name} wrote outside {name}, {breach}")
    return counts
