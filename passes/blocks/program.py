"""The programs of a GPU's grid: each is run by a block of threads, which hold local buffers in
registers and carry them through loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from mlir import ir
from mlir.dialects import arith, gpu, scf

from ...dialect.errors import CompileError
from ..emitter import index_value
from ..index import Axis
from ..program import Places, Program
from ..stage import Phase, Step
from .contraction import MatrixEmitter, layouts_of
from .threads import Block, BlockLoop

SHARED = "dodeca.shared"  # on a GPU's: how many bytes the threads of a block share


def block_function(name: str, arguments: str, attributes: str, threads: int) -> str:
    """The text of a module with an empty function, which blocks of so many threads run."""
    return (
        f"module attributes {{gpu.container_module}} {{ gpu.module @kernels {{ gpu.func "
        f"@{name}({arguments}) kernel attributes {{{attributes}, known_block_size = "
        f"array<i32: {threads}, 1, 1>}} {{ gpu.return }} }} }}"
    )


@dataclass
class BlockProgram(Program):
    """What the threads of a block do of a program: they hold local buffers in registers."""

    def run(self, block: ir.Block) -> None:
        self.block.begin()
        self._steps(gpu.block_id(gpu.Dimension.x))
        size = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), self.block.shared_bytes)
        block.owner.attributes[SHARED] = size

    @cached_property
    def block(self) -> Block:
        """The threads that run a program."""
        threads = self.schedule.warps * self.target.warp
        if not threads:
            raise CompileError(
                f"the schedule has no warps, and {self.target.name} runs blocks of them"
            )
        return Block(self.target, threads, layouts_of(self.staged, self.schedule, self.target))

    @property
    def zero(self) -> ir.Value:
        return self.block.digits(())  # before all loops

    def _turns(self, phase: Phase, low: ir.Value, high: ir.Value, outer: Places) -> None:
        """A loop that carries what the threads hold, and a turn changes."""
        axis = phase.axis
        assert axis is not None
        held, changed = self.block.held, {n: None for step in phase.steps for n in step.buffers}
        names = [name for name in changed if name in held]
        first = arith.minsi(low, index_value(phase.stop - phase.step))
        loop = scf.ForOp(low, high, index_value(phase.step), [held[n][1] for n in names])
        self.block.loop = BlockLoop(axis, loop, first, high, phase.step)
        with ir.InsertionPoint(loop.body):
            held |= {n: (held[n][0], x) for n, x in zip(names, loop.inner_iter_args, strict=True)}
            self._phase(phase, {**outer, axis: loop.induction_variable})
            scf.YieldOp([held[n][1] for n in names])
        held |= {n: (held[n][0], x) for n, x in zip(names, loop.results, strict=True)}
        for wait in self.block.loop.waits:  # only the copies after its own may be on their way
            kind = ir.IntegerType.get_signless(32)
            wait.attributes["n"] = ir.IntegerAttr.get(kind, len(self.block.loop.waits) - 1)
        self.block.loop = None

    def _phase(self, phase: Phase, outer: Places) -> None:
        self.block.arrays.clear()  # what the phase before has shared is free
        super()._phase(phase, outer)

    def _emit(self, step: Step, starts: dict[Axis, ir.Value]) -> None:
        blocks = {a: self.schedule.block(a) for a in self.kernel.axes}
        multiples = {a: gcd(n, a.size) if n < a.size else 0 for a, n in blocks.items()}
        for a in (a for a in self.kernel.axes if a.name in self.schedule.order):  # and tiles in it
            multiples[a] = gcd(multiples[a], self.schedule.tile(a), blocks[a])
        for phase in self.staged.phases:  # of what a loop of blocks stands at, and of a block
            multiples |= {phase.axis: phase.step} if phase.axis else {}
        if self.schedule.fold:
            of_block = {a.name: n for a, n in multiples.items()}
            multiples |= {a: of_block[a.name] for a in self.staged.outer} | dict.fromkeys(
                step.axes, 0
            )
        MatrixEmitter(step, self.arguments, self.contract, self.block, multiples).run(starts)
