"""Extraction: which values become buffers, and which term computes each, at the least cost.

Every value of a region may be materialised. For a set of materialised values each kernel's term is
the cheapest that its class offers, where loads from other buffers of the set are allowed. Of a few
values all sets are looked at; of more, sets are found by local search: add a value, drop one or all
between two, or move one to a neighbour, as long as the predicted time falls. The same input gives
the same result in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import compress, product
from math import prod
from typing import TypeVar

from ..dialect import DType
from ..dialect.errors import CompileError
from . import cost, terms
from .cost import INSTRUCTIONS
from .decompose import axis_order
from .egraph import ENode, Saturated, Split
from .index import Axis, Quotient, of_axis
from .placement import contiguous_along, deep_recursion
from .schedule import Schedule
from .targets import Target
from .terms import FOLDS, ROLLING, Term, postorder

INFINITE = float("inf")
EXACT = 7  # so many values that may be buffers or not: all sets are looked at


@dataclass(frozen=True)
class Candidate:
    """A value that may be a buffer: its name and axes, the class of the e-graph that computes it,
    and the values that read it."""

    name: str
    axes: tuple[Axis, ...]
    where: str
    dtype: DType
    users: tuple[str, ...] = ()
    folds: bool = False  # a reduction is the last thing that is done
    free: bool = False  # computed from weights alone, before any call


def splittable(roots: Sequence[Term], target: Target) -> list[Split]:
    """Axes that may be split, into outer and inner parts, where that may pay.

    One that a term reads by blocks alone (a scale for every 32 places) is split into them; one that
    is reduced to few values is split into parts for all units.
    """
    order = postorder(list(roots))
    found: dict[Axis, Split] = {}
    for fold in (t for t in order if t.op in FOLDS):
        inside = [t for a in fold.args for t in postorder([a])]
        deeper = set(postorder([a for t in inside if t.op in FOLDS for a in t.args]))
        for t in (t for t in inside if t not in deeper):
            for axis, size in _blocks(t):
                split = _split(axis, size)
                place = of_axis(split[1]) * size + of_axis(split[2])
                if axis == fold.attr and split[2] not in terms.at(t, {axis: place}).axes:
                    found[axis] = split
    for t in order:
        if t.op in FOLDS and not target.is_gpu and t.attr.size >= 4096:
            wanted = range(8 * target.units, 2 * target.units - 1, -1)
            parts = next((n for n in wanted if t.attr.size % n == 0), 0)
            if parts and prod(a.size for a in t.axes) <= 16 * target.units:
                found.setdefault(t.attr, _split(t.attr, t.attr.size // parts))
    return [found[a] for a in sorted(found)]


def _blocks(leaf: Term) -> Iterator[tuple[Axis, int]]:
    """Axes that a term reads through a quotient, and the sizes of the blocks."""
    if leaf.args:
        return
    for expr in leaf.indices:
        for atom, _ in expr.parts:
            if isinstance(atom, Quotient) and len(atom.expr.parts) == 1:
                axis, factor = atom.expr.parts[0]
                if isinstance(axis, Axis) and factor == 1 and axis.size % atom.divisor == 0:
                    yield axis, atom.divisor


def _split(axis: Axis, size: int) -> Split:
    inner = Axis(f"r{50 + int(axis.name[1:])}", size)
    return axis, Axis(axis.name, axis.size // size), inner


def derived_candidates(
    graph: Saturated, values: dict[str, Candidate], free: frozenset[str], largest: int
) -> dict[str, Candidate]:
    """The values, and the reductions that only the e-graph knows, each before those that need it.

    A class with a reduction and no load of a buffer gets a buffer over its axes, and its load.
    """
    axes, dtypes = graph.axes(), graph.dtypes()
    early = graph.follow(False, lambda n, below: _is_early(n, below, free), lambda a, b: a or b)
    found: dict[str, Candidate] = {}
    seen: set[str] = set()

    def visit(where: str) -> None:
        if where in seen:
            return
        seen.add(where)
        for node in graph.classes[where]:
            for child in node.children:
                visit(child)
        loaded = any(
            n.template is not None and n.template.op == "load" for n in graph.classes[where]
        )
        kinds = [n for n in graph.classes[where] if n.op in BINDERS]
        over = axes[where]
        if loaded or not kinds or not over or prod(a.size for a in over) > largest:
            return
        name, order = f"w{len(found)}", axis_order(over)
        dtype = dtypes[where]
        assert dtype is not None
        found[name] = Candidate(name, order, where, dtype, free=early[where], folds=True)
        place, shape = tuple(map(of_axis, order)), tuple(a.size for a in order)
        graph.classes[where].append(ENode("leaf", (), terms.load(name, place, shape, dtype)))

    with deep_recursion():
        for name, value in values.items():
            visit(value.where)
            found[name] = value
    return found


def _is_early(node: ENode, below: list[bool], free: frozenset[str]) -> bool:
    """Whether a node is computed from weights alone."""
    if node.template is not None and node.template.op == "load":
        return node.template.attr[0] in free and all(below)
    return all(below)


@dataclass(frozen=True)
class Chosen:
    """One kernel: it stores `term` at every point of `axes` into the buffer `name`."""

    name: str
    axes: tuple[Axis, ...]
    term: Term
    schedule: Schedule
    seconds: float
    free: bool

    @cached_property
    def reads(self) -> list[str]:
        """The buffers that it loads, in order of first use."""
        return _loaded(self.term)


@dataclass(frozen=True)
class _Terms:
    """Terms that compute a value over `axes`, and seconds that each does not fall below."""

    terms: tuple[Term, ...]
    axes: tuple[Axis, ...]
    bounds: tuple[float, ...]
    free: bool
    key: tuple[str, int]

    @property
    def seconds(self) -> float:
        return self.bounds[0]

    @cached_property
    def reads(self) -> list[str]:
        """The buffers that the most promising one loads."""
        return _loaded(self.terms[0])


def _loaded(term: Term) -> list[str]:
    """The buffers that a term loads, in order of first use."""
    return list(dict.fromkeys(t.attr[0] for t in postorder([term]) if t.op == "load"))


K = TypeVar("K", bound=Chosen | _Terms)


@dataclass
class Extractor:
    """One search over what to materialise in a region."""

    graph: Saturated
    candidates: dict[str, Candidate]
    outputs: Sequence[str]
    target: Target
    inputs: frozenset[str]
    strict: bool = False
    count: int = 1  # how many sets of kernels are wanted
    budget: int = 200_000  # kernels looked at, over all sets: a count, so that it is deterministic
    tried: int = 0
    looked: int = 0
    stopped: str = "no neighbour is better"
    best: list[tuple[float, list[Chosen]]] = field(default_factory=list)
    _choices: dict[tuple[str, int], _Terms] = field(default_factory=dict)
    _kernels: dict[tuple[str, int], Chosen] = field(default_factory=dict)
    _cheapest: dict[tuple, _Cheapest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bit = {name: 1 << n for n, name in enumerate(self.candidates)}
        loads = {
            where: [n.template.attr[0] for n in nodes if n.template and n.template.op == "load"]
            for where, nodes in self.graph.classes.items()
        }
        self.loads = {w: sum(self.bit.get(x, 0) for x in set(names)) for w, names in loads.items()}
        self._given = {w: bool(self.inputs.intersection(names)) for w, names in loads.items()}
        self._rolls = self.graph.follow(
            False, lambda n, below: n.op in ROLLING or any(below), lambda a, b: a or b
        )
        self.reaches = self.graph.follow(0, self._reach, int.__or__)  # loads, however deep below
        free = {name: bit for name, bit in self.bit.items() if self.candidates[name].free}
        self.free = sum(free.values())
        self._folded = sum(b for n, b in free.items() if self.candidates[n].folds)

    def _reach(self, node: ENode, below: list[int]) -> int:
        own = node.template.attr[0] if node.template and node.template.op == "load" else None
        return reduce(int.__or__, below, self.bit.get(own, 0) if own else 0)

    def run(self) -> list[list[Chosen]]:
        """The best sets of kernels that were found, the best first; producers before consumers."""
        with deep_recursion():
            free = {c.name for c in self.candidates.values() if c.free}
            fixed = set(self.outputs) | free
            choice = [name for name in self.candidates if name not in fixed]
            if len(choice) <= EXACT:
                self.stopped = "all sets were looked at"
                for kept in product((True, False), repeat=len(choice)):
                    self._consider(fixed.union(compress(choice, kept)))
            else:
                self._local_search(fixed)
        return [kernels for _, kernels in self.best]

    def _local_search(self, fixed: set[str]) -> None:
        kept = fixed | {c.name for c in self.candidates.values() if c.folds and c.users}
        self._consider(kept)
        improved = True
        while improved:
            improved = False
            for move in self._moves(kept, fixed):
                if self._consider(move):
                    kept, improved = move, True
                if self.looked > self.budget:
                    self.stopped = f"budget of {self.budget} kernels"
                    return

    def _consider(self, kept: set[str]) -> bool:
        """Price a set and remember it, if it is among the best; whether it is the very best."""
        full = len(self.best) == self.count
        limit = self.best[-1][0] * (1 - 1e-6) if full else INFINITE
        seconds = self._total(kept, limit)
        if seconds >= limit:
            return False
        kernels = self._kernels_of(kept)
        if all(kernels != other for _, other in self.best):
            self.best = sorted([*self.best, (seconds, kernels)], key=lambda pair: pair[0])
            del self.best[self.count :]
        return self.best[0][1] == kernels

    def _moves(self, kept: set[str], fixed: set[str]) -> Iterable[set[str]]:
        """Sets near `kept`: each value is moved to one that reads it, dropped, or added; and the
        values between two are dropped at once."""
        for name in self.candidates:
            if name in kept and name not in fixed:
                after = [n for n in self.candidates if n in self._after[name]]
                for user in after[:6]:
                    if user not in kept:
                        yield (kept - {name}) | {user}
                yield kept - {name}
                for end in [n for n in after if n in kept][:8]:
                    between = {n for n in after if n in kept - fixed and end in self._after[n]}
                    if between:
                        yield kept - between - {name}
            elif name not in kept:
                yield kept | {name}

    @cached_property
    def _after(self) -> dict[str, set[str]]:
        """The values that depend on each."""
        found: dict[str, set[str]] = {}
        for name, value in reversed(self.candidates.items()):
            found[name] = {u for user in value.users for u in (user, *found.get(user, ()))}
        return found

    # --- the cost of a set --------------------------------------------------------------------

    def _total(self, kept: set[str], limit: float = INFINITE) -> float:
        """The seconds of a set; not exact where they cannot be below the limit."""
        self.tried += 1
        while True:
            parts = self._needed(kept, self._known)
            total = sum(p.seconds for p in parts if not p.free)
            open_ = [p for p in parts if isinstance(p, _Terms) and not p.free]
            if total >= limit or not open_:
                return total
            self._kernel(*max(open_, key=lambda p: p.seconds).key)

    def _known(self, name: str, mask: int) -> Chosen | _Terms:
        """A kernel, or so long as it has no schedule what is known of it."""
        return self._kernels.get((name, mask)) or self._terms(name, mask)

    def _needed(self, kept: set[str], make: Callable[[str, int], K]) -> list[K]:
        """What `make` gives for each kernel that the outputs need, producers before consumers."""
        # a value may be read by those after it only: two equal values never wait for each other
        allowed = sum(self.bit[other] for other in kept)
        made: dict[str, K] = {}
        queue = list(self.outputs)
        while queue:
            name = queue.pop()
            if name in made or name not in self.candidates:
                continue
            before = allowed & (self.bit[name] - 1)
            if self.candidates[name].free:  # one kernel, not one for each step on the way
                before &= self._folded
            made[name] = make(name, self._visible(self.candidates[name].where, before))
            self.looked += 1
            queue.extend(made[name].reads)
        return [made[name] for name in self.candidates if name in made]

    def _kernels_of(self, kept: set[str]) -> list[Chosen]:
        return self._needed(kept, self._kernel)

    def _kernel(self, name: str, mask: int) -> Chosen:
        key = (name, mask)
        if key not in self._kernels:
            self._kernels[key] = self._best_kernel(name, mask)
        return self._kernels[key]

    def _visible(self, root: str, allowed: int) -> int:
        """The allowed buffers that a term of this class meets; they hide what lies behind them."""
        found, stack, seen = 0, [root], {root}
        while stack:
            where = stack.pop()
            here = self.loads[where] & allowed
            found |= here
            if here & ~self.free or self._given[where]:
                continue
            for node in self.graph.classes[where]:
                for child in node.children:
                    if child not in seen and self.reaches[child] & allowed:
                        seen.add(child)
                        stack.append(child)
        return found

    def _terms(self, name: str, mask: int) -> _Terms:
        """The terms that may compute a value, the cheapest for each axis to vectorise along."""
        key = (name, mask)
        if key not in self._choices:
            value = self.candidates[name]
            axes = tuple(Axis(f"d{i}", a.size) for i, a in enumerate(value.axes))
            moved = zip(value.axes, axes, strict=True)
            places = {a: of_axis(d) for a, d in moved if a != d}
            found: dict[Term, None] = {}
            vectors = [a for a in value.axes if a.size > 1] + [None]
            for context in product(
                [value.axes], vectors, sorted({False, self._rolls[value.where]})
            ):
                if context not in self._cheapest:
                    self._cheapest[context] = _Cheapest(self, *context)
                found[terms.at(self._cheapest[context].term(value.where, mask), places)] = None
            bounds = [cost.at_least(t, axes, self.target) for t in found]
            order = sorted(zip(bounds, found, strict=True), key=lambda pair: pair[0])
            bounds, ordered = zip(*order, strict=True)
            self._choices[key] = _Terms(ordered, axes, bounds, value.free, key)
        return self._choices[key]

    def _best_kernel(self, name: str, mask: int) -> Chosen:
        choices = self._terms(name, mask)
        axes = choices.axes
        best: Chosen | None = None
        for term, least in zip(choices.terms, choices.bounds, strict=True):
            if best is None or least < best.seconds:
                seconds, schedule = cost.cheapest(term, axes, self.target, self.strict)
                if best is None or seconds < best.seconds:
                    best = Chosen(name, axes, term, schedule, seconds, choices.free)
        assert best is not None
        return best


@dataclass(frozen=True)
class _Way:
    """The best way found to compute a class: its cost, its node, and the axes it depends on."""

    cost: float
    node: ENode | None
    axes: frozenset[Axis]


IMPOSSIBLE = _Way(INFINITE, None, frozenset())
BINDERS = (*FOLDS, "contract")


class _Cheapest:
    """The cheapest term of a class for one kernel, by dynamic programming over the e-graph.

    A node counts once for each point of its axes (a whole vector of points at a time if it depends
    on the vector axis), and inside a reduction once more for each tile of the axes it lacks.
    """

    def __init__(
        self, extractor: Extractor, axes: tuple[Axis, ...], vector: Axis | None, rolls: bool
    ):
        self.extractor = extractor
        self.rolls = rolls  # whether a sum is a rolling one where it can be
        self.graph = extractor.graph
        self.target = extractor.target
        self.inputs = extractor.inputs
        self.axes = axes
        self.vector = vector
        self.memo: dict[tuple[str, int], _Way] = {}
        self.built: dict[tuple[str, int], Term] = {}
        self.open: dict[tuple[str, int], int] = {}  # what is being looked at, and how deep
        self.cycle = 1 << 30  # the least depth that a cycle led back to

    def term(self, root: str, allowed: int) -> Term:
        """The cheapest term of a class that loads no buffers but the allowed ones."""
        key = (root, allowed & self.extractor.reaches[root])
        if key not in self.built:
            node = self._best(root, allowed).node
            if node is None:
                raise CompileError("the e-graph offers no way to compute a value")
            self.built[key] = node.build([self.term(child, allowed) for child in node.children])
        return self.built[key]

    def _best(self, where: str, allowed: int) -> _Way:
        key = (where, allowed & self.extractor.reaches[where])
        if key in self.memo:
            return self.memo[key]
        if key in self.open:
            self.cycle = min(self.cycle, self.open[key])
            return IMPOSSIBLE
        depth = self.open[key] = len(self.open)
        above, self.cycle = self.cycle, 1 << 30
        best = IMPOSSIBLE
        nodes = self.graph.classes[where]
        if self.extractor.loads[where] & allowed & ~self.extractor.free:  # read what is in a buffer
            nodes = [n for n in nodes if n.template is not None and n.template.op == "load"]
        rolling = [n for n in nodes if n.op in ROLLING] if self.rolls else []
        for node in rolling or nodes:
            way = self._price(node, allowed)
            if way.cost < best.cost:
                best = way
        del self.open[key]
        if self.cycle >= depth:  # what was left out for a cycle through others is not remembered
            self.memo[key] = best
            self.cycle = above
        else:
            self.cycle = min(self.cycle, above)
        return best

    def _price(self, node: ENode, allowed: int) -> _Way:
        if node.template is not None and node.template.op == "load":
            name = node.template.attr[0]
            if name not in self.inputs and not allowed & self.extractor.bit.get(name, 0):
                return IMPOSSIBLE
        total = 0.0
        axes = node.template.axes if node.template is not None else frozenset()
        for child in node.children:
            way = self._best(child, allowed)
            if way.node is None:
                return IMPOSSIBLE
            total += way.cost
            axes |= way.axes
        outside = axes - {node.attr} if node.op in BINDERS else axes
        return _Way(total + self._own_price(node, axes, allowed), node, outside)

    def _own_price(self, node: ENode, axes: frozenset[Axis], allowed: int) -> float:
        """What the node itself costs; for a reduction `axes` holds its own axis too."""
        if node.op == "contract":
            return self._times(axes) * 1.2
        if node.op in ROLLING:
            if node.op == "scatter":
                axes = axes - self._best(node.children[2], allowed).axes
            inside = {"roll": INSTRUCTIONS["exp2"]}.get(node.op, 2.0)
            return self._times(axes) * (1.2 + inside)
        term = node.template
        if term is None or term.op != "load":
            op = term.op if term is not None else node.op
            return self._times(axes) * INSTRUCTIONS.get(op, 1.0)
        wide = self._vector_axis(axes)
        if wide is None or contiguous_along(term.attr[1], wide, self.target.lanes(32)):
            return self._times(axes) * cost.VECTOR_LOAD
        return self._times(axes) * cost.SCALAR_LOAD * self.target.lanes(max(8, term.dtype.bits)) * 2

    def _vector_axis(self, axes: frozenset[Axis]) -> Axis | None:
        if self.target.is_gpu:
            return None
        if self.vector is not None and self.vector in axes:
            return self.vector
        inner = [a for a in axes if a.name.startswith("r")]
        return max(inner, key=lambda a: a.name) if inner and self.vector is None else None

    def _times(self, axes: frozenset[Axis]) -> float:
        points = float(prod(a.size for a in axes))
        if self._vector_axis(axes) is not None:
            points /= self.target.lanes(32)
        if any(a.name.startswith("r") for a in axes):
            for a in self.axes:
                if a not in axes:
                    points *= max(1.0, a.size / self._tile(a))
        return points

    def _tile(self, axis: Axis) -> int:
        if self.target.is_gpu:
            return 1
        if axis is self.vector:
            return 2 * self.target.lanes(32)
        return 4
