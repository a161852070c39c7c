"""The SIMT executor: a GPU program's plan on this CPU, one thread after the other.

    results = simulate(program, {input id: array}, {weight id: array})

Every buffer lies between guard bytes that are checked after each launch, and holds NaNs until it is
written. `reverse=True` runs the last thread first: a result that changes shows a race.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

import llvmlite.binding as llvm
import numpy as np

from ..dialect.dtypes import DTYPES
from ..dialect.errors import CompileError, Error, TargetError
from .host_ir import COORDINATES, to_host
from .jit import compile_for_host, load_objects
from .memory import ALIGNMENT, aligned
from .program import Buffer, Kernel, Launch, Program

GUARD = 4096  # bytes before and after each buffer
_CANARY, _UNWRITTEN = 0xC5, 0xFF  # all ones is a NaN in every float format, and -1
_BLOCK_LIMIT = 1024  # threads of a block, on every GPU so far

_ENTRY = """
define void @sim.entry(ptr %table, i64 %blocks, i64 %block, i64 %reverse,
                       ptr %implicit, ptr %dispatch) {
entry:
LOADS
  %total = mul i64 %blocks, %block
  %last = sub i64 %total, 1
  %sim.ntid = trunc i64 %block to i32
  %sim.nctaid = trunc i64 %blocks to i32
  %backwards = icmp ne i64 %reverse, 0
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %total
  br i1 %more, label %body, label %out
body:
  %mirrored = sub i64 %last, %i
  %thread = select i1 %backwards, i64 %mirrored, i64 %i
  %block.id = udiv i64 %thread, %block
  %thread.id = urem i64 %thread, %block
  %sim.ctaid = trunc i64 %block.id to i32
  %sim.tid = trunc i64 %thread.id to i32
  %sim.implicitarg = getelementptr i8, ptr %implicit, i64 0
  %sim.dispatch = getelementptr i8, ptr %dispatch, i64 0
  call void @"NAME"(ARGUMENTS)
  %next = add i64 %i, 1
  br label %head
out:
  ret void
}
"""


def simulate(
    program: Program,
    inputs: Mapping[int, np.ndarray],
    weights: Mapping[int, np.ndarray],
    *,
    reverse: bool = False,
) -> list[np.ndarray]:
    """The results of a call, in order. TargetError: a kernel whose threads are not independent."""
    cells = [Cell(buffer) for buffer in program.buffers]
    for index, array in {**weights, **inputs}.items():
        np.copyto(cells[index].array, array)
    for launch in (*program.prepare, *program.plan):
        _launch(program.kernels[launch.kernel], launch, cells, reverse)
    return [cells[index].array.copy() for index in program.outputs]


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


def _launch(kernel: Kernel, launch: Launch, cells: Sequence[Cell], reverse: bool) -> None:
    if kernel.grid == 0:
        return
    if kernel.block > _BLOCK_LIMIT:
        raise Error(
            f"kernel {kernel.name}: a block of {kernel.block} threads; at most {_BLOCK_LIMIT}"
        )
    code = _code(kernel.name, kernel.llvm_ir, len(kernel.arguments))
    table = (ctypes.c_uint64 * max(1, len(launch.arguments)))()
    table[: len(launch.arguments)] = [cells[index].address for index in launch.arguments]
    code.run(ctypes.addressof(table), kernel.blocks, kernel.block, reverse)
    for position, index in enumerate(launch.arguments):
        breach = cells[index].breach()
        if breach:
            name = f" ({cells[index].name!r})" if cells[index].name else ""
            raise Error(
                f"kernel {kernel.name} wrote outside its argument {position}{name}, {breach}"
            )


class _Code:
    """A kernel in executable memory, with a loop over its threads."""

    def __init__(self, name: str, llvm_ir: str, arguments: int):
        host = to_host(llvm_ir, name)
        try:
            module = llvm.parse_assembly(host)
        except RuntimeError as error:
            raise CompileError(f"simulate: kernel {name}: {error}\n{host}") from error
        own = list(module.get_function(name).arguments)[: -len(COORDINATES)]
        if len(own) != arguments or any(str(one.type) != "ptr" for one in own):
            found = ", ".join(str(one.type) for one in own)
            raise TargetError(f"kernel {name}: expected {arguments} pointers, its IR has ({found})")
        module.link_in(llvm.parse_assembly(_entry(name, arguments)))
        self._engine = load_objects([compile_for_host(module, name)])
        address = self._engine.get_function_address("sim.entry")
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._entry = ctypes.CFUNCTYPE(None, pointer, number, number, number, pointer, pointer)(
            address
        )

    def run(self, table: int, blocks: int, block: int, reverse: bool) -> None:
        # What AMD's runtime passes to a kernel: hidden arguments (code object version 5) and the
        # dispatch packet of HSA; of both, the sizes of the grid.
        implicit = ctypes.create_string_buffer(
            struct.pack("<3I3H3H", blocks, 1, 1, block, 1, 1, 0, 0, 0), 256
        )
        packet = ctypes.create_string_buffer(
            struct.pack("<2H3HH3I", 0, 1, block, 1, 1, 0, blocks * block, 1, 1), 64
        )
        self._entry(table, blocks, block, reverse, implicit, packet)


@lru_cache(maxsize=256)
def _code(name: str, llvm_ir: str, arguments: int) -> _Code:
    return _Code(name, llvm_ir, arguments)


def _entry(name: str, arguments: int) -> str:
    loads = []
    for i in range(arguments):
        loads.append(f"  %at{i} = getelementptr ptr, ptr %table, i64 {i}")
        loads.append(f"  %a{i} = load ptr, ptr %at{i}")
    kinds = ["ptr"] * arguments + [kind for kind, _ in COORDINATES]
    values = [f"%a{i}" for i in range(arguments)] + [value for _, value in COORDINATES]
    passed = ", ".join(f"{kind} {value}" for kind, value in zip(kinds, values, strict=True))
    text = _ENTRY.replace("LOADS", "\n".join(loads)).replace("ARGUMENTS", passed)
    return text.replace("NAME", name) + f'\ndeclare void @"{name}"({", ".join(kinds)})\n'
