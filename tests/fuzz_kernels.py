"""Kernels of the fuzz over schedules, judged by the dialect's interpreter.

In: a graph, which the compiler cuts into kernels. Out: for a kernel and a schedule what is wrong
with the compiled code, in words, or nothing.

    kernels, rng = draw_subjects(seed=1, number=0, target="cpu")
    kernels[0].judge(kernels[0].space.sample(rng))                      # ""

Each kernel runs on ordinary inputs, on small whole numbers, which add up exactly, and on large,
tiny, infinite and missing ones; on a CPU with one thread and with two, on a simulated GPU with its
threads in either order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dodeca as dd
import fuzz_graphs
import numpy as np
from dodeca.dialect import DTYPES
from dodeca.dialect.interpreter import evaluate
from dodeca.fusion import fuse
from dodeca.pass_pipeline import build_pipeline
from dodeca.passes.schedule import Schedule
from dodeca.passes.terms import postorder
from dodeca.passes.tile import KernelTerm, read_kernel
from dodeca.pipeline import Clock, compile_kernel
from dodeca.runtime.block_space import find_space
from dodeca.runtime.cpu import CpuRunner
from dodeca.runtime.device import find_target
from dodeca.runtime.memory import plan_memory
from dodeca.runtime.program import Buffer, Kernel, Launch, Program
from dodeca.runtime.simulate import simulate
from dodeca.runtime.space import from_json, to_json
from dodeca.schedule_attribute import SCHEDULE, schedule_attribute
from guarded import Guarded
from mlir import ir

ROUNDINGS = 16  # times what the interpreter's own precision is off, a kernel may be
TOLERANCE = {64: 1e-11, 32: 2e-5, 16: 2e-2}  # of the results' size, by the bits of a float
LAST = {8: 2.0**-50, 4: 2.0**-21, 2: 2.0**-9}  # some last places of a number, by a float's bytes
LIBRARY = ("exp2", "log2", "sin")  # what is not exact


# --- inputs and what they should give -----------------------------------------------------------


def inputs_of(kernel: KernelTerm, kind: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Arrays for a kernel's arguments."""
    return [_values(x.shape, x.dtype, kind, rng, kernel) for x in kernel.inputs]


def _values(shape: Any, dtype: Any, kind: str, rng: Any, kernel: KernelTerm) -> np.ndarray:
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_float:  # it may be a place in another argument, or beside it
        sizes = [size for x in kernel.inputs for size in x.shape] + [a.size for a in kernel.axes]
        low, high = (-3, max([5, *sizes]) + 3) if dtype.kind == "int" else (0, 9)
        if kind == "large":
            low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        return rng.integers(low, high, shape, endpoint=True).astype(dtype.numpy)
    wide = dtype.name in ("float32", "bfloat16")
    large, tiny = (1e12, 1e-38) if wide else (1e100, 1e-308) if dtype.bits == 64 else (60, 1e-5)
    if any(t.op in LIBRARY for t in postorder([kernel.term])):
        large = 4.0  # of more, exp2 makes anything of a last place
    x = rng.standard_normal(shape)
    if kind == "integers":
        x = np.round(2 * x)
    if kind == "large":
        x = x * large
    if kind == "tiny":
        x = x * tiny
    if kind == "zeros":
        x = np.where(rng.random(shape) < 0.5, 0.0, -0.0)
    if kind == "special":
        which = rng.integers(0, 40, shape)
        for n, value in enumerate((np.inf, -np.inf, np.nan, -0.0)):
            x = np.where(which == n, value, x)
    return x.astype(dtype.numpy)


KINDS = ("normal", "integers", "large", "tiny", "zeros", "special")


@dataclass(frozen=True)
class Case:
    """Inputs, and of each result what it should be and by how much it may differ."""

    kind: str
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    allowed: list[np.ndarray]  # NaN: anything


def case_of(module: ir.Module, kernel: KernelTerm, kind: str, strict: bool, seed: int) -> Case:
    """What the interpreter says of a kernel on inputs of a kind."""
    rng = np.random.default_rng(seed)
    inputs = inputs_of(kernel, kind, rng)

    def run(arrays: Sequence[np.ndarray], precision: str) -> list[np.ndarray]:
        return evaluate(module, *arrays, precision=precision, entry=kernel.name)

    own = run(inputs, "own")
    if strict and not any(t.op in LIBRARY for t in postorder([kernel.term])):
        return Case(kind, inputs, own, [np.zeros(x.shape) for x in own])
    others = [own]
    if kind in ("normal", "large", "special"):  # how much the results depend on roundings
        others += [run([_moved(x, rng) for x in inputs], "high") for _ in range(2)]
    high, largest = run(inputs, "high"), _largest(inputs)
    return Case(kind, inputs, high, [
        _allowed(x, kind_of.dtype, [made[n] for made in others], largest)
        for n, (x, kind_of) in enumerate(zip(high, kernel.outputs, strict=True))
    ])  # fmt: skip


def _moved(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Floats, each off by some of its last places, in float64."""
    if x.dtype.kind in "biu":
        return x
    last = LAST[x.dtype.itemsize]
    with np.errstate(all="ignore"):
        return x.astype(np.float64) * (1 + last * rng.uniform(-1, 1, x.shape))


def _largest(inputs: list[np.ndarray]) -> float:
    """The largest finite float among arrays."""
    floats = [x.astype(np.float64) for x in inputs if x.dtype.kind not in "biu"]
    return max((float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in floats), default=0.0)


def _allowed(high: np.ndarray, dtype: Any, others: list[np.ndarray], largest: float) -> np.ndarray:
    """By how much a result may differ from `high`, by how much others that mean the same do.

    What cancels to 0 in high precision, whatever moves, as differences from a mean do, another
    order of summation leaves as some last places of the largest input.
    """
    if not dtype.is_float:
        same = np.all([other == high for other in others], axis=0)
        return np.where(same, 0.0, np.nan)
    with np.errstate(all="ignore"):
        narrow = high.astype(dtype.numpy).astype(np.float64)
        wide = [other.astype(dtype.numpy).astype(np.float64) for other in others]
        size = np.where(np.isfinite(narrow), np.abs(narrow), 0.0)
        typical = size.max(initial=0.0)
        least = float(np.finfo(np.float64).tiny) if dtype.bits == 64 else 1e-37
        least = 1e-6 if dtype.name == "float16" else least
        error = TOLERANCE[dtype.bits] * (size + typical) + least
        error = error + np.where(narrow == 0, largest * LAST[dtype.bits // 8], 0.0)
        for other in wide:
            error = error + ROUNDINGS * np.abs(other - narrow)
        same = np.all([(o == narrow) | (np.isnan(o) & np.isnan(narrow)) for o in wide], axis=0)
        finite = np.isfinite(narrow) & np.all([np.isfinite(o) for o in wide], axis=0)
        return np.where(finite, error, np.where(same, 0.0, np.nan))


def fault(found: np.ndarray, case: Case, output: int, hides: bool) -> str:
    """Where a result is wrong, in words; `hides`: what is not finite need not show."""
    expected, allowed = case.expected[output], case.allowed[output]
    with np.errstate(all="ignore"):
        if expected.dtype.kind in "biu":
            far = (found != expected) & (allowed == 0)
        else:
            x, y = found.astype(np.float64), expected.astype(found.dtype).astype(np.float64)
            near = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= allowed)
            far = ~near & ~np.isnan(allowed)
            if hides:
                far &= np.isfinite(y)
    if not far.any():
        return ""
    place = tuple(int(n) for n in np.argwhere(far)[0])
    return (
        f"result {output} at {place} is {found[place]}, expected {expected[place]} "
        f"within {allowed[place]:.3g}, on {case.kind} inputs; {far.sum()} of {far.size} are wrong"
    )


# --- one kernel, one schedule -------------------------------------------------------------------

Runs = Callable[[Case], Iterator[tuple[str, Any]]]  # how, and the results or what went wrong


class Subject:
    """A kernel function of a graph, its space, and cases to try its schedules on."""

    def __init__(self, module: ir.Module, function: ir.Operation, target: str, precision: str):
        self.function, self.target, self.precision = function, find_target(target), precision
        self.kernel, self._module = read_kernel(function), module  # which the function lives in
        strict = precision == "strict"
        self.space = find_space(self.kernel.term, self.kernel.axes, self.target, strict)
        self.cases = [case_of(module, self.kernel, kind, strict, n) for n, kind in enumerate(KINDS)]
        parts = postorder([self.kernel.term])
        parts += postorder([self.space.rolled])
        # of a fold: blocks are passed over, 0 * inf and inf - inf do not occur
        self._finite = any(t.op in ("nonneg", "select", "scatter", "tilt") for t in parts)
        self._rooms: dict[Any, list[Guarded]] = {}

    def judge(self, schedule: str) -> str:
        """What is wrong with the kernel under a schedule, given as text; empty if nothing is."""
        with self.function.context, ir.Location.unknown():
            try:
                return self._fault(from_json(schedule))
            except Exception as error:
                return f"{type(error).__name__}: {error}"

    def _fault(self, schedule: Schedule) -> str:
        illegal = self.space.legal(schedule)
        if illegal:
            return f"not legal: {illegal}"
        self.function.attributes[SCHEDULE] = schedule_attribute(schedule)
        gpu = self.target.is_gpu  # a simulation needs the stages in between
        kernel = compile_kernel(self.function, self.target, self.precision, Clock(), gpu)
        hides = bool(schedule.fold) and self._finite
        run = self._simulated(kernel) if self.target.is_gpu else self._native(kernel)
        for case in self.cases:
            for how, results in run(case):
                if isinstance(results, str):
                    return f"{how}: {results} on {case.kind} inputs"
                for n, found in enumerate(results):
                    wrong = fault(found, case, n, hides)
                    if wrong:
                        return f"{how}: {wrong}"
        return ""

    def _program(self, kernel: Kernel) -> Program:
        count = len(kernel.arguments)
        roles = ["input"] * (count - kernel.outputs) + ["output"] * kernel.outputs
        buffers = [
            Buffer(shape, dtype, role)
            for (shape, dtype), role in zip(kernel.arguments, roles, strict=True)
        ]
        given, made = range(count - kernel.outputs), range(count - kernel.outputs, count)
        plan = (Launch(kernel.name, tuple(range(count))),) if kernel.grid else ()
        return Program(
            kernel.target, {kernel.name: kernel}, tuple(buffers), (), plan,
            tuple(given), tuple(made), {}, {},
        )  # fmt: skip

    def _simulated(self, kernel: Kernel) -> Runs:
        program = self._program(kernel)

        def run(case: Case) -> Iterator[tuple[str, Any]]:
            for reverse in (False, True):
                how = "threads in reverse" if reverse else "threads in order"
                try:
                    yield how, simulate(program, dict(enumerate(case.inputs)), {}, reverse=reverse)
                except dd.Error as error:
                    yield how, str(error)

        return run

    def _native(self, kernel: Kernel) -> Runs:
        program = self._program(kernel)
        runner = CpuRunner(program, {}, plan_memory(program, ()), 2)

        def run(case: Case) -> Iterator[tuple[str, Any]]:
            for threads in (1, 2):
                runner.threads = threads
                rooms = self._room(case, threads == 1)
                results = rooms[len(case.inputs) :]
                for room in results:  # what is not written shows: NaN in every format, then 0
                    room.bytes[:] = 2 if room.array.dtype == bool else 0xFF * (threads == 1)
                runner.run({n: room.array for n, room in enumerate(rooms)})
                found = [room.array for room in results]
                if any(room.breach() for room in results):
                    yield f"{threads} threads", "wrote outside its results"
                if any(x.dtype == bool and (x.view(np.uint8) > 1).any() for x in found):
                    yield f"{threads} threads", "a bool is neither 0 nor 1"
                yield f"{threads} threads", found

        return run

    def _room(self, case: Case, last: bool) -> list[Guarded]:
        """Room for every argument; the inputs are there."""
        if (case.kind, last) not in self._rooms:
            rooms = []
            for x in case.inputs:
                room = Guarded(x.shape, x.dtype, last)
                room.array[...] = x
                rooms.append(room.only_read())
            for kind in self.kernel.outputs:
                shape = tuple(size for size in kind.shape if size is not None)
                rooms.append(Guarded(shape, DTYPES[kind.dtype.name].numpy, last))
            self._rooms[case.kind, last] = rooms
        return self._rooms[case.kind, last]


# --- graphs and their pairs ---------------------------------------------------------------------


def subjects_of(graph: dd.Graph, target: str, precision: str) -> list[Subject]:
    """The kernels that the compiler cuts a graph into."""
    context = graph.module.context
    with context, ir.Location.unknown():
        work = ir.Module.parse(str(graph.module))
        build_pipeline("dodeca-simplify", context).run(work)
        fused = fuse(work.operation, find_target(target), precision)
        functions = list(fused.module.body.operations)[1:]
        return [Subject(fused.module, f.operation, target, precision) for f in functions]


def draw_subjects(seed: int, number: int, target: str) -> tuple[list[Subject], np.random.Generator]:
    """The kernels of the graph that a seed and a number draw, and the generator after it."""
    rng = np.random.default_rng([seed, number])
    graph = fuzz_graphs.draw_graph(rng)
    precision = "strict" if rng.random() < 0.3 else "fast"
    return subjects_of(graph, target, precision), rng


def draw_schedules(
    kernels: list[Subject], rng: np.random.Generator, count: int
) -> list[tuple[int, str]]:
    """Schedules for the kernels in turn, each once: at random, and made from those before."""
    made: list[list[Schedule]] = [[] for _ in kernels]
    found: dict[tuple[int, str], None] = {}
    for turn in range(4 * count if kernels else 0):
        n = turn % len(kernels)
        space, before = kernels[n].space, made[n]
        if not before:
            schedule = space.default
        elif len(before) > 1 and rng.random() < 0.2:
            one, other = rng.permutation(len(before))[:2]
            schedule = space.cross(before[one], before[other], rng)
        elif rng.random() < 0.4:
            schedule = space.mutate(before[rng.integers(len(before))], rng)
        else:
            schedule = space.sample(rng)
        before.append(schedule)
        found[n, to_json(schedule)] = None
        if len(found) == count:
            break
    return list(found)
