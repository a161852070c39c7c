"""Naive programs, and what the compiler must make of each: a table, and how to tell.

A derivation is a function as a user would write it, the axis that matters, and limits. `form` reads
a program of kernels and says what the limits are about: how often it walks along the axis, what it
keeps between kernels, how much it computes.

    >>> row = DERIVATIONS["attention"]
    >>> found = form(derive(row.graph(row.n)), row.n)
    >>> found.passes, found.scratch
    (1, 0)

An axis is recognised by its size, so the sizes `n` are unusual.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import dodeca as dd
import numpy as np
from dodeca.dialect import ops
from dodeca.dialect.ops import TensorType
from dodeca.fusion import fuse, rename_buffers
from dodeca.pass_pipeline import build_pipeline
from dodeca.passes import terms
from dodeca.passes.comprehend import Comprehension, output_axes, static_shape
from dodeca.passes.index import Axis, Expr
from dodeca.passes.loops import joint
from dodeca.passes.terms import FOLDS, ROLLING, Term, postorder
from dodeca.passes.tile import read_kernel
from dodeca.runtime.device import find_target
from dodeca.schedule_attribute import SCHEDULE, read_schedule
from mlir import ir
from programs import draw

# --- one derivation -----------------------------------------------------------------------------

Arrays = list[np.ndarray]
Specs = tuple[tuple[tuple[int, ...], str], ...]
Edge = Callable[[Arrays], None]  # changes random arrays, in place, into adversarial ones


@dataclass(frozen=True)
class Derivation:
    """A naive function of tensors, the size `n` of the axis that matters, and what it becomes.

    Limits that are None do not matter. `passes`: the longest chain of dependent reductions over the
    axis. `scratch`, `kept`: bytes that what lies between kernels, or is prepared from weights, may
    grow by for each place of the axis. `work`: scalar operations. `loops`, `launches`: kernels with
    a reduction over the axis, and all kernels. `programs`: at least so many share the axis.
    """

    fn: Callable[..., Any]
    specs: Callable[[int], Specs]
    n: int
    becomes: str
    passes: int | None = None
    scratch: float | None = 0.0
    kept: float | None = None
    work: Callable[[int], float] | None = None
    loops: int | None = None
    launches: int | None = None
    programs: int | None = None
    edges: Mapping[str, Edge] = field(default_factory=dict)
    tolerance: float = 2e-5
    edge_tolerance: float = 1e-3
    weights: Callable[[int], Arrays] = lambda n: []  # further arguments, known when it is compiled
    highest: Callable[[int], dict[int, int]] = lambda n: {}  # of integer inputs, by position

    def graph(self, n: int) -> dd.Graph:
        captured = [dd.asarray(w, name=f"w{i}") for i, w in enumerate(self.weights(n))]
        specs = [dd.spec(shape, dtype) for shape, dtype in self.specs(n)]
        return dd.trace(lambda *inputs: self.fn(*inputs, *captured), *specs)

    def arrays(self, seed: int, edge: str | None = None) -> Arrays:
        """Random inputs of size n, or adversarial ones."""
        rng = np.random.default_rng(seed)
        found = [draw(rng, shape, dtype) for shape, dtype in self.specs(self.n)]
        for position, high in self.highest(self.n).items():
            found[position] = rng.integers(0, high, found[position].shape)
        if edge is not None:
            self.edges[edge](found)
        return found


# --- from a graph to launches -------------------------------------------------------------------


class Launch(NamedTuple):
    """One kernel of a program: it stores `term` at every point of `axes` in buffer `stores`.

    Several results go to several buffers, their names separated by blanks.
    """

    stores: str
    term: Term
    axes: tuple[Axis, ...]
    folded: bool = False  # whether a single loop runs the rolling sums
    programs: int = 1


@dataclass(frozen=True)
class Plan:
    """The launches of a call, and the buffers that it keeps."""

    launches: tuple[Launch, ...]
    scratch: int  # bytes between kernels
    kept: int  # bytes prepared from weights
    fired: frozenset[str] = frozenset()  # the rules that matched on the way


def derive(graph: dd.Graph, precision: str = "fast", without: Collection[str] = ()) -> Plan:
    """The kernels that the compiler chooses on the CPU, with some rules left out."""
    with graph.module.context, ir.Location.unknown():
        module = _simplified(graph)
        more = [without] if without else []
        fused = fuse(module.operation, find_target("cpu"), precision, *more)
        fired = frozenset(rule for region in fused.regions for rule in region["matches"])
        return replace(read_plan(fused.module), fired=fired)


def _simplified(graph: dd.Graph) -> ir.Module:
    module = ir.Module.parse(str(graph.module))
    build_pipeline("dodeca-simplify", module.context).run(module)
    return module


def read_plan(module: ir.Module) -> Plan:
    """The plan of a module of kernels: the first function calls the others."""
    functions = {ir.StringAttr(op.attributes["sym_name"]).value: op.operation for op in module.body}
    main, block, names, known = _entry(module)
    launches: list[Launch] = []
    for op in list(block.operations)[:-1]:
        kernel = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        early = all(x in known for x in op.operands)
        reads = {f"a{i}": names[x] for i, x in enumerate(op.operands)}
        stores = [f"v{len(names) + i}" for i in range(len(op.results))]
        names.update(zip(op.results, stores, strict=True))
        if early:
            known.update(op.results)
        else:
            launches.append(_launch(kernel, reads, " ".join(stores)))
    return _plan(launches, names, known, main)


def naive(graph: dd.Graph) -> Plan:
    """The plan without a compiler: each operation is a kernel, its result a buffer."""
    with graph.module.context, ir.Location.unknown():
        module = _simplified(graph)
        main, block, names, known = _entry(module)
        launches: list[Launch] = []
        for view in list(block.operations)[:-1]:
            op, value = view.operation, view.results[0]
            if ops.operation_name(op) in ("constant", "iota"):
                continue
            names[value] = f"v{len(names)}"
            if all(x in known or x not in names for x in op.operands):
                known.add(value)
                continue
            term = Comprehension(lambda v, out=value: names.get(v) if v != out else None)
            axes = output_axes(static_shape(value))
            programs = prod(a.size for a in axes)
            launches.append(Launch(names[value], term.whole(value), axes, False, programs))
        return _plan(launches, names, known, main)


def _entry(
    module: ir.Module,
) -> tuple[ir.Operation, ir.Block, dict[ir.Value, str], set[ir.Value]]:
    """The main function, its block, names of its arguments, and those that are weights."""
    main = ops.entry_function(module.operation)
    block = main.regions[0].blocks[0]
    names = {x: f"i{i}" for i, x in enumerate(block.arguments)}
    known = {block.arguments[i] for i in ops.named_arguments(main, ops.WEIGHT)}
    return main, block, names, known


def _launch(function: ir.Operation, reads: dict[str, str], stores: str) -> Launch:
    kernel = read_kernel(function)
    schedule = read_schedule(function.attributes[SCHEDULE], kernel.axes)
    folded = schedule.fold > 0
    term = rename_buffers(terms.rolled(kernel.term) if folded else kernel.term, reads)
    return Launch(stores, term, kernel.axes, folded, schedule.programs(kernel.axes))


def _plan(
    launches: list[Launch], names: dict[ir.Value, str], known: set[ir.Value], main: ir.Operation
) -> Plan:
    block = main.regions[0].blocks[0]
    outside = {*block.arguments, *block.operations[len(block.operations) - 1].operands}
    made = [x for x in names if x not in outside]
    scratch = sum(_bytes(x) for x in made if x not in known)
    return Plan(tuple(launches), scratch, sum(_bytes(x) for x in made if x in known))


def _bytes(value: ir.Value) -> int:
    return prod(static_shape(value)) * TensorType.of(value).dtype.bytes


# --- what a plan does along an axis -------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """What the limits of a derivation are about."""

    passes: int
    scratch: int
    kept: int
    work: float
    loops: int
    launches: int
    programs: int


def form(plan: Plan, size: int) -> Form:
    """What a plan does along the axis of this size."""
    reduce = [x for x in plan.launches if any(passes_in(x, size))]
    return Form(
        passes_over(plan.launches, size),
        plan.scratch,
        plan.kept,
        sum(map(work, plan.launches)),
        sum(_loops(x, size) for x in reduce),
        len(plan.launches),
        min((x.programs for x in reduce), default=0),
    )


def _loops(launch: Launch, size: int) -> int:
    """The loops along the axis of a kernel of several results; one kernel of one result is one."""
    if launch.folded or launch.term.op != "results":
        return 1
    together = joint(launch.term)
    return len({together[t] for t in passes_in(launch, size)})


@dataclass(frozen=True)
class _Walk:
    """How a value came about: the passes that had to end before it, and whether it depends on a
    place of the axis of which some parts are summed already (`inside`) or none (`reads`)."""

    passes: int = 0
    reads: bool = False
    inside: bool = False

    @staticmethod
    def join(walks: Iterable[_Walk]) -> _Walk:
        every = list(walks)
        return _Walk(
            max((w.passes for w in every), default=0),
            any(w.reads for w in every),
            any(w.inside for w in every),
        )


def passes_over(launches: Sequence[Launch], size: int) -> int:
    """The longest chain of dependent reductions over an axis of this size, through buffers too.

    A rolling sum keeps what it depends on, such as a running maximum, so it is one pass. Where the
    axis is cut in two, a place being step * outer + inner, the reductions over the inner axis stay
    inside a block: a pass ends with the outer axis, that is where it is summed, or where the
    blocks' results are stored.
    """
    ended: dict[str, int] = {}  # by buffer
    for launch in launches:
        walks = _walk(launch, size, ended)
        for name, walk in zip(launch.stores.split(), walks, strict=True):
            ended[name] = walk.passes + walk.inside
    return max(ended.values(), default=0)


def passes_in(launch: Launch, size: int) -> list[Term]:
    """The reductions of one kernel that walk along an axis of this size, or along a part of it."""
    outer, inner = split_axes(launch.term, size)
    parts = {*outer, *inner}
    found = []
    for t in postorder([launch.term]):
        if t.op in FOLDS:
            bodies = frozenset().union(*(a.axes for a in t.args))
            if t.attr in bodies and (t.attr.size == size or t.attr in parts):
                found.append(t)
    return found


def _walk(launch: Launch, size: int, ended: Mapping[str, int]) -> list[_Walk]:
    """The walks of what a kernel stores."""
    outer, inner = split_axes(launch.term, size)
    parts, counted = {*outer, *inner}, set(passes_in(launch, size))
    made: dict[Term, _Walk] = {}
    for t in postorder([launch.term]):
        walk = _Walk.join(made[c] for c in t.children)
        if t.op == "load":
            buffer, index, shape = t.attr
            there = (e.axes for e, n in zip(index, shape, strict=True) if n == size)
            reads = walk.reads or any(axes & parts for axes in there)
            walk = _Walk(max(walk.passes, ended.get(buffer, 0)), reads, walk.inside)
        elif t in counted:
            walk = _folded(walk, t.attr.size == size, t.attr in outer)
        made[t] = walk
    return [made[t] for t, _ in terms.outcomes(launch.term, len(launch.axes))]


def _folded(body: _Walk, whole: bool, outer: bool) -> _Walk:
    """The walk of a reduction over the axis, or over the outer or an inner part of it."""
    if whole or (outer and (body.reads or body.inside)):
        return _Walk(body.passes + 1)
    return _Walk(body.passes, inside=True) if body.reads else body


def split_axes(root: Term, size: int) -> tuple[set[Axis], set[Axis]]:
    """The axes into which an axis of this size is cut: the outermost of each cut, and the others.

    A cut shows where a dimension of this size is read at step * outer + inner, inner < step.
    """
    outer: set[Axis] = set()
    inner: set[Axis] = set()
    for t in postorder([root]):
        if t.op != "load":
            continue
        for expr, n in zip(t.attr[1], t.attr[2], strict=True):
            digits = _digits(expr) if n == size else []
            if len(digits) > 1 and expr.range[1] >= n - 1:
                outer.add(digits[-1])
                inner.update(digits[:-1])
    return outer, inner - outer


def _digits(expr: Expr) -> list[Axis]:
    """The axes of an expression that counts with them as digits, least first; else none."""
    parts = sorted(((c, a) for a, c in expr.parts if isinstance(a, Axis)), key=lambda p: p[0])
    if len(parts) != len(expr.parts):
        return []
    step, found = 1, []
    for c, axis in parts:
        if c != step:
            return []
        step *= axis.size
        found.append(axis)
    return found


# what is no arithmetic
_PLACES = ("load", "const", "index", "nonneg", "table", "bitcast", "results")


def work(launch: Launch) -> float:
    """The scalar operations of a kernel.

    What depends on places of the result alone is computed once for those. What stands in a loop of
    a reduction is computed again for every point of that reduction, whether it depends on it or
    not, unless blocks are staged: then it, too, is computed once for what it depends on.
    """
    outside = frozenset(launch.axes)
    total, seen = 0.0, set()
    stack: list[tuple[Term, frozenset[Axis]]] = [(launch.term, frozenset())]
    while stack:
        t, around = stack.pop()
        if launch.folded or t.axes <= outside:
            around = frozenset()
        if (t, around) in seen:
            continue
        seen.add((t, around))
        if t.op == "scatter":  # what it starts from, and each value once, at its place
            added = frozenset().union(*(a.axes for a in t.args[:2])) | {t.attr}
            total += prod(a.size for a in t.axes) + prod(a.size for a in added)
        elif t.op not in _PLACES:
            points = t.axes | around | {t.attr} if t.op in FOLDS else t.axes | around
            total += prod(a.size for a in points) * (4 if t.op in ROLLING else 1)
        inner = around | t.axes if t.op in FOLDS else around
        stack += [(c, inner) for c in t.children]
    return total


def failures(row: Derivation, plan: Callable[[int], Plan]) -> dict[str, str]:
    """The limits that the plans for n and 2 n do not keep, each with what is wrong."""
    small, large = (form(plan(size), size) for size in (row.n, 2 * row.n))
    found: dict[str, str] = {}

    def check(limit: str, value: float, allowed: float | None, least: bool = False) -> None:
        if allowed is not None and (value < allowed if least else value > allowed):
            word = "at least" if least else "at most"
            found[limit] = f"{value:g}, expected {word} {allowed:g}"

    check("passes", small.passes, row.passes)
    check("scratch", (large.scratch - small.scratch) / row.n, row.scratch)
    check("kept", (large.kept - small.kept) / row.n, row.kept)
    check("work", small.work, row.work and row.work(row.n))
    check("loops", small.loops, row.loops)
    check("launches", small.launches, row.launches)
    check("programs", small.programs, row.programs, least=True)
    return found


def limits(row: Derivation) -> dict[str, str]:
    """The limits that a derivation sets, in words."""
    words = {
        "passes": f"{row.passes} passes" if row.passes != 1 else "1 pass",
        "scratch": _growth("scratch", row.scratch),
        "kept": _growth("prepared weights", row.kept),
        "work": f"{row.work(row.n):,.0f} operations" if row.work else "",
        "loops": f"{row.loops} kernels reduce it" if row.loops != 1 else "1 kernel reduces it",
        "launches": f"{row.launches} kernels" if row.launches != 1 else "1 kernel",
        "programs": f"{row.programs} programs or more share it",
    }
    return {name: text for name, text in words.items() if getattr(row, name) is not None}


def _growth(what: str, bytes_each: float | None) -> str:
    return f"{what} +{bytes_each:g} bytes a place" if bytes_each else f"{what} does not grow"


# --- adversarial arrays -------------------------------------------------------------------------


def fill(position: int, where: Any, value: float) -> Edge:
    def change(arrays: Arrays) -> None:
        arrays[position][where] = value

    return change


def scale(position: int, factor: float) -> Edge:
    def change(arrays: Arrays) -> None:
        arrays[position] *= np.float32(factor)

    return change


def shift(position: int, offset: float) -> Edge:
    def change(arrays: Arrays) -> None:
        arrays[position] += np.float32(offset)

    return change


def slope(position: int, low: float, high: float, axis: int = -1) -> Edge:
    """Values that rise or fall along an axis, the same all over."""

    def change(arrays: Arrays) -> None:
        x = arrays[position]
        line = np.linspace(low, high, x.shape[axis], dtype=x.dtype)
        x[...] = np.moveaxis(np.broadcast_to(line, np.moveaxis(x, axis, -1).shape), -1, axis)

    return change


def together(*edges: Edge) -> Edge:
    def change(arrays: Arrays) -> None:
        for edge in edges:
            edge(arrays)

    return change


INF = float("inf")
_scores = {  # of q in place 0 and k in place 1
    "large scores": scale(0, 100.0),
    "rising scores": together(fill(0, ..., 0.5), slope(1, -3, 3, -2)),
    "falling scores": together(fill(0, ..., 0.5), slope(1, 3, -3, -2)),
    "equal scores": fill(1, ..., 0.25),
}
_scores_causal = {name: _scores[name] for name in ("large scores", "rising scores")}
_no_infinities = {
    "rising": slope(0, -20, 20),
    "falling": slope(0, 20, -20),
    "equal": fill(0, ..., 7.0),
    "one large": fill(0, (0, 11), 90.0),
    "far from 0": shift(0, 500.0),
}
_rows = _no_infinities | {
    "-inf first": fill(0, (slice(None), slice(0, 9)), -INF),
    "-inf everywhere": fill(0, 1, -INF),
    "inf": fill(0, (1, 700), INF),
    "nan": fill(0, (2, 900), np.nan),
}
_moments = {
    "far from 0": shift(0, 300.0),
    "further": shift(0, 3000.0),
    "last large": fill(0, (slice(None), -1), 1e3),
    "equal": fill(0, ..., 100.0),
    "large": scale(0, 1e4),
    "one large": fill(0, (1, 3), 1e4),
    "rising": slope(0, -50, 50),
    "inf": fill(0, (1, 40), INF),
    "nan": fill(0, (2, 50), np.nan),
}
_masks = {
    "masked rows": fill(3, (slice(2, 4),), -INF),
    "first keys masked": fill(3, (slice(None), slice(0, 150)), -INF),
    "last keys masked": fill(3, (slice(None), slice(30, None)), -INF),
    "one key left": together(fill(3, ..., -INF), fill(3, (slice(None), 170), 0.0)),
    "large bias": scale(3, 100.0),
}

# --- the programs -------------------------------------------------------------------------------


def f32(*shapes: tuple[int, ...]) -> Specs:
    return tuple((shape, "float32") for shape in shapes)


def qkv(heads: int, length: int, width: int, value: int) -> Callable[[int], Specs]:
    """q (heads, length, width), k (heads, n, width), v (heads, n, value)."""
    return lambda n: f32((heads, length, width), (heads, n, width), (heads, n, value))


def same(heads: int, width: int) -> Callable[[int], Specs]:
    return lambda n: f32(*[(heads, n, width)] * 3)


def _score(q, k):
    return q @ k.mT * q.shape[-1] ** -0.5


def _attention(q, k, v):
    return dd.softmax(_score(q, k)) @ v


def _masked(q, k, v, bias):
    return dd.softmax(_score(q, k) + bias) @ v


def _picked(q, k, v, keep):
    return dd.softmax(dd.where(keep, _score(q, k), -INF)) @ v


def _causal(q, k, v):
    i, j = dd.arange(q.shape[-2])[:, None], dd.arange(k.shape[-2])
    return dd.softmax(dd.where(i >= j, _score(q, k), -INF)) @ v


def _causal_tril(q, k, v):
    lower = dd.tril(dd.ones((q.shape[-2], k.shape[-2]), dtype="bool"))
    return dd.softmax(dd.where(lower, _score(q, k), -INF)) @ v


def _causal_triu(q, k, v):
    bias = dd.triu(dd.full((q.shape[-2], k.shape[-2]), -INF), 1)
    return dd.softmax(_score(q, k) + bias) @ v


def _window(q, k, v):
    i, j = dd.arange(q.shape[-2])[:, None], dd.arange(k.shape[-2])
    near = (j <= i) & (j > i - 37)
    return dd.softmax(dd.where(near, _score(q, k), -INF)) @ v


def _grouped_repeat(q, k, v):
    times = q.shape[0] // k.shape[0]
    return _attention(q, dd.repeat(k, times, axis=0), dd.repeat(v, times, axis=0))


def _grouped_reshape(q, k, v):
    heads, length, width = q.shape
    groups = dd.reshape(q, (k.shape[0], heads // k.shape[0], length, width))
    return dd.reshape(_attention(groups, k[:, None], v[:, None]), (heads, length, v.shape[-1]))


def _joined_heads(q, k, v):
    def heads(x):
        return dd.permute_dims(dd.reshape(x, (x.shape[0], 4, 12)), (1, 0, 2))

    mixed = dd.permute_dims(_attention(heads(q), heads(k), heads(v)), (1, 0, 2))
    return dd.reshape(mixed, (q.shape[0], 48))


def _alibi(q, k, v):
    slopes = dd.asarray(np.float32(2.0) ** -np.arange(1, 9, dtype=np.float32))
    i, j = dd.arange(q.shape[-2])[:, None], dd.arange(k.shape[-2])
    return dd.softmax(_score(q, k) + slopes[:, None, None] * (j - i).astype("float32")) @ v


def _softcap(q, k, v):
    return dd.softmax(20.0 * dd.tanh(_score(q, k) / 20.0)) @ v


def _by_hand(q, k, v):
    s = _score(q, k)
    e = dd.exp(s - dd.max(s, axis=-1, keepdims=True))
    return (e / dd.sum(e, axis=-1, keepdims=True)) @ v


def _divided_late(q, k, v):
    s = _score(q, k)
    e = dd.exp(s - dd.max(s, axis=-1, keepdims=True))
    return (e @ v) / dd.sum(e, axis=-1, keepdims=True)


def _with_logsumexp(q, k, v):
    s = _score(q, k)
    return dd.softmax(s) @ v, dd.logsumexp(s, axis=-1)


def _cross_entropy(x, labels):
    return -dd.mean(dd.gather(dd.log_softmax(x), labels[:, None], axis=1))


def _cross_entropy_one_hot(x, labels):
    wanted = dd.one_hot(labels, x.shape[-1])
    return -dd.mean(dd.sum(wanted * dd.log_softmax(x), axis=-1))


def _entropy(x):
    return -dd.sum(dd.softmax(x) * dd.log_softmax(x), axis=-1)


def _weighted_moments(s, x):
    p = dd.softmax(s)
    mean = dd.sum(p * x, axis=-1, keepdims=True)
    return mean, dd.sum(p * (x - mean) ** 2, axis=-1)


def _cosine(a, b):
    def unit(x):
        return x / dd.sqrt(dd.sum(x * x, axis=-1, keepdims=True))

    return unit(a) @ unit(b).mT


def _blocks(x, values, scales):
    """A linear layer with integer weights, one scale for each 32 of them."""
    weights = values.astype("float32") * dd.repeat(scales, 32, axis=1)
    return weights @ x


def _projected(x, wq, wk, wv):
    return _attention(x @ wq, x @ wk, x @ wv)


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _integers(low: int, high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(low, high, shape, np.int8)


def _gain_and_weight(n: int) -> Arrays:
    return [_normal(n, seed=1), _normal(n, 12, seed=2)]


_attends = partial(Derivation, passes=1)
_folds = partial(Derivation, passes=1)
_one_loop = "one loop over the keys: a running maximum, sum and weighted sum"

DERIVATIONS: dict[str, Derivation] = {
    # attention
    "attention": _attends(_attention, qkv(12, 24, 16, 16), 211, _one_loop, edges=_scores),
    "attention_two_axes": _attends(
        _attention, lambda n: f32((64, 32), (n, 32), (n, 24)), 1019, _one_loop, edges=_scores
    ),
    "attention_batched": _attends(
        _attention,
        lambda n: f32((2, 3, 18, 8), (2, 3, n, 8), (2, 3, n, 8)),
        227,
        _one_loop,
        edges=_scores,
    ),
    "attention_self": _attends(_attention, same(2, 16), 229, _one_loop, edges=_scores),
    "attention_cross": _attends(_attention, qkv(3, 37, 20, 28), 307, _one_loop, edges=_scores),
    "attention_mask": _attends(
        _masked,
        lambda n: (*qkv(2, 20, 16, 16)(n), ((20, n), "float32")),
        233,
        f"{_one_loop}; NaN where a row is masked",
        edges=_scores | _masks,
    ),
    "attention_bool_mask": _attends(
        _picked,
        lambda n: (*qkv(2, 20, 16, 16)(n), ((20, n), "bool")),
        239,
        f"{_one_loop}; the mask is a select in the score",
        edges=_scores | {"masked rows": fill(3, (slice(2, 4),), False)},
    ),
    "attention_causal": _attends(
        _causal,
        same(2, 16),
        241,
        f"{_one_loop}, as far as the query's place",
        edges=_scores_causal,
    ),
    "attention_causal_tril": _attends(
        _causal_tril, same(2, 16), 251, f"{_one_loop}; no mask in memory", edges=_scores_causal
    ),
    "attention_causal_triu": _attends(
        _causal_triu, same(2, 16), 257, f"{_one_loop}; no mask in memory", edges=_scores_causal
    ),
    "attention_window": _attends(
        _window, same(2, 16), 263, f"{_one_loop}, from a window's start", edges=_scores_causal
    ),
    "attention_grouped_repeat": _attends(
        _grouped_repeat,
        lambda n: f32((8, 19, 16), (2, n, 16), (2, n, 16)),
        269,
        f"{_one_loop}; keys and values are not repeated in memory",
        edges=_scores,
    ),
    "attention_grouped_reshape": _attends(
        _grouped_reshape,
        lambda n: f32((8, 19, 16), (2, n, 16), (2, n, 16)),
        271,
        f"{_one_loop}; keys and values are not repeated in memory",
        edges=_scores,
    ),
    "attention_joined_heads": _attends(
        _joined_heads,
        lambda n: f32((21, 48), (n, 48), (n, 48)),
        277,
        f"{_one_loop}; heads are cut out of rows by index",
        edges=_scores,
    ),
    "attention_alibi": _attends(
        _alibi,
        qkv(8, 22, 16, 16),
        281,
        f"{_one_loop}; the bias is computed from places",
        edges=_scores,
    ),
    "attention_softcap": _attends(
        _softcap,
        qkv(2, 21, 16, 16),
        283,
        f"{_one_loop}; the cap is part of the score",
        edges=_scores,
    ),
    "attention_by_hand": _attends(
        _by_hand, qkv(2, 23, 16, 16), 293, f"{_one_loop}; the divisor leaves the sum", edges=_scores
    ),
    "attention_divided_late": _attends(
        _divided_late, qkv(2, 23, 16, 16), 311, _one_loop, edges=_scores
    ),
    "attention_with_logsumexp": _attends(
        _with_logsumexp,
        qkv(2, 23, 16, 16),
        313,
        "one loop for each result, none of which needs the other's",
        edges=_scores,
    ),
    "decoding": _attends(
        _attention,
        qkv(8, 1, 16, 16),
        2203,
        "one loop over the keys for each head",
        edges=_scores,
    ),
    "decoding_one_head": _attends(
        _attention,
        lambda n: f32((1, 16), (n, 16), (n, 16)),
        64 * 181,
        "parts of the keys in programs of their own, each with its maximum; then their sum",
        scratch=2.0,
        programs=2,
        edges=_scores,
    ),
    # rows
    "softmax": _folds(
        dd.softmax,
        lambda n: f32((4, n)),
        20011,
        "one loop for maximum and sum, one to write",
        edges=_rows,
        tolerance=1e-6,
    ),
    "softmax_columns": _folds(
        lambda x: dd.softmax(x, axis=0),
        lambda n: f32((n, 12)),
        4003,
        "one loop for maximum and sum, one to write",
        edges={"rising": slope(0, -20, 20, 0), "-inf first": fill(0, slice(0, 9), -INF)},
    ),
    "log_softmax": _folds(
        dd.log_softmax,
        lambda n: f32((4, n)),
        20021,
        "one loop for maximum and sum, one to write",
        edges=_rows,
    ),
    "logsumexp": _folds(
        lambda x: dd.logsumexp(x, axis=-1),
        lambda n: f32((4, n)),
        20023,
        "one loop with a running maximum",
        edges=_rows,
    ),
    "logsumexp_of_scores": _folds(
        lambda q, k: dd.logsumexp(_score(q, k), axis=-1),
        lambda n: f32((40, 16), (n, 16)),
        1009,
        "one loop with a running maximum, no scores in memory",
        edges=_scores,
    ),
    "cross_entropy": _folds(
        _cross_entropy,
        lambda n: (((4, n), "float32"), ((4,), "int64")),
        20029,
        "one loop with a running maximum; the label's logit is read by index",
        edges=_rows | {"label from the end": fill(1, 0, -2)},
        highest=lambda n: {1: n},
    ),
    "cross_entropy_one_hot": _folds(
        _cross_entropy_one_hot,
        lambda n: (((4, n), "float32"), ((4,), "int64")),
        20047,
        "one loop with a running maximum; the label's logit is read by index",
        edges=_no_infinities | {"no such label": fill(1, 0, -2)},
        highest=lambda n: {1: n},
    ),
    "cross_entropy_linear": _folds(
        lambda x, w, labels: _cross_entropy(x @ w, labels),
        lambda n: (((24, 16), "float32"), ((16, n), "float32"), ((24,), "int64")),
        1013,
        "one loop over the classes, no logits in memory",
        edges={"large logits": scale(0, 30.0)},
        highest=lambda n: {2: n},
    ),
    "entropy": _folds(
        _entropy,
        lambda n: f32((4, n)),
        20051,
        "one loop: logsumexp, and the mean of the scores under the softmax",
        edges=_no_infinities,
    ),
    "softmax_moments": _folds(
        _weighted_moments,
        lambda n: f32((4, n), (4, n)),
        20063,
        "one loop: running maximum, and sums weighted by the exponentials",
        edges={"rising": slope(0, -20, 20), "values far from 0": shift(1, 100.0)},
        tolerance=1e-4,
    ),
    # normalisation
    "variance": _folds(
        lambda x: x.var(axis=-1),
        lambda n: f32((64, n)),
        257,  # one more than a block
        "one loop for mean and variance",
        edges=_moments,
        tolerance=1e-5,
        edge_tolerance=1e-5,
    ),
    "variance_long": _folds(
        lambda x: x.var(axis=-1),
        lambda n: f32((4, n)),
        20071,
        "one loop for mean and variance",
        edges=_moments,
        tolerance=1e-5,
        edge_tolerance=1e-5,
    ),
    "layer_norm": _folds(
        lambda x, gain, bias: dd.layer_norm(x, gain, bias),
        lambda n: f32((4, n), (n,), (n,)),
        20225,  # one more than 79 blocks
        "one loop for mean and variance, one to write",
        edges=_moments,
        edge_tolerance=2e-3,
    ),
    "layer_norm_linear": _folds(
        lambda x, gain, bias, w: dd.layer_norm(x, gain, bias) @ w,
        lambda n: f32((64, n), (n,), (n,), (n, 12)),
        321,
        "one loop: the statistics leave the contraction",
        edges=_moments,
        tolerance=1e-4,
        edge_tolerance=3e-3,
    ),
    "layer_norm_linear_weights": _folds(
        lambda x, gain, w, bias: dd.layer_norm(x, gain, bias) @ w,
        lambda n: f32((64, n)),
        385,
        "one loop: the statistics leave the contraction, gain and bias join the weight",
        edges=_moments,
        tolerance=1e-4,
        edge_tolerance=3e-3,
        weights=lambda n: [*_gain_and_weight(n), _normal(n, seed=4)],
    ),
    "rms_norm_linear": _folds(
        lambda x, gain, w: dd.rms_norm(x, gain) @ w,
        lambda n: f32((9, n), (n,), (n, 12)),
        349,
        "one loop: the root mean square leaves the contraction",
        edges=_moments,
        tolerance=1e-4,
    ),
    "rms_norm_linear_weights": _folds(
        lambda x, gain, w: dd.rms_norm(x, gain) @ w,
        lambda n: f32((9, n)),
        353,
        "one loop: the root mean square leaves the contraction, the gain joins the weight",
        edges=_moments,
        tolerance=1e-4,
        weights=_gain_and_weight,
    ),
    "cosine_similarity": _folds(
        _cosine,
        lambda n: f32((9, n), (11, n)),
        359,
        "one loop: both norms leave the contraction",
        edges={"large": scale(0, 1e4), "small": scale(1, 1e-4), "zero": fill(0, 1, 0.0)},
    ),
    # contractions
    "split_k": Derivation(
        lambda a, b: a @ b,
        lambda n: f32((1, n), (n, 1)),
        64 * 191,
        "parts of the axis in programs of their own, then their sum",
        scratch=0.25,
        programs=2,
    ),
    "matmul_chain": Derivation(
        lambda a, b, x: a @ b @ x,
        lambda n: f32((40, n), (n, 48), (48,)),
        367,
        "A (B x): two matrix-vector products",
        scratch=4.0,
        work=lambda n: 2.5 * n * (40 + 48),
    ),
    "linear_attention": Derivation(
        lambda q, k, v: (q @ k.mT) @ v,
        same(2, 8),
        373,
        "q (k^T v): no scores",
        work=lambda n: 2 * 2.5 * n * (8 * 8 + 8 * 8),
    ),
    "max_of_scores": Derivation(
        lambda q, k: dd.max(_score(q, k), axis=-1),
        lambda n: f32((64, 16), (n, 16)),
        4007,
        "one kernel behind a copy of q in panels, no scores in memory",
        launches=2,
        edges=_scores,
    ),
    "gated_sum": Derivation(
        lambda q, k, v: dd.sigmoid(_score(q, k)) @ v,
        qkv(2, 6, 16, 16),  # of more rows two products with the gates between them are quicker
        97,
        "one kernel, no gates in memory",
        launches=1,
        edges=_scores,
    ),
    "one_hot_table": Derivation(
        lambda labels, table: dd.one_hot(labels, table.shape[0]) @ table,
        lambda n: (((29,), "int64"), ((n, 12), "float32")),
        389,
        "rows read by index",
        passes=0,
        edges={"out of range": fill(0, slice(0, 2), 10**6), "negative": fill(0, 3, -1)},
        highest=lambda n: {0: n},
    ),
    "scatter_add": Derivation(
        lambda labels, g: dd.one_hot(labels, 50).mT @ g,
        lambda n: (((n,), "int64"), ((n, 12), "float32")),
        397,
        "each row added at its index",
        work=lambda n: 4 * (n + 50) * 12,
        edges={"one place": fill(0, ..., 7), "out of range": fill(0, slice(0, 9), 50)},
        highest=lambda n: {0: 50},
    ),
    "int8_blocks": Derivation(
        _blocks,
        lambda n: f32((n,)),
        32 * 37,
        "scales multiply sums over blocks; weights stay integers",
        kept=24 * 1.25,
        work=lambda n: 3.3 * 24 * n,
        weights=lambda n: [_integers(-128, 128, 24, n), _normal(24, n // 32) ** 2],
        tolerance=1e-3,
        edges={"large": scale(0, 1e4)},
        edge_tolerance=1e-2,
    ),
    "int8_blocks_as_inputs": Derivation(
        _blocks,
        lambda n: (((n,), "float32"), ((24, n), "int8"), ((24, n // 32), "float32")),
        32 * 41,
        "scales multiply sums over blocks; weights stay integers",
        work=lambda n: 3.3 * 24 * n,
        tolerance=1e-3,
        edges={"extremes": together(fill(1, slice(0, 5), -128), fill(1, slice(5, 9), 127))},
        edge_tolerance=1e-2,
    ),
    "int4_blocks": Derivation(
        _blocks,
        lambda n: f32((n,)),
        32 * 43,
        "scales multiply sums over blocks; weights stay integers",
        kept=24 * 1.25,
        work=lambda n: 3.3 * 24 * n,
        weights=lambda n: [_integers(-8, 8, 24, n), _normal(24, n // 32) ** 2],
        tolerance=1e-3,
        edges={"large": scale(0, 1e4)},
        edge_tolerance=1e-2,
    ),
    "qkv": Derivation(
        _projected,
        lambda n: f32((20, n)),
        401,
        "one contraction with the three weights side by side",
        scratch=None,
        loops=1,
        weights=lambda n: [_normal(n, 16, seed=i) * np.float32(n**-0.5) for i in range(3)],
    ),
    "chain_and_sum": Derivation(
        lambda x, a, b: dd.sum(dd.gelu(x * a + b), axis=-1),
        lambda n: f32((30, n), (n,), (n,)),
        409,
        "one kernel",
        launches=1,
        edges={"large": scale(0, 1e3)},
    ),
    "conv2d": Derivation(
        lambda x, w: dd.conv2d(x, w, padding=1),
        lambda n: f32((1, n, 8, 9), (4, n, 3, 3)),
        61,
        "one contraction that reads the padded image by index, whose windows are kept nowhere",
        scratch=4.0 * 10 * 11,
        launches=2,
        tolerance=1e-4,
    ),
}
