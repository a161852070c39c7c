"""The way down, in one function, in reading order: a module in, machine code and a plan out.

program = compile_module(graph.module, target="cpu")
program.kernels["k0_contract"].text          # assembly
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from mlir import ir

from .codegen import generate, to_llvm_ir
from .compile import PRECISIONS
from .dialect.errors import CompileError, Error
from .dialect.ops import NAME, WEIGHT, TensorType, context, entry_function, named_arguments
from .dialect.verifier import verify, walk
from .fusion import PREDICTED, fuse
from .pass_pipeline import Pipeline, build_pipeline
from .passes.blocks.program import SHARED
from .passes.index import Axis
from .passes.targets import Target
from .passes.terms import Term, postorder
from .passes.tile import GRID, read_kernel, tile
from .runtime.device import find_target
from .runtime.program import Buffer, Kernel, Launch, Program
from .schedule_attribute import kernel_schedule


def compile_module(module: ir.Module, *, target: str = "cpu", precision: str = "fast") -> Program:
    """Compile the module's first function.

    Args:
        module: a module in the dodeca dialect; arguments with `dodeca.weight` are weights.
        target: a name from `targets.TARGETS`.
        precision: "strict" keeps the interpreter's order of operations, "fast" may reassociate.

    Raises:
        VerifyError: the module breaks a rule of the dialect.
        TargetError: the target is unknown.
        CompileError: a stage failed; the message names it.
    """
    if precision not in PRECISIONS:
        raise Error(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
    chosen, clock = find_target(target), Clock()
    with module.context, ir.Location.unknown():
        work = simplified(module, clock)
        fused = fuse(work.operation, chosen, precision)
        clock.mark("fuse")
        verify(fused.module)
    facts = {"precision": precision, "regions": fused.regions}
    return compile_kernels(fused.module, str(module), chosen, precision, clock, facts)


def simplified(module: ir.Module, clock: Clock) -> ir.Module:
    """A copy of a module that was verified, after the first pass; in the module's context."""
    verify(module)
    work = ir.Module.parse(str(module.operation.get_asm(enable_debug_info=True)))
    build_pipeline("dodeca-simplify", module.context).run(work)
    clock.mark("simplify")
    return work


def compile_kernels(
    module: ir.Module,
    source: str,
    target: Target,
    precision: str,
    clock: Clock,
    facts: dict,
    known: dict[str, Kernel] | None = None,
) -> Program:
    """The program of a module of kernels, as `fuse` makes it; `source` is the graph's own text.

    `facts` go into the report. Kernels whose text is among `known` are not compiled again; all are
    noted there.
    """
    known = {} if known is None else known
    with module.context, ir.Location.unknown():
        functions = {str(op): op.operation for op in list(module.body.operations)[1:]}
        missing = {text: op for text, op in functions.items() if text not in known}
        made = _compile_all(missing, target, precision, clock)
        known.update(zip(missing, made, strict=True))
        kernels = {kernel.name: kernel for kernel in (known[text] for text in functions)}
        planned = _Planner(module, kernels)
        return Program(
            target=target.name,
            kernels=kernels,
            buffers=tuple(planned.buffers),
            prepare=tuple(planned.prepare),
            plan=tuple(planned.plan),
            inputs=tuple(planned.inputs),
            outputs=tuple(planned.outputs),
            weights=planned.weights,
            stages={"dodeca": source, "kernels": str(module)},
            report={"seconds": clock.seconds, **facts},
        )


def _compile_all(
    functions: Mapping[str, ir.Operation], target: Target, precision: str, clock: Clock
) -> list[Kernel]:
    """The kernels of functions, by their texts. LLVM makes the code of one while the next are
    lowered.

    It runs in one other thread: llvmlite lets no second one in, and gives Python's lock back, which
    MLIR's passes hold.
    """
    llvm, passes = ThreadPoolExecutor(1, "llvm"), _lowering(target)
    try:
        lowered = (
            _lowered_kernel(function, text, target, precision, clock, passes)
            for text, function in functions.items()
        )
        waiting = [llvm.submit(_with_code, kernel, target) for kernel in lowered]
        kernels = [one.result() for one in waiting]
    finally:
        llvm.shutdown(cancel_futures=True)
    clock.mark("generate")
    return kernels


def compile_kernel(
    function: ir.Operation, target: Target, precision: str, clock: Clock, readable: bool = True
) -> Kernel:
    """One kernel function: tile program, LLVM dialect, LLVM IR, machine code.

    Unless it is to be `readable`, the stages in between are left out.
    """
    lowered = _lowered_kernel(function, str(function), target, precision, clock, None, readable)
    kernel = _with_code(lowered, target)
    clock.mark("generate")
    return kernel if readable else replace(kernel, llvm_ir="")


def _lowered_kernel(
    function: ir.Operation,
    text: str,
    target: Target,
    precision: str,
    clock: Clock,
    passes: Pipeline | None = None,
    readable: bool = True,
) -> Kernel:
    """A kernel function of this text down to LLVM IR: the Kernel without its code."""
    kernel = read_kernel(function)
    schedule = kernel_schedule(function, kernel, target, precision == "strict")
    tiled = tile(kernel, schedule, target, precision, function.location)
    grid, block, shared = _launch_of(tiled)
    before, stages = str(tiled), {"dodeca": text}
    clock.mark("tile")
    lower(tiled.operation, target, before, passes)
    if readable:
        stages |= {"tile": before, "llvm": str(tiled)}
    llvm_ir = to_llvm_ir(tiled.operation, target)
    clock.mark("lower")
    kinds = [*kernel.inputs, *kernel.outputs]
    return Kernel(
        name=kernel.name,
        target=target.name,
        grid=grid,
        block=block,
        arguments=tuple((shape_of(k), k.dtype.name) for k in kinds),
        outputs=len(kernel.outputs),
        fused=operations_in_words(kernel.term, kernel.axes),
        stages=stages,
        llvm_ir=llvm_ir,
        binary=b"",
        resources={"dynamic_shared_bytes": shared} if shared else {},
    )


def _with_code(kernel: Kernel, target: Target) -> Kernel:
    """The kernel with the machine code of its LLVM IR."""
    code = generate(kernel.llvm_ir, target)
    return replace(kernel, llvm_ir=code.llvm_ir, binary=code.binary, assembly=code.assembly)


def _lowering(target: Target) -> Pipeline:
    """The passes of `lower`: to make them takes as long as to lower a small kernel."""
    return build_pipeline(f"dodeca-lower{{target={target.name}}}", context())


def lower(
    module: ir.Operation, target: Target, before: str = "", passes: Pipeline | None = None
) -> None:
    """Lower a module of tile functions in place; `before` is its text, if that is known."""
    before = before or str(module)
    passes = passes or _lowering(target)
    try:
        passes.run(module)
    except CompileError as error:
        text = f"dodeca-lower{{target={target.name}}}"
        with tempfile.NamedTemporaryFile("w", suffix=".mlir", delete=False) as file:
            file.write(before)
        raise CompileError(
            f"lowering to {target.name}: {error}\n"
            f"repeat with: dodeca-opt {file.name} --pass-pipeline='{text}'"
        ) from None


def operations_in_words(term: Term, axes: tuple[Axis, ...]) -> tuple[str, ...]:
    """What a kernel does, operation by operation, with the size of each."""
    words = []
    for t in postorder([term]):
        if t.op in ("load", "const", "index", "results"):
            continue
        inside = "x".join(str(a.size) for a in sorted(t.axes)) or "1"
        over = f" over {t.attr.size}" if t.op in ("sum", "max") else ""
        words.append(f"{t.op}{over} [{inside}]")
    return tuple(words) or (f"copy [{'x'.join(str(a.size) for a in axes) or '1'}]",)


def _launch_of(module: ir.Module) -> tuple[int, int, int]:
    """The grid that a tile function's attributes state, the threads of a block, and the bytes that
    these share."""
    found = next(op for op in walk(module.operation) if GRID in op.attributes).attributes
    shared = ir.IntegerAttr(found[SHARED]).value if SHARED in found else 0
    known = "known_block_size" in found
    block = ir.DenseI32ArrayAttr(found["known_block_size"])[0] if known else 1
    return ir.IntegerAttr(found[GRID]).value, block, shared


def shape_of(kind: TensorType) -> tuple[int, ...]:
    """The shape of a kernel's buffer: its sizes are numbers."""
    return tuple(size for size in kind.shape if size is not None)


def calls_of(main: ir.Operation) -> Iterator[tuple[ir.Operation, bool]]:
    """The calls of a main function in order, and whether each is on weights alone."""
    block = main.regions[0].blocks[0]
    early = {block.arguments[i] for i in named_arguments(main, WEIGHT)}
    for op in list(block.operations)[:-1]:
        alone = all(x in early for x in op.operands)
        if alone:
            early.update(op.results)
        yield op.operation, alone


def _predicted(call: ir.Operation) -> float:
    """The seconds that the cost model predicts for a call of a kernel; 0 if it was not asked."""
    known = PREDICTED in call.attributes
    return ir.FloatAttr(call.attributes[PREDICTED]).value if known else 0.0


@dataclass
class Clock:
    """Seconds spent in each stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now


class _Planner:
    """Reads buffers and launches off the main function of a module of kernels."""

    def __init__(self, module: ir.Module, kernels: dict[str, Kernel]):
        main = entry_function(module.operation)
        block = main.regions[0].blocks[0]
        names = named_arguments(main, WEIGHT)
        inputs = named_arguments(main, NAME)
        self.buffers: list[Buffer] = []
        self.prepare: list[Launch] = []
        self.plan: list[Launch] = []
        self.inputs: list[int] = []
        self.weights: dict[str, int] = {}
        self.ids: dict[ir.Value, int] = {}
        last = block.operations[len(block.operations) - 1]
        returned = set(last.operands)
        for i, value in enumerate(block.arguments):
            number = self._buffer(
                value, "weight" if i in names else "input", names.get(i) or inputs.get(i, "")
            )
            if i in names:
                self.weights[names[i]] = number
            else:
                self.inputs.append(number)
        for op, early in calls_of(main):
            reads = [self.ids[x] for x in op.operands]
            made = []
            for value in op.results:
                role = "prepared" if early else "output" if value in returned else "scratch"
                made.append(self._buffer(value, role))
            name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            launches = self.prepare if early else self.plan
            if kernels[name].grid:
                launches.append(Launch(name, (*reads, *made), _predicted(op)))
        self.outputs = [self.ids[x] for x in last.operands]

    def _buffer(self, value: ir.Value, role: str, name: str = "") -> int:
        kind = TensorType.of(value)
        self.ids[value] = len(self.buffers)
        self.buffers.append(Buffer(shape_of(kind), kind.dtype.name, role, name))
        return self.ids[value]
