"""`dodeca-tile`: from a kernel and its schedule to a tile program in upstream MLIR.

In: a function in the dodeca dialect (its schedule an attribute, else the cost model's best). Out: a
function over memrefs in `scf`, `arith`, `math`, `vector` and `memref`. Every part of the kernel's
term is one tile value: a vector whose dimensions are the part's axes that have a tile of more than
1, a scalar if there is none.

    func.func @k(%a0: memref<64x32xf32>, %a1: memref<64xf32>, %begin: index, %end: index) {
      scf.for %program = %begin to %end step %c1 { ... }         the grid of a CPU
      memref's last axis is the vector's: vector.load, arith, scf.for over reductions, vector.store

On a GPU the function is a `gpu.func`, and a block of threads runs a program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from mlir import ir
from mlir.dialects import arith, gpu, memref, scf

from ..dialect.errors import CompileError
from ..dialect.ops import TensorType
from ..dialect.verifier import walk
from . import cost, terms
from .blocks import Block, BlockLoop
from .collapse import shaped
from .comprehend import Comprehension, output_axes, static_shape
from .contraction import MatrixEmitter, layouts_of
from .emitter import Emitter, evaluate, index_value
from .fuse import SCHEDULE, read_schedule
from .index import Axis, of_axis
from .placement import deep_recursion
from .schedule import Schedule
from .stage import OUTPUT, Phase, Staged, Step
from .targets import Target
from .terms import Term

GRID = "dodeca.grid"  # on a tile function: how many programs there are
SHARED = "dodeca.shared"  # on a GPU's: how many bytes the threads of a block share


@dataclass(frozen=True)
class KernelTerm:
    """A kernel read from its function: what it stores, where, and from which buffers."""

    name: str
    term: Term
    axes: tuple[Axis, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


def read_kernel(function: ir.Operation) -> KernelTerm:
    """The term of a kernel function; the axes of its results are the first ones of its axes."""
    block = function.regions[0].blocks[0]
    results = list(block.operations[len(block.operations) - 1].operands)
    name = ir.StringAttr(function.attributes["sym_name"]).value
    names = {v: f"a{i}" for i, v in enumerate(block.arguments)}
    comprehension = Comprehension(names.get)
    shapes = [static_shape(v) for v in results]
    wholes = [comprehension.whole(v) for v in results]
    term = terms.results(list(zip(wholes, map(len, shapes), strict=True)))
    longest = max(shapes, key=len)
    if any(shape != longest[: len(shape)] for shape in shapes):
        raise CompileError(
            f"kernel {name} has results of shapes {shapes}; their first sizes must be the same"
        )
    inputs, outputs = (tuple(map(TensorType.of, vs)) for vs in (block.arguments, results))
    return KernelTerm(name, term, output_axes(longest), inputs, outputs)


def kernel_schedule(
    function: ir.Operation, kernel: KernelTerm, target: Target, strict: bool
) -> Schedule:
    """The schedule in the function's attribute, or the cost model's best."""
    if SCHEDULE in function.attributes:
        return read_schedule(function.attributes[SCHEDULE], kernel.axes)
    return cost.cheapest(terms.rolled(kernel.term), kernel.axes, target, strict)[1]


def tile(function: ir.Operation, kernel: KernelTerm, target: Target, precision: str) -> ir.Module:
    """The tile program of one kernel function, in a module of its own."""
    with function.context, function.location:
        schedule = kernel_schedule(function, kernel, target, precision == "strict")
        term, axes = shaped(kernel.term, kernel.axes, schedule.names)
        kernel = replace(kernel, term=term, axes=axes)
        module, block, arguments = _shell(kernel, schedule, target)
        kind = _BlockProgram if target.is_gpu else _Program
        program = kind(kernel, schedule, arguments, target, contract=precision == "fast")
        if schedule.programs(axes):  # of no places there is nothing to store
            with ir.InsertionPoint(block.operations[len(block.operations) - 1]), deep_recursion():
                program.run(block)
    return module


def memory_type(kind: TensorType) -> str:
    """The memref of a buffer, which MLIR lowers only if it has elements; a bool takes a byte, and
    integers have no sign in memory."""
    element = {"bool": "i8", "uint8": "i8"}.get(kind.dtype.name, kind.dtype.mlir)
    return "memref<" + "".join(f"{n or 1}x" for n in kind.shape) + element + ">"


def _shell(
    kernel: KernelTerm, schedule: Schedule, target: Target
) -> tuple[ir.Module, ir.Block, dict[str, ir.Value]]:
    """An empty function with the kernel's arguments."""
    buffers = {f"a{i}": kind for i, kind in enumerate(kernel.inputs)}
    buffers |= {f"{OUTPUT}{i}": kind for i, kind in enumerate(kernel.outputs)}
    attributes = "" if target.is_gpu else " {llvm.noalias}"
    seen = {t.attr[0]: t.attr[2] for t in terms.postorder([kernel.term]) if t.op == "load"}
    for i, (_, rank) in enumerate(terms.outcomes(kernel.term, len(kernel.axes))):
        seen[f"{OUTPUT}{i}"] = tuple(a.size for a in kernel.axes[:rank])
    types = ((n, TensorType(seen.get(n, k.shape), k.dtype)) for n, k in buffers.items())
    given = [f"%{name}: {memory_type(kind)}{attributes}" for name, kind in types]
    grid = f"{GRID} = {schedule.programs(kernel.axes)} : i64"
    if target.is_gpu:
        text = (
            f"module attributes {{gpu.container_module}} {{ gpu.module @kernels {{ gpu.func "
            f"@{kernel.name}({', '.join(given)}) kernel attributes {{{grid}, known_block_size = "
            f"array<i32: {schedule.warps * target.warp}, 1, 1>}} {{ gpu.return }} }} }}"
        )
    else:
        inside = ", ".join([*given, "%begin: index", "%end: index"])
        text = f"func.func @{kernel.name}({inside}) attributes {{{grid}}} {{ func.return }}"
    module = ir.Module.parse(text)
    function = next(op for op in walk(module.operation) if GRID in op.attributes)
    block = function.regions[0].blocks[0]
    return module, block, dict(zip(buffers, block.arguments, strict=False))


@dataclass
class _Program:
    """The grid, and what a program does: it stores the kernel's term, or runs a stage's steps."""

    kernel: KernelTerm
    schedule: Schedule
    arguments: dict[str, ir.Value]
    target: Target
    contract: bool

    def run(self, block: ir.Block) -> None:
        """Emit the function's body."""
        begin, end = list(block.arguments)[-2:]
        staged = self._with_buffers(self.staged)
        loop = scf.ForOp(begin, end, index_value(1))
        with ir.InsertionPoint(loop.body):
            self._steps(staged, loop.induction_variable)
            scf.YieldOp([])

    @cached_property
    def staged(self) -> Staged:
        """What a program does; without folds it is one step."""
        axes, term = self.kernel.axes, self.kernel.term
        if self.schedule.fold:
            return cost.staging(terms.rolled(term), axes, self.schedule, self.target)
        names = tuple(f"{OUTPUT}{i}" for i in range(len(self.kernel.outputs)))
        step = Step(names, tuple(map(of_axis, axes)), axes, term, self.schedule)
        return Staged((), {}, (Phase((step,)),))

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

    def _with_buffers(self, staged: Staged) -> Staged:
        """The same, its local buffers allocated."""
        for name, (shape, dtype) in staged.buffers.items():
            kind = ir.MemRefType(ir.Type.parse(memory_type(TensorType(shape, dtype))))
            self.arguments[name] = memref.alloca(kind, [], [], alignment=64)
        return staged

    def _steps(self, staged: Staged, program: ir.Value) -> None:
        starts = self._starts(program)
        if self.schedule.fold:
            of_name = {a.name: start for a, start in starts.items()}
            outer = {a: of_name[a.name] for a in staged.outer}
        else:
            outer = starts
        for phase in staged.phases:
            if phase.axis is None:
                self._phase(phase, outer)
            else:
                self._loop(phase, phase.axis, outer)

    def _loop(self, phase: Phase, axis: Axis, outer: dict[Axis, ir.Value]) -> None:
        """The blocks of an axis, from the first that may change something to the last."""
        low, high = index_value(phase.start), index_value(phase.stop)
        if phase.low is not None:  # blocks begin at multiples of the step
            first = arith.maxsi(evaluate(phase.low, outer.__getitem__, index_value), low)
            by = index_value(phase.step)
            low = arith.muli(arith.divui(first, by), by)
        if phase.high is not None:
            high = arith.minsi(evaluate(phase.high, outer.__getitem__, index_value), high)
        self._turns(phase, axis, low, high, outer)

    def _turns(
        self, phase: Phase, axis: Axis, low: ir.Value, high: ir.Value, outer: dict[Axis, ir.Value]
    ) -> None:
        loop = scf.ForOp(low, high, index_value(phase.step))
        with ir.InsertionPoint(loop.body):
            self._phase(phase, {**outer, axis: loop.induction_variable})
            scf.YieldOp([])

    def _phase(self, phase: Phase, outer: dict[Axis, ir.Value]) -> None:
        for step in phase.steps:
            inside = {a: self._zero() for a in step.axes if a not in outer}
            self._emit(step, {**outer, **inside})

    def _zero(self) -> ir.Value:
        return index_value(0)


@dataclass
class _BlockProgram(_Program):
    """What the threads of a block do of a program: they hold local buffers in registers."""

    def run(self, block: ir.Block) -> None:
        self.block.begin()
        self._steps(self.staged, gpu.block_id(gpu.Dimension.x))
        size = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), self.block.shared_bytes)
        block.owner.attributes[SHARED] = size

    @cached_property
    def block(self) -> Block:
        """The threads that run a program."""
        threads = self.schedule.warps * self.target.warp
        return Block(self.target, threads, layouts_of(self.staged, self.schedule, self.target))

    def _zero(self) -> ir.Value:
        return self.block.digits(())  # before all loops

    def _turns(
        self, phase: Phase, axis: Axis, low: ir.Value, high: ir.Value, outer: dict[Axis, ir.Value]
    ) -> None:
        """A loop that carries what the threads hold, and a turn changes."""
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

    def _emit(self, step: Step, starts: dict[Axis, ir.Value]) -> None:
        blocks = {a: self.schedule.block(a) for a in self.kernel.axes}
        multiples = {a: gcd(n, a.size) if n < a.size else 0 for a, n in blocks.items()}
        for phase in self.staged.phases:  # of what a loop of blocks stands at, and of a block
            multiples |= {phase.axis: phase.step} if phase.axis else {}
        if self.schedule.fold:
            of_block = {a.name: n for a, n in multiples.items()}
            multiples |= {a: of_block[a.name] for a in self.staged.outer} | dict.fromkeys(
                step.axes, 0
            )
        MatrixEmitter(step, self.arguments, self.contract, self.block, multiples).run(starts)
