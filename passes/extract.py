"""Extraction: which values become buffers, and which term computes each, at the least cost.

Every value of a region may be materialised. For a set of materialised values each kernel's term is
the cheapest that its class offers, where loads from other buffers of the set are allowed. Of a few
values all sets are looked at; of more, sets are found by local search: add values, drop one, or
move one to a neighbour, as long as the predicted time falls. The same input gives the same result
in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial, reduce
from itertools import compress, product
from math import prod
from operator import or_
from typing import TypeVar

from ..dialect.errors import CompileError
from . import cost, terms
from .buffers import Candidate
from .cost import INSTRUCTIONS
from .egraph import BINDERS, ENode, Saturated, Split
from .index import Axis, Quotient, of_axis
from .panels import Chosen, packed
from .placement import contiguous_along, deep_recursion
from .targets import Target
from .terms import FOLDS, ROLLING, Term, postorder

WORTH = 1.5  # ways to run a kernel that seem so many times slower are not looked at
EXACT = 7  # so many values that may be buffers or not: all sets are looked at
REFINED = 12  # of more, so many of the sets that seem best are priced with all their schedules


def splittable(roots: Sequence[Term], target: Target) -> list[Split]:
    """Axes that may be split, into outer and inner parts, where that may pay.

    One that a term reads by blocks alone (a scale for every 32 places) is split into them; one that
    is reduced to few values is split into parts for all units.
    """
    order = postorder(list(roots))
    found: dict[Axis, Split] = {}
    for fold in (t for t in order if t.op in FOLDS):
        for t in postorder(fold.args, children=lambda t: () if t.op in FOLDS else t.children):
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
    for expr in leaf.indices:
        for atom, _ in expr.parts:
            if isinstance(atom, Quotient) and len(atom.expr.parts) == 1:
                axis, factor = atom.expr.parts[0]
                if isinstance(axis, Axis) and factor == 1 and axis.size % atom.divisor == 0:
                    yield axis, atom.divisor


def _split(axis: Axis, size: int) -> Split:
    inner = Axis(f"r{50 + int(axis.name[1:])}", size)
    return axis, Axis(axis.name, axis.size // size), inner


@dataclass(frozen=True, eq=False)
class _Guess:
    """What a kernel may cost, before its terms and schedules are looked at."""

    search: Extractor
    key: tuple[tuple[str, int], ...]  # each value, and the buffers that it may load
    axes: tuple[Axis, ...]
    costs: dict[str, float]  # instructions, by class
    loads: int  # buffers, as bits
    stored: float  # bytes
    folds: frozenset[Axis]
    rows: frozenset[Axis]  # of the scores of rolling sums
    free: bool
    way: _Cheapest | None = None  # in which it runs, if it is one value's
    rolls: bool = False  # whether it has rolling sums

    @cached_property
    def names(self) -> list[str]:
        """The buffers that it stores."""
        return [name for name, _ in self.key]

    @cached_property
    def reads(self) -> list[str]:
        """The buffers that it loads."""
        return [name for name, bit in self.search.bit.items() if bit & self.loads]

    @cached_property
    def seconds(self) -> float:
        """About the time that it takes."""
        target = self.search.target
        busy = min(target.units, max(1, prod(a.size for a in self.rows or self.axes)))
        computing = sum(self.costs.values()) / (target.rate * busy)
        moved = self.stored + sum(self.search.bytes[name] for name in self.reads)
        waiting = target.launch + cost.spilling(self.stored, target)
        return waiting + max(computing, moved / target.bandwidth)


K = TypeVar("K", Chosen, _Guess)
Joining = Callable[[K, K], K | None]  # two kernels as one, if they can be


@dataclass
class Extractor:
    """One search over what to materialise in a region."""

    graph: Saturated
    candidates: dict[str, Candidate]
    outputs: Sequence[str]
    target: Target
    inputs: Sequence[str]
    early: frozenset[str] = frozenset()  # the inputs that are there before a call
    strict: bool = False
    count: int = 1  # how many sets of kernels are wanted
    begin: frozenset[str] = frozenset()  # the values of a set that may be good
    budget: int = 20_000  # sets: a count, so that it is deterministic
    tried: int = 0
    stopped: str = "no neighbour is better"
    best: list[tuple[float, list[Chosen]]] = field(default_factory=list)
    _guessed: dict[tuple, tuple[float, set[str]]] = field(default_factory=dict)  # by the kernels

    def __post_init__(self) -> None:
        self.bit = {name: 1 << n for n, name in enumerate([*self.inputs, *self.candidates])}
        self.given = (1 << len(self.inputs)) - 1
        self.bytes = dict.fromkeys(self.bit, 0.0)
        self.loads = dict.fromkeys(self.graph.classes, 0)
        for where, nodes in self.graph.classes.items():
            for node in nodes:
                if node.loaded is not None and node.template is not None:
                    self.loads[where] |= self.bit[node.loaded]
                    size = cost.bytes_read(node.template)
                    self.bytes[node.loaded] = max(self.bytes[node.loaded], size)
        self.reaches = self.graph.follow(  # loads, however deep below
            0, lambda n, below: reduce(or_, below, self.bit.get(n.loaded or "", 0)), or_
        )
        self.axes = {where: axes or frozenset() for where, axes in self.graph.axes.items()}
        free = {name: self.bit[name] for name, value in self.candidates.items() if value.free}
        self.free = sum(free.values())
        self._folded = sum(b for n, b in free.items() if self.candidates[n].folds)
        self._visible, self._nearest = cache(self._find_visible), cache(self._find_nearest)
        self._cheapest = cache(partial(_Cheapest, self))
        self._guess, self._kernel = cache(self._make_guess), cache(self._make_kernel)
        self._both = cache(self._guess_as_one)

    def run(self) -> list[list[Chosen]]:
        """The best sets of kernels that were found, the best first; producers before consumers."""
        with deep_recursion():
            fixed = {*self.outputs, *(c.name for c in self.candidates.values() if c.free)}
            choice = [name for name in self.candidates if name not in fixed]
            if len(choice) <= EXACT:
                self.stopped = "all sets were looked at"
                for kept in product((True, False), repeat=len(choice)):
                    self._guess_total(fixed.union(compress(choice, kept)))
            else:
                self._local_search(fixed)
            guesses = sorted(self._guessed.values(), key=lambda pair: pair[0])
            refined = REFINED // 4 if self.begin else REFINED
            for _, kept in guesses[: refined + self.count]:
                self._consider(kept)
        return [kernels for _, kernels in self.best]

    def _local_search(self, fixed: set[str]) -> None:
        folds = {c.name for c in self.candidates.values() if c.folds and c.users}
        begin = self.begin & self.candidates.keys()
        starts = [fixed | begin] if begin else [fixed | folds, fixed]
        seconds, kept = min(((self._guess_total(s), s) for s in starts), key=lambda pair: pair[0])
        improved = True
        while improved:
            improved = False
            for move in self._moves(kept, fixed):
                new = self._guess_total(move)
                if new < seconds * (1 - 1e-6):
                    kept, seconds, improved = move, new, True
                if self.tried > self.budget:
                    self.stopped = f"budget of {self.budget} sets"
                    return

    def _consider(self, kept: set[str]) -> None:
        """Price a set and remember it, if it is among the best."""
        _, kernels = self._total(kept, self._kernel, self._as_one)
        early = self.early.union(name for k in kernels if k.free for name in k.names)
        ways = [packed(k, early, self.target, self.strict) for k in kernels if not k.free]
        seconds = sum(way.total for way in ways)
        if all(kernels != other for _, other in self.best):
            self.best = sorted([*self.best, (seconds, kernels)], key=lambda pair: pair[0])
            del self.best[self.count :]

    def _moves(self, kept: set[str], fixed: set[str]) -> Iterable[set[str]]:
        """Sets near `kept`: each value is moved to one that reads it, dropped, or added; and what
        sums over one axis read is added at once."""
        for names in self._read_together.values():
            yield kept | names
        for name in self.candidates:
            if name in kept and name not in fixed:
                after = [n for n in self.candidates if n in self._after[name]]
                for user in after[:4]:
                    if user not in kept:
                        yield (kept - {name}) | {user}
                yield kept - {name}
            elif name not in kept:
                yield kept | {name}

    @cached_property
    def _read_together(self) -> dict[object, set[str]]:
        """The values that rolling sums over an axis are computed from."""
        named = {value.where: name for name, value in self.candidates.items()}
        found: dict[object, set[str]] = {}
        for nodes in self.graph.classes.values():
            for node in nodes:
                read = [c for c in node.children if self.axes[c]] if node.op in ROLLING else []
                if read and all(c in named for c in read):
                    found.setdefault(node.attr, set()).update(named[c] for c in read)
        return found

    @cached_property
    def _after(self) -> dict[str, set[str]]:
        """The values that depend on each."""
        found: dict[str, set[str]] = {}
        for name, value in reversed(self.candidates.items()):
            found[name] = {u for user in value.users for u in (user, *found.get(user, ()))}
        return found

    # --- the cost of a set --------------------------------------------------------------------

    def _guess_total(self, kept: set[str]) -> float:
        """About the seconds of a set, without looking at schedules; it is noted for later."""
        self.tried += 1
        seconds, parts = self._total(kept, self._guess, self._both)
        self._guessed.setdefault(tuple(part.key for part in parts), (seconds, kept))
        return seconds

    def _total(
        self, kept: set[str], make: Callable[[str, int], K], as_one: Joining[K]
    ) -> tuple[float, list[K]]:
        """The kernels that the outputs need, producers before consumers, and their seconds."""
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
            where = self.candidates[name].where
            made[name] = make(name, self._visible(where, before & self.reaches[where]))
            queue.extend(made[name].reads)
        kernels = _merged([made[name] for name in self.candidates if name in made], as_one)
        return sum(kernel.seconds for kernel in kernels if not kernel.free), kernels

    def _find_visible(self, root: str, allowed: int) -> int:
        """The allowed buffers that a term of this class meets; they hide what lies behind them."""
        found, stack, seen = 0, [root], {root}
        hiding = self.given | allowed & ~self.free
        while stack:
            where = stack.pop()
            found |= self.loads[where] & allowed
            if not self.loads[where] & hiding:
                new = [c for c in self._nearest(where) if self.reaches[c] & allowed]
                stack += [c for c in new if c not in seen]
                seen.update(new)
        return found

    def _find_nearest(self, root: str) -> list[str]:
        """The classes below that load candidates, and are met before any other that loads."""

        def below(where: str) -> list[str]:
            ends = where != root and self.loads[where]
            return [] if ends else [c for n in self.graph.classes[where] for c in n.children]

        met = postorder([root], children=below)
        return [where for where in met if where != root and self.loads[where] & ~self.given]

    def _ways(self, name: str, mask: int, vectors: Sequence[Axis | None]) -> list[_Guess]:
        """How a kernel may run, the cheapest first: along which axis it is vectorised, and whether
        sums roll, where these make a difference."""
        found: list[_Guess] = []
        for vector in vectors:
            found.append(self._cheapest(vector, True).guess(name, mask))
            if found[-1].rolls:
                found.append(self._cheapest(vector, False).guess(name, mask))
            if not found[-1].folds:
                break
        return sorted(found, key=lambda guess: guess.seconds)

    def _make_guess(self, name: str, mask: int) -> _Guess:
        last = [a for a in self.candidates[name].axes if a.size > 1][-1:]
        return self._ways(name, mask, [*last, None])[0]

    def _guess_as_one(self, a: _Guess, b: _Guess) -> _Guess | None:
        rows, folds = a.rows | b.rows, a.folds | b.folds
        if a.axes != b.axes and not (rows and a.folds & b.folds):
            return None
        axes = max(a.axes, b.axes, key=len)
        costs = a.costs | {w: max(n, a.costs.get(w, 0.0)) for w, n in b.costs.items()}
        loads, stored = a.loads | b.loads, a.stored + b.stored
        return _Guess(self, a.key + b.key, axes, costs, loads, stored, folds, rows, False)

    def _make_kernel(self, name: str, mask: int) -> Chosen:
        value = self.candidates[name]
        axes = tuple(Axis(f"d{i}", a.size) for i, a in enumerate(value.axes))
        moved = zip(value.axes, axes, strict=True)
        places = {a: of_axis(d) for a, d in moved if a != d}
        vectors = [a for a in reversed(value.axes) if a.size > 1]
        ways = self._ways(name, mask, [*vectors, None])
        found = {
            terms.at(guess.way.term(value.where, mask | self.given), places): None
            for guess in ways
            if guess.way is not None and guess.seconds <= ways[0].seconds * WORTH
        }
        priced = [cost.cheapest(term, axes, self.target, self.strict) for term in found]
        (seconds, schedule), term = min(zip(priced, found, strict=True), key=lambda p: p[0][0])
        return Chosen(name, axes, term, schedule, seconds, value.free)

    def _as_one(self, a: Chosen, b: Chosen) -> Chosen | None:
        axes = max(a.axes, b.axes, key=len)
        if any(kernel.axes != axes[: len(kernel.axes)] for kernel in (a, b)):
            return None
        parts = (*(a.parts or (a,)), *(b.parts or (b,)))
        term = terms.results([(part.term, len(part.axes)) for part in parts])
        seconds, schedule = cost.cheapest(term, axes, self.target, self.strict)
        if seconds >= a.seconds + b.seconds:
            return None
        return Chosen(a.name, axes, term, schedule, seconds, False, parts)


def _merged(kernels: Sequence[K], as_one: Joining[K]) -> list[K]:
    """The kernels, those of a call that share what they read as one where `as_one` gives one.

    A kernel goes to the place of an earlier one, if all that it reads is there by then.
    """
    found: list[K] = []
    place: dict[str, int] = {}  # of the kernel that stores each value
    for kernel in kernels:
        reads = set(kernel.reads)
        first = 1 + max((place[name] for name in reads if name in place), default=-1)
        tried = [] if kernel.free else range(first, len(found))
        near = (n for n in tried if not (found[n].free or reads.isdisjoint(found[n].reads)))
        joined = ((n, both) for n in near if (both := as_one(found[n], kernel)) is not None)
        n, made = next(joined, (len(found), kernel))
        found[n : n + 1] = [made]
        place.update(dict.fromkeys(kernel.names, n))
    return found


@dataclass(frozen=True)
class _Priced:
    """A node with what it costs itself, the buffer that it loads (a bit), and of each operand how
    often it is computed for it and which buffers it reaches."""

    own: float
    node: ENode
    buffer: int
    operands: tuple[tuple[str, float, int], ...]


_Way = tuple[float, _Priced]  # the best one found to compute a class, and its cost as a tree
LAST_RESORT = 1e30
BLOCK = 64  # rows that share a loop which runs rolling sums


class _Cheapest:
    """The cheapest term of a class for one kernel, by dynamic programming over the e-graph.

    A node counts once for each point of its axes (a whole vector of points at a time if it depends
    on the vector axis). What depends on the axis of a reduction around it stands in its loop, and
    counts once more for each tile of the axes that it lacks and what reads it has.
    """

    def __init__(self, extractor: Extractor, vector: Axis | None, rolls: bool):
        self.extractor = extractor
        self.rolls = rolls  # whether a sum is a rolling one where it can be
        self.target = extractor.target
        self.vector = vector
        self.again, self.times = cache(self._again), cache(self._times)
        self.priced = cache(self._find_priced)
        self.memo: dict[tuple[str, int], _Way | None] = {}
        self.built: dict[tuple[str, int], Term] = {}
        self.open: dict[tuple[str, int], int] = {}  # what is being looked at, and how deep
        self.cycle = 1 << 30  # the least depth that a cycle led back to

    def term(self, root: str, allowed: int) -> Term:
        """The cheapest term of a class that loads no buffers but the allowed ones."""
        key = (root, allowed & self.extractor.reaches[root])
        if key not in self.built:
            node = self._found(root, allowed)[1].node
            self.built[key] = node.build([self.term(child, allowed) for child in node.children])
        return self.built[key]

    def guess(self, name: str, mask: int) -> _Guess:
        """What the kernel of a value costs, each part of its term once."""
        search, memo = self.extractor, self.memo
        value, allowed = search.candidates[name], mask | search.given
        times: dict[str, float] = {}
        costs: dict[str, float] = {}
        stack, loads, made = [(value.where, 1.0, search.reaches[value.where])], 0, {}
        while stack:
            where, often, reach = stack.pop()
            if often > times.get(where, 0.0):
                _, found = memo.get((where, allowed & reach)) or self._found(where, allowed)
                times[where] = often
                costs[where] = found.own * often
                loads |= found.buffer
                made[where] = found.node
                stack += [(c, often * n, reach) for c, n, reach in found.operands]
        nodes = made.values()
        stored = float(value.points * value.dtype.bytes)
        folds = frozenset(n.attr for n in nodes if n.op in BINDERS)
        scores = [search.axes[n.children[0]] for n in nodes if n.op in ROLLING]
        rows = frozenset(value.axes).intersection(frozenset().union(*scores))
        key, rolls = ((name, mask),), bool(scores)
        return _Guess(
            search, key, value.axes, costs, loads, stored, folds, rows, value.free, self, rolls
        )

    def _found(self, where: str, allowed: int) -> _Way:
        way = self._best(where, allowed)
        if way is None:
            raise CompileError("the e-graph offers no way to compute a value")
        return way

    def _best(self, where: str, allowed: int) -> _Way | None:
        key = (where, allowed & self.extractor.reaches[where])
        if key in self.memo:
            return self.memo[key]
        if key in self.open:
            self.cycle = min(self.cycle, self.open[key])
            return None
        depth = self.open[key] = len(self.open)
        above, self.cycle = self.cycle, 1 << 30
        best, least = None, float("inf")
        held = self.extractor.loads[where] & allowed & ~self.extractor.free  # read it, if it is
        for priced in self.priced(where):
            if priced.buffer & ~allowed or (held and not priced.buffer):
                continue
            total = priced.own
            for child, often, reach in priced.operands:
                if total >= least:
                    break
                way = self.memo.get((child, allowed & reach)) or self._best(child, allowed)
                total = total + way[0] * often if way is not None else least
            if total < least:
                least, best = total, (total, priced)
        del self.open[key]
        if self.cycle >= depth:  # what was left out for a cycle through others is not remembered
            self.memo[key] = best
            self.cycle = above
        else:
            self.cycle = min(self.cycle, above)
        return best

    def _find_priced(self, where: str) -> list[_Priced]:
        """The nodes of a class with what each costs."""
        if not self.rolls:
            return [self._price(node, where) for node in self.extractor.graph.classes[where]]
        found = self.extractor._cheapest(self.vector, False).priced(where)
        rolling = any(p.node.op in ROLLING for p in found)
        return [p for p in found if not rolling or p.buffer or p.node.op in ROLLING]

    def _price(self, node: ENode, where: str) -> _Priced:
        below = [self.extractor.axes[child] for child in node.children]
        around = frozenset().union(*below, node.template.axes if node.template is not None else ())
        own = self._own_price(node, around)
        if not around - {node.attr} <= self.extractor.axes[where]:
            own = LAST_RESORT  # it has axes that its value does not depend on
        if node.op in ROLLING:  # for each block of its rows a loop of its own
            again = [prod(max(1.0, a.size / BLOCK) for a in below[0] - axes) for axes in below]
        else:
            again = [self.again(around, axes) for axes in below]
        reaches = [self.extractor.reaches[child] for child in node.children]
        operands = tuple(zip(node.children, again, reaches, strict=True))
        return _Priced(own, node, self.extractor.bit.get(node.loaded or "", 0), operands)

    def _again(self, around: frozenset[Axis], axes: frozenset[Axis]) -> float:
        """How often an operand with these axes is computed where it is read."""
        if not any(a.name.startswith("r") for a in axes):
            return 1.0  # before the loops
        times = prod(max(1.0, a.size / self._tile(a)) for a in around - axes)
        # where what reads it is a vector of another axis, its own places come one by one
        apart = self._vector_axis(around) in around - axes
        return times * self.target.lanes(32) if apart else times

    def _own_price(self, node: ENode, axes: frozenset[Axis]) -> float:
        if node.op == "contract":
            return self.times(axes) * 1.2
        if node.op in ROLLING:
            if node.op == "scatter":
                axes = axes - self.extractor.axes[node.children[2]]
            rolls = node.op in ("roll", "part")
            scores = self.times(self.extractor.axes[node.children[0]])
            inside = INSTRUCTIONS["exp2"] if rolls else 2.0
            return self.times(axes) * (1.2 if rolls else 1.8) + scores * inside
        term = node.template
        if term is None or term.op != "load":
            return self.times(axes) * INSTRUCTIONS.get(node.op, 1.0)
        wide = self._vector_axis(axes)
        spread = self.vector is not None and wide != self.vector  # one element for a whole vector
        lanes = self.target.lanes(32)
        row = wide is None or spread or contiguous_along(term.attr[1], wide, lanes)
        if row and not term.outside:
            return self.times(axes) * cost.VECTOR_LOAD
        each = cost.SCALAR_LOAD * 2 + cost.CLAMP * term.outside
        return self.times(axes) * each * self.target.lanes(term.dtype.bits)

    def _vector_axis(self, axes: frozenset[Axis]) -> Axis | None:
        if self.target.is_gpu:
            return None
        if self.vector is not None and self.vector in axes:
            return self.vector
        inner = [a for a in axes if a.name.startswith("r")]
        return max(inner, key=lambda a: a.name) if inner else None

    def _times(self, axes: frozenset[Axis]) -> float:
        points = float(prod(a.size for a in axes))
        if self._vector_axis(axes) is not None:
            points /= self.target.lanes(32)
        return points

    def _tile(self, axis: Axis) -> int:
        if self.target.is_gpu:
            return 1
        if axis == self.vector:
            return 2 * self.target.lanes(32)
        return self.target.lanes(32) if axis.name.startswith("r") else 4
