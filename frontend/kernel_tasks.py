"""Kernels as tasks of a search: what a measurer is told, and what its workers do with it.

    tasks = tasks_of(fused.module, find_target("cpu"), "fast", threads=2)     # of each launch
    kernel = build(Candidate(tasks[0], schedule, predicted))
    cases = reference_cases(tasks[0])

`build` and `reference_cases` are functions of a module, so that they can be sent to any process by
name. The reference is the dialect's interpreter in high precision; a kernel too large for it is
judged on windows, parts of its results at both ends.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from mlir import ir
from mlir.dialects import func

from . import engine as engine  # before what needs egglog: it loads no more than that
from .decompose import Decomposer
from .dialect import DType
from .dialect.interpreter import Interpreter, evaluate
from .dialect.ops import TensorType, context, entry_function
from .passes import terms
from .passes.index import Axis, Expr
from .passes.schedule import Schedule
from .passes.targets import Target
from .passes.terms import FOLDS, Term, postorder
from .passes.tile import KernelTerm, read_kernel
from .pipeline import Clock, calls_of, compile_kernel, shape_of
from .runtime.block_space import find_space
from .runtime.checking import Case, Window, adversarial_inputs
from .runtime.device import find_target
from .runtime.program import Kernel
from .runtime.space import Space, from_json, to_json
from .runtime.trial import Candidate, Task
from .schedule_attribute import SCHEDULE, schedule_attribute

WINDOW_WORK = 500_000  # elements that the interpreter computes for a window, at most
ANCHOR_SECONDS = 0.1  # what a run of an anchor may take, as predicted
ROUNDINGS = 16.0  # errors of the interpreter's own precision that a kernel may make
# of the values' size, by the bits of a float: what else a kernel may differ by
TOLERANCE = {64: 1e-9, 32: 2e-5, 16: 2e-2}
OVERFLOWS = (
    1 / 16
)  # of the largest finite number: above, an order of summation decides what is finite
DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # binary, of a significand
SHAKEN = ("add", "mul", "exp2", "log2", "sin", "sqrt", "recip", "sum_reduce")


# --- tasks --------------------------------------------------------------------------------------


def tasks_of(module: ir.Module, target: Target, precision: str, threads: int) -> list[Task | None]:
    """The task of each call of the main function; None for those that run once, before any call."""
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
    }
    main = entry_function(module.operation)
    sources: dict[str, str] = {}
    tasks: list[Task | None] = []
    for call, cold in _launches(main, target.cache):
        if cold is None:
            tasks.append(None)
            continue
        name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        source = sources.setdefault(name, kernel_source(functions[name]))
        tasks.append(make_task(source, target.name, precision, threads, cold))
    return tasks


@cache
def make_task(
    source: str, target: str, precision: str, threads: int, cold: tuple[bool, ...]
) -> Task:
    """A task under its key, with its anchor."""
    parts = [source, target, precision, str(threads), repr(cold)]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    task = Task(key, source, target, precision, threads, cold)
    return replace(task, anchor=to_json(_anchor(space_of(task))))


def space_of(task: Task) -> Space:
    """The schedules of a task's kernel."""
    with context(), ir.Location.unknown():
        kernel = _read(task.source)
    target, strict = find_target(task.target), task.precision == "strict"
    return find_space(kernel.term, kernel.axes, target, strict)


def _read(source: str) -> KernelTerm:
    module = ir.Module.parse(source)  # which owns the function
    return read_kernel(entry_function(module.operation))


def _anchor(space: Space) -> Schedule:
    """The schedule whose results all others are compared with.

    The plainest, if that ends soon; else the quickest without a loop for all folds, for stages are
    the part of the compiler that does most.
    """
    if space.predict(space.plainest) < ANCHOR_SECONDS:
        return space.plainest
    plain = [s for s in space.known if not s.fold] or [space.default]
    return min(plain, key=space.predict)


def kernel_source(function: ir.Operation) -> str:
    """A kernel's text without what does not matter to its meaning: schedule and number."""
    copy = function.clone()
    if SCHEDULE in copy.attributes:
        del copy.attributes[SCHEDULE]
    name = ir.StringAttr(copy.attributes["sym_name"]).value
    copy.attributes["sym_name"] = ir.StringAttr.get(re.sub(r"^k\d+_", "", name))
    return str(copy)


def _launches(main: ir.Operation, cache: float) -> Iterator[tuple[ir.Operation, tuple | None]]:
    """The calls of a main function in order, each with which of its arguments are cold.

    An argument is cold where the program touches more bytes than the last cache holds between two
    launches that touch it, if it is called again and again. None for calls on weights alone.
    """
    calls = list(calls_of(main))
    touched = [[*op.operands, *op.results] for op, early in calls if not early]
    last = _last_touches(touched, cache)
    for op, early in calls:
        yield op, None if early else next(last)


def _last_touches(launches: list[list[ir.Value]], cache: float) -> Iterator[tuple[bool, ...]]:
    """For each launch of an endless repetition, which of its values have left the cache."""
    recent: dict[ir.Value, int] = {}  # the order of the values' last touches, with their bytes
    for turn in range(2):
        for values in launches:
            if turn:
                after, total = {}, 0
                for x in reversed(recent):
                    after[x] = total
                    total += recent[x]
                yield tuple(after[x] + recent[x] > cache for x in values)
            for x in values:
                recent.pop(x, None)
                recent[x] = _bytes(x)


def _bytes(value: ir.Value) -> int:
    kind = TensorType.of(value)
    return math.prod(shape_of(kind)) * kind.dtype.bytes


# --- what workers do ----------------------------------------------------------------------------


def build(candidate: Candidate) -> Kernel:
    """The kernel of a candidate; CompileError where the compiler refuses it."""
    task = candidate.task
    with context(), ir.Location.unknown():
        module = ir.Module.parse(task.source)
        function = entry_function(module.operation)
        function.attributes[SCHEDULE] = schedule_attribute(from_json(candidate.schedule))
        return compile_kernel(function, find_target(task.target), task.precision, Clock(), False)


def reference_cases(task: Task) -> list[Case]:
    """Inputs that are hard to get right, each with what the interpreter says of some windows."""
    with context(), ir.Location.unknown():
        kernel = _read(task.source)
        windows = [_window_module(kernel, cut) for cut in _cuts(kernel)]
        kinds = [(shape_of(k), k.dtype.name) for k in kernel.inputs]
        staged = _passes_over(space_of(task))
        cases = []
        for name, inputs in adversarial_inputs(kinds, seed=int(task.key[:8], 16)):
            found = [w for module, cut in windows for w in _evaluated(module, cut, inputs, staged)]
            cases.append(Case(name, inputs, tuple(found)))
    return cases


def _passes_over(space: Space) -> bool:
    """Whether a schedule may skip, or weigh in another order, what is not finite.

    A loop for all folds passes over blocks that a condition on positions makes neutral, and moves a
    mean or adds at an index without the zeros times infinity of the plain sum.
    """
    ops = {t.op for t in postorder([space.rolled])}
    return space.fold_axis is not None and bool(ops & {"nonneg", "select", "tilt", "scatter"})


@dataclass(frozen=True)
class _Cut:
    """A part of the points of a kernel: where it begins along each axis, and how long it is."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]


def _cuts(kernel: KernelTerm) -> list[_Cut]:
    """The whole, if it is small; else a part at the start and one at the end."""
    sizes = [a.size for a in kernel.axes]
    while _work(kernel, sizes) > WINDOW_WORK and max(sizes) > 1:
        widest = sizes.index(max(sizes))
        sizes[widest] = -(-sizes[widest] // 2)
    rest = [a.size - n for a, n in zip(kernel.axes, sizes, strict=True)]
    starts = [tuple(0 for _ in rest), tuple(rest)]
    return [_Cut(start, tuple(sizes)) for start in dict.fromkeys(starts)]


def _work(kernel: KernelTerm, sizes: Sequence[int]) -> float:
    """How many elements the interpreter computes for so many points along each axis."""
    short = {a: n for a, n in zip(kernel.axes, sizes, strict=True)}
    total = 0.0
    for t in postorder([kernel.term]):
        axes = t.args[0].axes | {t.attr} if t.op in FOLDS else t.axes
        total += math.prod(short.get(a, a.size) for a in axes)
    return total


def _window_module(kernel: KernelTerm, cut: _Cut) -> tuple[ir.Module, _Cut]:
    """A module that computes the kernel's results at the points of a cut alone."""
    axes = tuple(Axis(a.name, n) for a, n in zip(kernel.axes, cut.sizes, strict=True))
    moved: Mapping[Axis, Expr] = {
        old: Expr(start, ((new, 1),)) if new.size > 1 else Expr(start)
        for old, new, start in zip(kernel.axes, axes, cut.starts, strict=True)
    }
    results: list[tuple[Term, int]] = [
        (terms.at(t, moved), rank) for t, rank in terms.outcomes(kernel.term, len(axes))
    ]
    module = ir.Module.create()
    types = [k.mlir for k in kernel.inputs]

    def body(*arguments: ir.Value) -> list[ir.Value]:
        decomposer = Decomposer({f"a{i}": x for i, x in enumerate(arguments)})
        return [decomposer.tensor(t, axes[:rank]) for t, rank in results]

    with ir.InsertionPoint(module.body):
        func.FuncOp.from_py_func(*types, name="window")(body)
    return module, cut


def _evaluated(
    module: ir.Module, cut: _Cut, inputs: Sequence[np.ndarray], staged: bool
) -> Iterator[Window]:
    """What the interpreter says of a cut, and by how much a kernel may differ from it."""
    high = evaluate(module, *inputs, precision="high")
    own = evaluate(module, *inputs, precision="own")
    function = entry_function(module.operation)
    with np.errstate(all="ignore"):
        shaken = _Shaken(function).call("", list(inputs))
    for output, (x, y, z) in enumerate(zip(high, own, shaken, strict=True)):
        expected, allowed = judged(x, y, z, staged)
        yield Window(output, cut.starts[: x.ndim], expected, allowed)


class _Shaken(Interpreter):
    """High precision in which each operand of arithmetic, at each use, is off by a rounding.

    How far the results move is how much rounding matters to them, in whatever order a kernel
    computes: Monte Carlo arithmetic with inbound randomisation (Parker, UCLA CSD-970002, 1997).
    """

    def __init__(self, function: ir.Operation):
        super().__init__({"": function}, True)
        self.rng = np.random.default_rng(0)

    def operation(self, name: str, op: ir.Operation, operands: list[Any]) -> np.ndarray:
        if name in SHAKEN:
            kind = TensorType.of(op.operands[0]).dtype
            if kind.is_float:
                operands = [self._shaken(x, kind) for x in operands]
        return super().operation(name, op, operands)

    def _shaken(self, x: np.ndarray, kind: DType) -> np.ndarray:
        by = 2.0 ** -DIGITS[kind.name] * self.rng.uniform(-1, 1, x.shape)
        return x * (1 + by).astype(x.dtype)


def judged(
    high: np.ndarray, own: np.ndarray, shaken: np.ndarray, staged: bool
) -> tuple[np.ndarray, np.ndarray]:
    """What is expected of a kernel, and by how much it may differ.

    `high` is the value; `own` the interpreter's in the kernel's own precision; `shaken` what other
    roundings make of it. Where the own precision does not decide whether a value is finite,
    anything goes, and so where a value is not finite and the kernel may be `staged`.
    """
    if not np.issubdtype(high.dtype, np.floating):
        moved = (high != own) | (high != shaken)  # a comparison of floats that are nearly equal
        return high, np.where(moved, np.inf, 0.0)
    bits = own.dtype.itemsize * 8
    with np.errstate(all="ignore"):
        narrow, mine = high.astype(own.dtype).astype(high.dtype), own.astype(high.dtype)
        size = np.abs(high)
        finite = np.isfinite(mine) & (size < OVERFLOWS * float(ml_dtypes.finfo(own.dtype).max))
        typical = np.where(finite, size, 0).max(initial=0.0)
        off = np.fmax(np.abs(mine - high), np.abs(shaken - high))
        allowed = ROUNDINGS * off + TOLERANCE[bits] * (size + typical)
        same = (mine == narrow) | (np.isnan(mine) & np.isnan(narrow))
        edge = ~finite & np.isfinite(narrow)  # near overflow
    sure = same & ~edge & (not staged)
    tolerance = np.where(finite, allowed, np.where(sure, 0.0, np.inf))
    return np.where(finite, high, narrow), np.nan_to_num(
        tolerance, nan=np.inf, posinf=np.inf
    ).astype(np.float64)
