"""What the compiler hands to the runtime: kernels, launches and buffers, as plain data.

Program(target="cpu", kernels={"k0": Kernel(...)}, buffers=(Buffer(...), ...),
        plan=(Launch("k0", arguments=(0, 2, 3)),), ...)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..dialect import DTYPES


@dataclass(frozen=True)
class Buffer:
    """A dense, row-major array in memory. Its id is its position in `Program.buffers`.

    A bool takes one byte, 0 or 1. `role` is "input", "output", "weight" (given by the user),
    "prepared" (computed once from weights) or "scratch".
    """

    shape: tuple[int, ...]
    dtype: str
    role: str
    name: str = ""

    @property
    def elements(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def bytes(self) -> int:
        return self.elements * DTYPES[self.dtype].bytes


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel.

    Its arguments are pointers to buffers, inputs first, then outputs. On a CPU it is a C function
    `void name(T0 *a0, T1 *a1, ..., int64_t begin, int64_t end)` that runs the programs of its grid
    with ids in [begin, end); on a GPU a block of threads runs each program, all in x.
    """

    name: str
    target: str
    grid: int  # the number of programs
    block: int  # threads of a block; 1 on a CPU
    arguments: tuple[tuple[tuple[int, ...], str], ...]  # (shape, dtype) of each argument
    outputs: int  # how many of the arguments, the last ones, are written
    fused: tuple[str, ...]  # the operations that it does, in words
    stages: dict[str, str]  # MLIR text: "dodeca", "tile", "llvm"
    llvm_ir: str  # optimised
    binary: bytes  # an object file; for PTX the text itself
    assembly: str = ""  # PTX or ISA; a CPU's where it was written already, as in a file
    resources: dict[str, Any] = field(default_factory=dict)  # registers, spills, shared bytes

    @cached_property
    def text(self) -> str:
        """Assembly, PTX or ISA. A CPU's is written when it is asked for: few ever read it."""
        if self.assembly or not self.llvm_ir:
            return self.assembly
        from .jit import assembly_of  # and with it LLVM

        return assembly_of(self.llvm_ir)

    @property
    def blocks(self) -> int:
        """The number of blocks of a GPU launch."""
        return self.grid


@dataclass(frozen=True)
class Launch:
    """One run of a kernel on buffers, given by their ids in the order of its arguments."""

    kernel: str
    arguments: tuple[int, ...]
    predicted: float = 0.0  # seconds, by the cost model; 0 if unknown


@dataclass(frozen=True)
class Program:
    """A compiled graph. `prepare` runs once, when the weights are there; `plan` on every call."""

    target: str
    kernels: dict[str, Kernel]
    buffers: tuple[Buffer, ...]
    prepare: tuple[Launch, ...]
    plan: tuple[Launch, ...]
    inputs: tuple[int, ...]  # buffer ids in the order of the caller's arguments
    outputs: tuple[int, ...]  # buffer ids in the order of the results; an input may be one of them
    weights: dict[str, int]  # weight name -> buffer id
    stages: dict[str, str]  # MLIR text of the whole module: "dodeca", "kernels"
    report: dict[str, Any] = field(default_factory=dict)
