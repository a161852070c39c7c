"""Extraction: which values become buffers, and which term computes each, at the least cost.

Every value of a region may be materialised. For a set of materialised values each kernel's term is
the cheapest that its class offers, where loads from other buffers of the set are allowed; the set
itself is found by local search: add a value, drop one, or move one to a neighbour, as long as the
predicted time falls. The same input gives the same result in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from . import cost
from .cost import INSTRUCTIONS, contiguous_along
from .egraph import ENode, Saturated
from .index import Axis
from .placement import deep_recursion
from .schedule import Schedule, schedules
from .targets import Target
from .terms import REDUCTIONS, Term, postorder

INFINITE = float("inf")


@dataclass(frozen=True)
class Candidate:
    """A value that may be a buffer: its name, axes and term, and the values that read it."""

    name: str
    axes: tuple[Axis, ...]
    term: Term
    users: tuple[str, ...]
    free: bool = False  # computed from weights alone, before any call


@dataclass(frozen=True)
class Chosen:
    """One kernel: it stores `term` at every point of `axes` into the buffer `name`."""

    name: str
    axes: tuple[Axis, ...]
    term: Term
    schedule: Schedule
    seconds: float
    free: bool

    @property
    def reads(self) -> list[str]:
        """The buffers that it loads, in order of first use."""
        return list(dict.fromkeys(t.attr[0] for t in postorder([self.term]) if t.op == "load"))


@dataclass
class Extractor:
    """One search over what to materialise in a region."""

    graph: Saturated
    candidates: dict[str, Candidate]
    outputs: Sequence[str]
    target: Target
    inputs: frozenset[str]
    strict: bool = False
    tried: int = 0
    _kernels: dict[tuple, Chosen] = field(default_factory=dict)
    _below: dict[str, frozenset[str]] = field(default_factory=dict)

    def run(self) -> list[Chosen]:
        """The kernels of the best set found, producers before consumers."""
        with deep_recursion():
            return self._search()

    def _search(self) -> list[Chosen]:
        free = {c.name for c in self.candidates.values() if c.free}
        start = set(self.outputs) | free | {
            c.name for c in self.candidates.values() if c.term.op in REDUCTIONS
        }
        best, kept = self._total(start), start
        improved = True
        while improved:
            improved = False
            for move in self._moves(kept, free):
                seconds = self._total(move)
                if seconds < best * (1 - 1e-6):
                    best, kept, improved = seconds, move, True
        return self._kernels_of(kept)

    def _moves(self, kept: set[str], free: set[str]) -> Iterable[set[str]]:
        """Sets near `kept`: each value is moved to one that reads it, dropped, or added."""
        fixed = set(self.outputs) | free
        for name in self.candidates:
            if name in kept and name not in fixed:
                for user in self._downstream(name):
                    if user not in kept:
                        yield (kept - {name}) | {user}
                yield kept - {name}
            elif name not in kept:
                yield kept | {name}

    def _downstream(self, name: str, limit: int = 6) -> list[str]:
        """The values after this one along chains of readers, nearest first."""
        found: list[str] = []
        queue = list(self.candidates[name].users)
        while queue and len(found) < limit:
            user = queue.pop(0)
            if user in self.candidates and user not in found:
                found.append(user)
                queue.extend(self.candidates[user].users)
        return found

    # --- the cost of a set --------------------------------------------------------------------

    def _total(self, kept: set[str]) -> float:
        self.tried += 1
        return sum(k.seconds for k in self._kernels_of(kept) if not k.free)

    def _kernels_of(self, kept: set[str]) -> list[Chosen]:
        made: dict[str, Chosen] = {}
        queue = list(self.outputs)
        while queue:
            name = queue.pop()
            if name in made or name not in self.candidates:
                continue
            made[name] = self._kernel(name, kept)
            queue.extend(made[name].reads)
        order: list[Chosen] = []
        done: set[str] = set()

        def visit(name: str) -> None:
            if name in done or name not in made:
                return
            done.add(name)
            for source in made[name].reads:
                visit(source)
            order.append(made[name])

        for name in self.outputs:
            visit(name)
        return order

    def below(self, name: str) -> frozenset[str]:
        """The candidates that the term of `name` could be computed from."""
        if name not in self._below:
            loads = set()
            seen: set[str] = set()
            stack = [self.graph.class_of[self.candidates[name].term]]
            while stack:
                where = stack.pop()
                if where in seen:
                    continue
                seen.add(where)
                for node in self.graph.classes.get(where, ()):
                    if node.template is not None and node.template.op == "load":
                        loads.add(node.template.attr[0])
                    stack.extend(node.children)
            self._below[name] = frozenset(loads - {name})
        return self._below[name]

    def _kernel(self, name: str, kept: set[str]) -> Chosen:
        allowed = frozenset(self.below(name) & kept)
        key = (name, allowed)
        if key not in self._kernels:
            self._kernels[key] = self._best_kernel(self.candidates[name], allowed)
        return self._kernels[key]

    def _best_kernel(self, candidate: Candidate, allowed: frozenset[str]) -> Chosen:
        best: Chosen | None = None
        seen: set[Term] = set()
        for vector in [a for a in candidate.axes if a.size > 1] + [None]:
            term = _Cheapest(self, candidate, allowed, vector).term
            if term in seen:
                continue
            seen.add(term)
            for schedule in schedules(candidate.axes, term, self.target, self.strict):
                seconds = cost.estimate(term, candidate.axes, schedule, self.target).seconds
                if best is None or seconds < best.seconds:
                    best = Chosen(
                        candidate.name, candidate.axes, term, schedule, seconds, candidate.free
                    )
        assert best is not None
        return best


class _Cheapest:
    """The cheapest term of a class for one kernel, by dynamic programming over the e-graph.

    A node counts once for each point of its axes (a whole vector of points at a time if it depends
    on the vector axis), and inside a reduction once more for each tile of the axes it lacks.
    """

    def __init__(
        self, extractor: Extractor, candidate: Candidate, allowed: frozenset[str], vector: Axis | None
    ):
        self.graph = extractor.graph
        self.target = extractor.target
        self.inputs = extractor.inputs
        self.allowed = allowed
        self.own = candidate.name
        self.axes = candidate.axes
        self.vector = vector
        self.memo: dict[str, tuple[float, Term | None]] = {}
        self.open: set[str] = set()
        _, term = self.best(self.graph.class_of[candidate.term])
        assert term is not None, f"no way to compute {candidate.name}"
        self.term: Term = term

    def best(self, where: str) -> tuple[float, Term | None]:
        """The least cost of a class and the term that has it."""
        if where in self.memo:
            return self.memo[where]
        if where in self.open:
            return INFINITE, None
        self.open.add(where)
        best: tuple[float, Term | None] = (INFINITE, None)
        for node in self.graph.classes[where]:
            total, term = self._price(node)
            if total < best[0]:
                best = total, term
        self.open.discard(where)
        self.memo[where] = best
        return best

    def _price(self, node: ENode) -> tuple[float, Term | None]:
        if node.template is not None and node.template.op == "load":
            name = node.template.attr[0]
            if name == self.own or not (name in self.allowed or name in self.inputs):
                return INFINITE, None
        total, children = 0.0, []
        for child in node.children:
            seconds, term = self.best(child)
            if term is None:
                return INFINITE, None
            total += seconds
            children.append(term)
        term = node.build(children)
        return total + self._own_price(node, term), term

    def _own_price(self, node: ENode, term: Term) -> float:
        axes = term.axes
        if node.op in ("sum", "max", "contract"):
            axes = axes | {term.attr} if term.op in REDUCTIONS else axes
            return self._times(axes) * (1.2 if node.op == "contract" else INSTRUCTIONS[node.op])
        if term.op != "load":
            return self._times(axes) * INSTRUCTIONS.get(term.op, 1.0)
        wide = self._vector_axis(axes)
        if wide is None or contiguous_along(term.attr[1], wide):
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
