"""What the programs of a kernel's grid do: `scf` around the tile values of their steps (`emitter`).

scf.for %program = %begin to %end        the grid of a CPU
  scf.for over blocks of an axis         where one loop runs all folds (`stage`)
    steps
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mlir import ir
from mlir.dialects import arith, memref, scf

from ..dialect.ops import TensorType
from . import cost, terms
from .emitter import Emitter, evaluate, index_value
from .index import Axis, of_axis
from .schedule import Schedule
from .stage import OUTPUT, Phase, Staged, Step
from .targets import Target
from .terms import Term

Places = dict[Axis, ir.Value]  # where axes begin


@dataclass(frozen=True)
class KernelTerm:
    """A kernel read from its function: what it stores, where, and from which buffers."""

    name: str
    term: Term
    axes: tuple[Axis, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


def memory_type(kind: TensorType) -> str:
    """The memref of a buffer, which MLIR lowers only if it has elements; a bool takes a byte, and
    integers have no sign in memory."""
    element = {"bool": "i8", "uint8": "i8"}.get(kind.dtype.name, kind.dtype.mlir)
    return "memref<" + "".join(f"{n or 1}x" for n in kind.shape) + element + ">"


@dataclass
class Program:
    """The grid, and what a program does: it stores the kernel's term, or runs a stage's steps."""

    kernel: KernelTerm
    schedule: Schedule
    arguments: dict[str, ir.Value]
    target: Target
    contract: bool
    zero = property(lambda self: index_value(0))  # where the axes of a step begin

    def run(self, block: ir.Block) -> None:
        """Emit the function's body."""
        for name, (shape, dtype) in self.staged.buffers.items():
            kind = ir.MemRefType(ir.Type.parse(memory_type(TensorType(shape, dtype))))
            self.arguments[name] = memref.alloca(kind, [], [], alignment=64)
        loop = scf.ForOp(block.arguments[-2], block.arguments[-1], index_value(1))
        with ir.InsertionPoint(loop.body):
            self._steps(loop.induction_variable)
            scf.YieldOp([])

    @cached_property
    def staged(self) -> Staged:
        """What a program does; without folds it is one step."""
        axes, term = self.kernel.axes, self.kernel.term
        if self.schedule.fold:
            return cost.staging(terms.rolled(term), axes, self.schedule, self.target)
        names = tuple(f"{OUTPUT}{i}" for i in range(len(self.kernel.outputs)))
        step = Step(names, tuple(map(of_axis, axes)), axes, term, self.schedule)
        return Staged(axes, {}, (Phase((step,)),))

    def _emit(self, step: Step, starts: dict[Axis, ir.Value]) -> None:
        Emitter(step, self.arguments, self.contract).run(starts)

    def _starts(self, program: ir.Value) -> dict[Axis, ir.Value]:
        """Where this program's block starts along each axis; the last one ends at the edge."""
        starts: dict[Axis, ir.Value] = {}
        for axis in reversed(self.kernel.axes):
            block = self.schedule.block(axis)
            count = -(-axis.size // block)
            if count == 1:
                starts[axis] = index_value(0)
                continue
            number = arith.remui(program, index_value(count))
            program = arith.divui(program, index_value(count))
            start = arith.muli(number, index_value(block)) if block > 1 else number
            if axis.size % block:
                start = arith.minui(start, index_value(axis.size - block))
            starts[axis] = start
        return starts

    def _steps(self, program: ir.Value) -> None:
        starts = {a.name: start for a, start in self._starts(program).items()}
        outer = {a: starts[a.name] for a in self.staged.outer}
        for phase in self.staged.phases:
            if phase.axis is None:
                self._phase(phase, outer)
            else:
                self._loop(phase, outer)

    def _loop(self, phase: Phase, outer: Places) -> None:
        """The blocks of an axis, from the first that may change something to the last."""
        low, high = index_value(phase.start), index_value(phase.stop)
        if phase.low is not None:  # blocks begin at multiples of the step
            first = arith.maxsi(evaluate(phase.low, outer.__getitem__, index_value), low)
            by = index_value(phase.step)
            low = arith.muli(arith.divui(first, by), by)
        if phase.high is not None:
            high = arith.minsi(evaluate(phase.high, outer.__getitem__, index_value), high)
        self._turns(phase, low, high, outer)

    def _turns(self, phase: Phase, low: ir.Value, high: ir.Value, outer: Places) -> None:
        loop = scf.ForOp(low, high, index_value(phase.step))
        with ir.InsertionPoint(loop.body):
            assert phase.axis is not None
            self._phase(phase, {**outer, phase.axis: loop.induction_variable})
            scf.YieldOp([])

    def _phase(self, phase: Phase, outer: Places) -> None:
        for step in phase.steps:
            inside = {a: self.zero for a in step.axes if a not in outer}
            self._emit(step, {**outer, **inside})
