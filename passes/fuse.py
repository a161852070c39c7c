"""What `dodeca-fuse` decides: which kernels compute a function of primitives.

In: a function in the dodeca dialect. Out: its regions in order, each with the kernels that compute
it, and a report of the search.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from mlir import ir

from ..dialect import ops
from ..dialect.ops import TensorType, entry_function, named_arguments
from . import terms
from .buffers import Candidate, derived_candidates, last, overtaken, useful
from .comprehend import REDUCTION_OF, WIDE, Comprehension, Point, output_axes, rounded, static_shape
from .egraph import Budget, Saturated, saturate
from .extract import Extractor, splittable
from .index import Expr
from .layouts import Buffer, Layouts, Order, Program
from .panels import Chosen
from .regions import Region, partition, spreads
from .targets import Target
from .terms import REDUCTIONS, Term, postorder

QUICK = ("constant", "iota", "contiguous", "add", "mul", "less_than", "cast")


def choices(
    module: ir.Operation, target: Target, precision: str, without: Collection[str], count: int
) -> list[tuple[Program, list[dict]]]:
    """The best programs that were found, at most `count`, the best first; a report by region.

    `without` names rules to leave out. The n-th has the n-th best kernels of every region, or the
    last where a region has fewer.
    """
    function = entry_function(module)
    block = function.regions[0].blocks[0]
    weights: set[ir.Value] = {block.arguments[i] for i in named_arguments(function, ops.WEIGHT)}
    solved: dict[str, tuple[list[list[Chosen]], dict]] = {}
    regions: list[tuple[Region, bool]] = []
    begins: dict[str, frozenset[str]] = {}  # the best set of the last region of each form
    for region in partition(block, weights):
        regions.append((region, region.key in solved))
        if region.key not in solved:
            form = "\n".join(region.form)
            begin = begins.get(form, frozenset())
            found = _solve(region, target, precision, without, count, begin)
            solved[region.key] = found
            begins[form] = frozenset(name for kernel in found[0][0] for name in kernel.names)
    returned = set(block.operations[len(block.operations) - 1].operands)
    between = {v for region, _ in regions for v in region.outputs}
    orders: dict[Buffer, Order] = {}  # of what lies between regions: the same in all programs
    sets = [(region, solved[region.key][0]) for region, _ in regions]
    made: list[tuple[Program, list[dict]]] = []
    for n in range(max((len(sets) for sets, _ in solved.values()), default=1)):
        chosen = [(region, several[min(n, len(several) - 1)]) for region, several in sets]
        layouts = Layouts(chosen, returned, target, precision == "strict", dict(orders))
        if n == 0:
            layouts.search()
            orders = {v: order for v, order in layouts.orders.items() if v in between}
        elif not orders.keys() <= layouts.makers.keys():
            continue
        chosen, reports = layouts.kernels(), []
        for (region, kernels), (_, reused) in zip(chosen, regions, strict=True):
            seconds = sum(k.seconds for k in kernels if not k.free)
            known = {"kernels": len(kernels), "predicted seconds": seconds, "reused": reused}
            reports.append({**solved[region.key][1], **known})
        made.append((chosen, reports))
    return made


# --- one region ---------------------------------------------------------------------------------


def _solve(
    region: Region,
    target: Target,
    precision: str,
    without: Collection[str],
    count: int,
    begin: frozenset[str],
) -> tuple[list[list[Chosen]], dict]:
    """The best sets of kernels of a region, and what the search did.

    Their buffers are i0, i1, ... (inputs), v0, v1, ... (values), and w0, w1, ... (what only the
    e-graph knows).
    """
    names, inputs = region.names, [region.names[v] for v in region.inputs]
    outputs = [names[v] for v in region.outputs]
    whole, equal, folds = _named_terms(region, outputs, precision == "fast", bool(target.matrix))
    roots = list(whole.values())
    splits = splittable(roots, target)
    free = frozenset(names[v] for v in region.inputs if v in region.prepared)
    graph = saturate(roots, equal, precision, Budget(), without, splits=splits, early=free)
    found = _candidates(region, whole, graph, folds)
    found = useful(graph, derived_candidates(graph, found, free, _largest(region)), outputs)
    strict = precision == "strict"
    extractor = Extractor(graph, found, outputs, target, inputs, free, strict, count, begin)
    sets = extractor.run()
    search = {"sets tried": extractor.tried, "search": extractor.stopped}
    return sets, {"operations": len(region.operations), **graph.report, **search}


def _named_terms(
    region: Region, outputs: list[str], excess: bool, matrix: bool
) -> tuple[dict[ir.Value, Term], list[tuple[Term, Term]], set[str]]:
    """The terms of the values that may be buffers, the loads that equal terms, and the names of the
    values that end with a reduction."""
    names = region.names
    values = set(_candidate_values(region, matrix))
    joined: dict[tuple[ir.Value, Point], Term] = {}

    def watch(value: ir.Value, point: Point, term: Term) -> None:
        if value in values:
            joined[value, point] = term

    inputs = {v: names[v] for v in region.inputs}
    comprehension = Comprehension(inputs.get, watch, excess)
    whole = {v: comprehension.whole(v) for v in names if v in values}
    places: dict[str, set[Term]] = {names[v]: set() for v in whole}
    for (v, _), t in joined.items():
        places[names[v]].update((t, comprehension.exact(t)))
    reads = [(t, x, t.op) for t in postorder(list(whole.values())) for x in t.children]
    sizes = {names[v]: prod(static_shape(v)) for v in whole}
    folding = [names[v] for v, t in whole.items() if t.op in REDUCTIONS]
    instead = overtaken(reads, places, outputs, sizes, folding)
    whole = {v: t for v, t in whole.items() if names[v] not in instead}
    inside = ((v, at, t) for (v, at), t in joined.items() if comprehension.inside(v, at, t))
    loads = [(_load_of(names[v], v, at, t), t) for v, at, t in inside if v in whole]
    equal = [(load, t) for load, t in loads if load is not None]
    equal += [(terms.cast(load, WIDE), t.args[0]) for load, t in equal if excess and rounded(t)]
    return whole, equal, {last(instead, name) for name in folding}


def _load_of(name: str, value: ir.Value, point: Point, term: Term) -> Term | None:
    """The load that gives `term` and depends on no other axes, if there is one.

    A coordinate whose axes do not matter to the term may be 0: any place gives the same value.
    """
    place = tuple(e if e.axes <= term.axes else Expr(0) for e in point)
    if any(e.axes & term.axes for e in point if not e.axes <= term.axes):
        return None
    return terms.load(name, place, static_shape(value), term.dtype)


def _candidate_values(region: Region, matrix: bool) -> list[ir.Value]:
    """The values that may become buffers.

    Outputs, reductions and views may, and what several operations, a reduction or a view reads; not
    what is only spread out from a smaller value, nor what is larger than all that must be kept, nor
    what is quickly computed from positions alone.
    """
    readers: dict[ir.Value, list[str | None]] = {}
    for op in region.operations:
        for x in dict.fromkeys(op.operands):
            readers.setdefault(x, []).append(ops.operation_name(op))
    largest, found = _largest(region), []
    quick: set[ir.Value] = set()
    for op in region.operations:
        name, value = ops.operation_name(op), op.results[0]
        size = prod(static_shape(value))
        early = value in region.prepared  # weights stay as narrow as they are
        bits = TensorType.of(op.operands[0]).dtype.bits if name == "cast" else 64
        narrow = (bits == 8 and early) or (bits <= 16 and matrix)  # fragments are as narrow as that
        if narrow or (name in QUICK and all(x in quick for x in op.operands)):
            quick.add(value)
        again = value in quick or (name == "contiguous" and spreads(op))
        reads = readers.get(value, [])
        shared = len(reads) > 1 or any(r in (*REDUCTION_OF, "contiguous") for r in [name, *reads])
        if value in region.outputs or (shared and not again and 0 < size <= largest):
            found.append(value)
    return found


def _largest(region: Region) -> int:
    """The most elements of what must be kept: inputs, outputs, reductions."""
    kept = [*region.inputs, *region.outputs]
    kept += [op.results[0] for op in region.operations if ops.operation_name(op) in REDUCTION_OF]
    return max((prod(static_shape(v)) for v in kept), default=0)


def _candidates(
    region: Region, whole: dict[ir.Value, Term], graph: Saturated, folds: Collection[str]
) -> dict[str, Candidate]:
    """The values that may become buffers, by their names."""
    found: dict[str, Candidate] = {}
    for value, term in whole.items():
        name, axes = region.names[value], output_axes(static_shape(value))
        users = tuple(region.names[v] for v in _readers_among(value, region, whole))
        where, free = graph.class_of[term], value in region.prepared
        found[name] = Candidate(name, axes, where, term.dtype, users, name in folds, free)
    return found


def _readers_among(
    value: ir.Value, region: Region, candidates: Collection[ir.Value]
) -> list[ir.Value]:
    """The first candidates on every path of readers from a value."""
    reached, found = {value}, {}
    for op in region.operations:
        result = op.results[0]
        if any(x in reached for x in op.operands):
            if result in candidates:
                found[result] = None
            else:
                reached.add(result)
    return list(found)
