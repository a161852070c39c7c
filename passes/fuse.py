"""What `dodeca-fuse` decides: which kernels compute a function of primitives.

In: a function in the dodeca dialect. Out: its regions in order, each with the kernels that compute
it, and a report of the search.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from math import prod

from mlir import ir

from ..dialect import ops
from ..dialect.errors import CompileError
from ..dialect.ops import TensorType, entry_function, named_arguments
from . import terms
from .buffers import Candidate, derived_candidates, last, overtaken, useful
from .comprehend import REDUCTION_OF, WIDE, Comprehension, Point, output_axes, rounded, static_shape
from .egraph import Budget, Saturated, saturate
from .extract import Extractor, splittable
from .index import Axis, Expr
from .layouts import Buffer, Layouts, Order, Program
from .panels import Chosen
from .regions import Region, partition, spreads
from .schedule import Schedule
from .targets import Target
from .terms import REDUCTIONS, Term, postorder

SCHEDULE = "dodeca.schedule"
ON_GPU = ("depth", "stages", "warps")  # numbers of a schedule that are 0 on a CPU
QUICK = ("constant", "iota", "contiguous", "add", "mul", "less_than", "cast")


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A search makes many small objects that live as long as it does: looking for garbage among
    them is a third of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_collector_paused()
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
    keys: dict[Term, list[tuple[ir.Value, Point]]] = {}
    for key, t in comprehension.known.items():
        keys.setdefault(t, []).append(key)
    loads = [
        (_load_of(names[v], v, at, t), t)
        for (v, at), t in joined.items()
        if v in whole and all(_inside(v, at, other) for other in keys[t])
    ]
    equal = [(load, t) for load, t in loads if load is not None]
    equal += [(terms.cast(load, WIDE), t.args[0]) for load, t in equal if excess and rounded(t)]
    return whole, equal, {last(instead, name) for name in folding}


def _inside(value: ir.Value, at: Point, other: tuple[ir.Value, Point]) -> bool:
    """Whether a value has a place wherever another value has its own.

    Views read at places outside their source, and choose something else there. Two of them may read
    the same term where the one is inside its source and the other is not.
    """
    wanted, given = _limits(value, at), _limits(*other)
    least: dict[Axis, int] = {}
    most = {a: a.size - 1 for e in wanted for a in e.own_axes}
    for e in given:
        if len(e.parts) == 1 and e.parts[0][1] in (1, -1) and e.own_axes:
            (axis,) = e.own_axes
            if e.coefficient(axis) == 1:
                least[axis] = max(least.get(axis, 0), -e.constant)
            elif e.coefficient(axis) == -1:
                most[axis] = min(most.get(axis, axis.size - 1), e.constant)

    def lowest(e: Expr) -> float:
        ends = ((a, c, least.get(a, 0) if c > 0 else most[a]) for a, c in e.parts if a in most)
        return e.constant + sum(c * end for _, c, end in ends)

    linear = all(isinstance(a, Axis) for e in wanted for a, _ in e.parts)
    return all(e in given or (linear and lowest(e) >= 0) for e in wanted)


def _limits(value: ir.Value, at: Point) -> list[Expr]:
    """What is 0 or more where a point lies inside a value, and may be less elsewhere."""
    sides = [
        side for e, n in zip(at, static_shape(value), strict=True) for side in (e, e * -1 + (n - 1))
    ]
    return [e for e in sides if e.range[0] < 0]


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


def schedule_attribute(schedule: Schedule) -> ir.Attribute:
    """A schedule as a dictionary attribute that prints and parses."""

    def pairs(items: tuple[tuple[str, int], ...]) -> str:
        return "{" + ", ".join(f"{name} = {n} : i64" for name, n in items) + "}"

    order = ", ".join(f'"{name}"' for name in schedule.order)
    return ir.Attribute.parse(
        f"{{blocks = {pairs(schedule.blocks)}, fold = {schedule.fold} : i64, "
        f"lanes = {schedule.lanes} : i64, order = [{order}], "
        f"{'pairs, ' if schedule.pairs else ''}"
        f"reassociate = {'true' if schedule.reassociate else 'false'}, "
        f'tiles = {pairs(schedule.tiles)}, vector = "{schedule.vector or ""}"'
        f"{', matrix' if schedule.matrix else ''}"
        + "".join(f", {n} = {x} : i64" for n in ON_GPU if (x := getattr(schedule, n)))
        + "}"
    )


def read_schedule(attribute: ir.Attribute, axes: tuple[Axis, ...]) -> Schedule:
    """The schedule in a kernel's attribute."""
    found = ir.DictAttr(attribute)

    def pairs(name: str) -> tuple[tuple[str, int], ...]:
        table = ir.DictAttr(found[name])
        known = [a.name for a in axes if a.name in table]
        if len(known) < len(table):
            raise ValueError(f"{name} are not of axes alone")
        return tuple((axis, ir.IntegerAttr(table[axis]).value) for axis in known)

    try:
        vector = ir.StringAttr(found["vector"]).value or None
        order = tuple(ir.StringAttr(a).value for a in ir.ArrayAttr(found["order"]))
        lanes, fold = (ir.IntegerAttr(found[name]).value for name in ("lanes", "fold"))
        free = ir.BoolAttr(found["reassociate"]).value
        tiles, blocks = pairs("tiles"), pairs("blocks")
        known = {n: ir.IntegerAttr(found[n]).value for n in ON_GPU if n in found}
        known |= {n: n in found for n in ("pairs", "matrix")}
        return Schedule(vector, tiles, blocks, order, lanes, free, fold, **known)
    except (KeyError, ValueError) as error:
        raise CompileError(
            f"{SCHEDULE} {attribute} is not a schedule of this kernel: {error}"
        ) from None
