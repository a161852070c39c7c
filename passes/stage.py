"""Staged programs: one loop over blocks of an axis runs every fold over that axis.

In: a kernel's term whose schedule says `fold`. Out: a program's steps. Each step is a small kernel
in itself: it stores a term at every point of a block, into a local buffer or into the output.

    roll(j, s[i, j], v[j, e])    for each block of j:   S[i, j] = s     N[i] = larger(M, max(j, S))
                                     P[i, j] = exp2(S - N)              B[i] = exp2(M - N); M = N
                                     A[i, e] = A * B + sum(j, P * v)

The running maximum M starts at -inf, and so long as it is -inf the differences are taken from 0:
each P is exp2(-inf) = 0 then. A row whose maximum stays -inf is NaN, as -inf - -inf is.

Blocks in which every score is -inf are passed over, where a condition on positions says so. (A
weight that is infinite or NaN there makes the plain sum NaN, and not this one.)

If one block is the whole axis, what reads exp2(s - max(j, s)) after it finds it in P. Memory would
be idle while P is computed: what the next program loads and stores is brought near then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ..dialect import DTYPES, DType
from . import terms
from .index import Axis, Expr, of_axis, of_term, substitute
from .schedule import Schedule
from .terms import FOLDS, ROLLING, Term, postorder

Choose = Callable[[tuple[Axis, ...], Term], Schedule]  # how a step runs
OUTPUT = "out"
# What a loop keeps in how many buffers, of a fold: its total; of a score: the maximum so far, the
# one with this block, and the factor between them; of what is centred: the mean so far, the one
# with this block, and the block's own; of weights: their sum so far.
STATES = {"total": 1, "top": 3, "mean": 3, "weight": 1}
LOCAL_BYTES = 1 << 20  # of a program's local buffers, at most: they lie on a thread's stack


@dataclass(frozen=True)
class Step:
    """It stores `term`, or each of its results, at every point of `axes` into a buffer."""

    buffers: tuple[str, ...]
    index: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    term: Term
    schedule: Schedule
    ahead: tuple[Term, ...] = ()  # what to bring near meanwhile: loads at the same points

    @property
    def once(self) -> bool:
        """Whether no element may be stored twice, as it is read where it is stored."""
        return self.buffers[0].startswith("%") or any(e.data for e in self.index)


@dataclass(frozen=True)
class Phase:
    """Steps that run for each block of an axis from `start` up to `stop`; once, if there is none.

    Blocks below `low` or from `high` on, two functions of the program's place, change nothing.
    """

    steps: tuple[Step, ...]
    axis: Axis | None = None
    start: int = 0
    stop: int = 1
    step: int = 1
    low: Expr | None = None
    high: Expr | None = None

    @property
    def turns(self) -> float:
        """How often the steps run, on average over the programs."""
        first, last = (
            sum(min(max(n, self.start), self.stop) for n in end.range) / 2
            for end in (self.low or Expr(self.start), self.high or Expr(self.stop))
        )
        return max(1.0, (last - first) / self.step)


@dataclass(frozen=True)
class Staged:
    """What a program does: the axes that place it, its local buffers, its phases in order."""

    outer: tuple[Axis, ...]
    buffers: dict[str, tuple[tuple[int, ...], DType]]
    phases: tuple[Phase, ...]

    @property
    def local_bytes(self) -> int:
        """What the local buffers take."""
        return sum(prod(shape) * dtype.bytes for shape, dtype in self.buffers.values())


def fold_axis(root: Term) -> Axis | None:
    """The axis of a term's rolling sums; None if there are none, or none that can be staged."""
    rolls = [t for t in postorder([root]) if t.op in ROLLING]
    if not rolls or any(t.dtype.bits == 16 or t.attr != rolls[0].attr for t in rolls):
        return None
    folds = [t for t in postorder([root]) if t.op in FOLDS and t.attr == rolls[0].attr]
    inner = {t.attr for t in postorder([root]) if t.op in FOLDS}
    if any(t.op == "scatter" for t in rolls):  # a kernel that adds to what it stores
        alone = root.op == "scatter" and len(rolls) == 1
        return root.attr if alone and root.args[2].attr in map(of_axis, root.axes) else None
    return rolls[0].attr if all(not t.axes & inner for t in folds) else None


def kept_in(term: Term) -> DType:
    """The dtype that a term's running value has: sums of less than 32 bits are kept in 32, in which
    integers wrap alike."""
    if term.op != "sum" or term.dtype.bits >= 32 or term.dtype.kind == "bool":
        return term.dtype
    return DTYPES["float32" if term.dtype.is_float else "int32"]


def stage(
    root: Term, axes: tuple[Axis, ...], schedule: Schedule, choose: Choose, packs: bool = True
) -> Staged:
    """The steps of a kernel that stores `root` at every point of `axes`; it `packs` what sums read
    along their axis."""
    stager = _Stager(root, axes, schedule, choose, packs)
    return stager.scatter() if root.op == "scatter" else stager.run()


@dataclass
class _Turn:
    """One block of the folded axis: where it lies, what holds a term's value, the steps so far."""

    start: Expr
    axis: Axis
    places: dict[Axis, Expr]
    known: dict[Term, Term]
    steps: list[Step] = field(default_factory=list)

    def at(self, x: Term) -> Term:
        """A term at the places of the block."""
        return terms.at(x, self.places, self.known)


class _Stager:
    def __init__(
        self, root: Term, axes: tuple[Axis, ...], schedule: Schedule, choose: Choose, packs: bool
    ):
        self.root, self.axes, self.schedule, self.choose = root, axes, schedule, choose
        self.packs = packs
        axis = fold_axis(root)
        assert axis is not None
        self.axis = axis
        self.buffers: dict[str, tuple[tuple[int, ...], DType]] = {}
        self.outer: list[Axis] = []
        self.inner: dict[Axis, Axis] = {}
        self.places: dict[Axis, Expr] = {}
        for a in axes:
            self._cut(a, schedule.block(a))
        self.first: list[Step] = []  # what is stored before a loop
        self.states: dict[Any, tuple[Term, ...]] = {}  # the local buffers of a fold, or of a score
        self.finished: dict[Term, Term] = {}
        self.shares = dict(self._found_shares())

    def _cut(self, axis: Axis, block: int) -> None:
        place = Expr(0)
        if block < axis.size:
            start = Axis(axis.name, axis.size - block + 1)
            self.outer.append(start)
            place = of_axis(start)
        if block > 1:
            self.inner[axis] = Axis(f"{axis.name}i", block)
            place = place + of_axis(self.inner[axis])
        self.places[axis] = place

    def _inside(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """The axes of a block."""
        return tuple(self.inner[a] for a in axes if a in self.inner)

    def _found_shares(self) -> Iterator[tuple[Term, tuple[Term, Axis]]]:
        """Each exp2(score - maximum) that is read at places of another axis, if one block holds
        them all; its score, and that axis."""
        parts, size = postorder([self.root]), self.axis.size
        powers = [x for x in parts if x.op == "exp2"] if self.schedule.fold >= size else []
        for a in (a for a, inner in self.inner.items() if a.size == inner.size == size):
            for score in dict.fromkeys(t.args[0] for t in parts if t.op in ("roll", "part")):
                most = terms.reduction("max", self.axis, score)
                power = terms.factors(terms.at(score, {self.axis: of_axis(a)}) - most)
                yield from ((x, (score, a)) for x in powers if terms.factors(x.args[0]) == power)

    def run(self) -> Staged:
        parts = postorder([self.root], self.shares.__contains__)
        folds = [t for t in parts if t.op in FOLDS and t.attr == self.axis]
        depth: dict[Term, int] = {}
        for f in folds:  # a fold that reads another's finished value needs a loop of its own
            below = [depth[t] for t in postorder(list(f.args)) if t in depth]
            depth[f] = 1 + max(below, default=0)
        phases: list[Phase] = []
        for level in sorted(set(depth.values())):
            group = [f for f in folds if depth[f] == level]
            self.first = []
            loops = list(self._loops(group))
            phases += [Phase(tuple(self.first)), *loops]
            self.finished |= {f: self._result(f) for f in group}
        for x, (score, a) in self.shares.items():
            share = terms.at(self.states["share", score][0], {self.axis: of_axis(self.inner[a])})
            self.finished[x] = self._if_set(score, share)
        last = []
        for n, (result, rank) in enumerate(terms.outcomes(self.root, len(self.axes))):
            value = terms.at(result, self.places, self.finished)
            last.append(self._output(n, self.axes[:rank], value))
        return Staged(tuple(self.outer), self.buffers, (*phases, Phase(tuple(last))))

    def scatter(self) -> Staged:
        """Zeros, and then for each place of the folded axis an addition at the place it names."""
        zero = terms.constant(0, self.root.dtype)
        first = self._output(0, self.axes, zero)
        (target,) = self.root.args[2].axes
        along = Axis(f"{self.axis.name}o", self.axis.size)
        places = {**self.places, self.axis: of_axis(along)}
        place, value = (terms.at(x, places) for x in self.root.args[:2])
        there = of_term(place)
        index = tuple(there if a == target else self.places[a] for a in self.axes)
        shape = tuple(a.size for a in self.axes)
        before = terms.load(f"{OUTPUT}0", index, shape, self.root.dtype)
        after = before + terms.select(terms.inside(there, target.size), value, zero)
        inner = tuple(i for a, i in self.inner.items() if a != target)
        steps = (self._step(f"{OUTPUT}0", index, inner, after),)
        loop = Phase(steps, along, 0, self.axis.size) if self.axis.size > 1 else Phase(steps)
        return Staged(tuple(self.outer), self.buffers, (Phase((first,)), loop))

    def _loops(self, group: list[Term]) -> Iterator[Phase]:
        """The whole blocks of the axis, then the rest of it."""
        size = min(self.schedule.fold, self.axis.size)
        end = self.axis.size // size * size
        low, high = _reach(group, self.axis, self._bound)
        outer = Axis(f"{self.axis.name}o", end - size + 1)
        steps = self._turn(group, of_axis(outer), size)
        yield Phase(steps, outer, 0, end, size, low, high) if end > size else Phase(steps)
        if self.axis.size > end:
            yield Phase(self._turn(group, Expr(end), self.axis.size - end))

    def _bound(self, expr: Expr) -> Expr:
        """The largest value of an expression in this program, by the program's place."""
        placed, inner = substitute(expr, self.places), self.inner.values()
        grows = {a for a in inner if (placed.coefficient(a) or 0) > 0}
        return substitute(placed, {a: Expr(a.size - 1 if a in grows else 0) for a in inner})

    # --- one turn -----------------------------------------------------------------------------

    def _turn(self, group: list[Term], start: Expr, size: int) -> tuple[Step, ...]:
        axis = Axis(f"{self.axis.name}i", size)
        places = {**self.places, self.axis: start + of_axis(axis)}
        turn = _Turn(start, axis, places, dict(self.finished))
        self._store_shared(turn, group)
        shares: dict[Term, Term] = {}
        for score in dict.fromkeys(f.args[0] for f in group if f.op in ("roll", "part")):
            self._store(turn, score)
            others = [x for f in group for x in f.args if x is not score]
            shares[score] = self._shift(turn, score, score in postorder(others))
        for f in group:  # what is folded over other axes is computed once for the block
            for part in _heavy(f.args, self.axis, turn.known):
                self._store(turn, part)
        centres = dict.fromkeys(f.args[0] for f in group if f.op in ("spread", "tilt"))
        for x in centres:
            self._move_mean(turn, x)
        for f in group:
            if f.op == "max" and f.args[0] in shares:
                continue
            args = [turn.at(x) for x in f.args]
            if f.op in ("roll", "part"):
                self._roll(turn, f, shares[f.args[0]], args[1])
            elif f.op in ROLLING:
                self._centre(turn, f, args)
            else:
                (total,) = self._state("total", f)
                part = terms.reduction(f.op, turn.axis, terms.cast(args[0], total.dtype))
                new = total + part if f.op == "sum" else terms.apply("larger", total, part)
                self._assign(turn.steps, total, new)
        for x in centres:
            mean, new, _ = self._state("mean", x)
            self._assign(turn.steps, mean, new)
        return tuple(turn.steps)

    def _store_shared(self, turn: _Turn, group: list[Term]) -> None:
        """Store the folds over other axes that several arguments read."""
        arguments = dict.fromkeys(x for f in group for x in f.args)
        readers = Counter(part for x in arguments for part in _heavy([x], self.axis, turn.known))
        for part, count in readers.items():
            if count > 1:
                self._store(turn, part)

    def _roll(self, turn: _Turn, fold: Term, share: Term, weight: Term) -> None:
        (total,) = self._state("total", fold)
        _, _, scale = self._state("top", fold.args[0])
        part = terms.reduction("sum", turn.axis, terms.cast(share, weight.dtype) * weight)
        self._assign(turn.steps, total, total * scale + part)

    def _move_mean(self, turn: _Turn, x: Term) -> None:
        """The mean of the block, and the mean with it: mean + (block's - mean) * size / places."""
        mean, new, own = self._state("mean", x)
        size = terms.constant(1 / turn.axis.size, x.dtype)
        apart = terms.reduction("sum", turn.axis, turn.at(x) - mean)
        self._assign(turn.steps, own, mean + apart * size)
        self._assign(turn.steps, new, mean + (own - mean) * self._part(turn, x.dtype))

    def _part(self, turn: _Turn, dtype: DType) -> Term:
        """The block's part of all places so far."""
        seen, size = turn.start + turn.axis.size, terms.constant(turn.axis.size, dtype)
        return size * terms.apply("recip", terms.index(seen, dtype))

    def _centre(self, turn: _Turn, fold: Term, args: list[Term]) -> None:
        """A sum of differences from the mean so far, corrected for how the mean moves.

        Of squares: those from the block's own mean, and the square of how far this is from the mean
        before (Chan, Golub and LeVeque, Updating formulae, 1979). Weighted: each weight so far is
        further from the mean by what the mean moves.
        """
        (total,) = self._state("total", fold)
        mean, new, own = self._state("mean", fold.args[0])
        if fold.op == "spread":
            off, apart = args[0] - own, own - mean
            before = terms.index(turn.start, fold.dtype)
            near = terms.reduction("sum", turn.axis, off * off)
            far = apart * apart * (before * self._part(turn, fold.dtype))
            self._assign(turn.steps, total, total + (near + far))
            return
        (weights,) = self._state("weight", fold.args[1])
        part = terms.reduction("sum", turn.axis, (args[0] - new) * args[1])
        self._assign(turn.steps, total, total + ((mean - new) * weights + part))
        self._assign(turn.steps, weights, weights + terms.reduction("sum", turn.axis, args[1]))

    def _shift(self, turn: _Turn, score: Term, again: bool) -> Term:
        """Move the running maximum of a score; exp2(score - maximum) for the block.

        That takes the score's place, unless the score itself is read again.
        """
        block = turn.known[score]
        top, new, scale = self._state("top", score)
        highest = terms.apply("larger", top, terms.reduction("max", turn.axis, block))
        self._assign(turn.steps, new, highest)
        base = terms.select(terms.is_set(new), new, terms.constant(0, score.dtype))

        dtype = self._share_dtype(score)
        apart = again or dtype != block.dtype  # in a buffer of its own
        share = self._local(score.axes, dtype, turn.axis) if apart else block
        self.states["share", score] = (terms.at(share, {turn.axis: of_axis(self.axis)}),)
        self._assign(turn.steps, share, terms.cast(terms.apply("exp2", block - base), dtype))
        if self.shares:
            turn.steps[-1] = replace(turn.steps[-1], ahead=tuple(self._ahead(turn, score)))
        self._assign(turn.steps, scale, terms.apply("exp2", top - base))
        self._assign(turn.steps, top, new)
        return share

    def _share_dtype(self, score: Term) -> DType:
        """What shares are kept in: 16 bits, where that is what they are multiplied by and what the
        result has, and such products are faster. A share is 1 at most: it is off by 2^-12 of that,
        or 2^-9, as its weight is."""
        rolls = [t for t in postorder([self.root]) if t.op == "roll" and t.args[0] is score]
        weights = [t.args[1] for t in rolls if t.args[1].op != "const"]
        kinds = {w.args[0].dtype if w.op == "cast" else w.dtype for w in weights}
        halves = kinds == {self.root.dtype} and self.root.dtype.bits == 16 and not self.packs
        return self.root.dtype if halves else score.dtype

    def _ahead(self, turn: _Turn, score: Term) -> Iterator[Term]:
        """What the next program loads at the points of a score, and the results it stores there."""
        found = [x for x in postorder([score]) if x.op == "load" and not x.children]
        for n, (result, rank) in enumerate(terms.outcomes(self.root, len(self.axes))):
            index, shape = map(of_axis, self.axes[:rank]), tuple(a.size for a in self.axes[:rank])
            here = {a: of_axis(self.axis) for _, a in self.shares.values()}
            found.append(terms.at(terms.load(f"{OUTPUT}{n}", (*index,), shape, result.dtype), here))
        for last in self.outer[-1:]:
            for x in found:
                if x.axes <= score.axes and last in turn.at(x).axes:
                    yield terms.at(turn.at(x), {last: of_axis(last) + self.schedule.block(last)})

    def _result(self, fold: Term) -> Term:
        """The value of a fold after its loop."""
        if ("total", fold) in self.states:
            total = self.states["total", fold][0]
            known = terms.cast(total, fold.dtype)
            return self._if_set(fold.args[0], known) if fold.op == "roll" else known
        return self.states["top", fold.args[0]][0]  # the maximum of a score

    def _if_set(self, score: Term, value: Term) -> Term:
        """A value where the maximum of a score is above -inf, else NaN."""
        nan = terms.constant(float("nan"), value.dtype)
        return terms.select(terms.is_set(self.states["top", score][0]), value, nan)

    # --- local buffers ------------------------------------------------------------------------

    def _state(self, kind: str, x: Term) -> tuple[Term, ...]:
        """Local buffers over a term's axes without the folded one, as in `STATES`; the first starts
        where nothing is folded yet."""
        if (kind, x) not in self.states:
            dtype = kept_in(x)
            kept = [self._local(x.axes - {self.axis}, dtype) for _ in range(STATES[kind])]
            first = {"total": terms.identity(x.op, x.dtype), "top": float("-inf")}.get(kind, 0)
            self._assign(self.first, kept[0], terms.constant(first, dtype))
            self.states[kind, x] = tuple(kept)
        return self.states[kind, x]

    def _local(self, axes: frozenset[Axis], dtype: DType, *more: Axis) -> Term:
        """A load from a new local buffer over the blocks of these axes."""
        dims = (*self._inside(a for a in self.axes if a in axes), *more)
        name, shape = f"%{len(self.buffers)}", tuple(a.size for a in dims)
        self.buffers[name] = (shape, dtype)
        return terms.load(name, tuple(map(of_axis, dims)), shape, dtype)

    def _store(self, turn: _Turn, x: Term) -> None:
        """Put a term's values in the block into a local buffer, its operands packed before."""
        value = turn.at(x)
        packed = {
            load: self._pack(turn, load, axis)
            for load, axis in _across(value, turn.axis, set(self.inner.values()))
            if self.packs
        }
        turn.known[x] = self._local(x.axes, x.dtype, turn.axis)
        self._assign(turn.steps, turn.known[x], terms.at(value, {}, packed))

    def _pack(self, turn: _Turn, load: Term, axis: Axis) -> Term:
        """A copy of what a turn loads, so that neighbours along the turn's axis are neighbours."""
        local = self._local(frozenset(), load.dtype, axis, turn.axis)
        self._assign(turn.steps, local, load)
        return local

    def _assign(self, steps: list[Step], local: Term, value: Term) -> None:
        name, index, _ = local.attr
        axes = tuple(a for expr in index for a in expr.axes)
        steps.append(self._step(name, index, axes, value))

    def _output(self, number: int, axes: tuple[Axis, ...], value: Term) -> Step:
        """It stores a result at every point of the program's block."""
        index = tuple(self.places[a] for a in axes)
        return self._step(f"{OUTPUT}{number}", index, self._inside(axes), value)

    def _step(
        self, buffer: str, index: tuple[Expr, ...], axes: tuple[Axis, ...], term: Term
    ) -> Step:
        return Step((buffer,), index, axes, term, self.choose(axes, term))


def _heavy(roots: Sequence[Term], axis: Axis, known: dict[Term, Term]) -> list[Term]:
    """The outermost folds over other axes that depend on this one, the last one first."""

    def heavy(x: Term) -> bool:
        return x.op in FOLDS and axis in x.axes

    def below(x: Term) -> Sequence[Term]:
        return () if heavy(x) else x.children[::-1]

    return [x for x in postorder(roots[::-1], known.__contains__, below) if heavy(x)]


def _across(value: Term, axis: Axis, rows: set[Axis]) -> list[tuple[Term, Axis]]:
    """Loads inside a sum that lie along the summed axis, not along `axis`, and serve all rows."""
    found = []
    for x in postorder([value]):
        if x.op != "load" or axis not in x.axes or x.axes & rows or not value.axes & rows:
            continue
        last = x.attr[1][-1]
        along = [a for a in last.axes if a != axis and a not in value.axes]
        if len(along) == 1 and last.coefficient(along[0]) == 1 and axis not in last.axes:
            found.append((x, along[0]))
    return found


# --- blocks that change nothing -----------------------------------------------------------------


def _reach(
    group: list[Term], axis: Axis, bound: Callable[[Expr], Expr]
) -> tuple[Expr | None, Expr | None]:
    """From where and up to where along the axis some fold of the group may change."""
    ends: list[tuple[Expr | None, Expr | None]] = []
    for f in group:
        neutral = terms.identity("sum" if f.op == "sum" else "max", f.args[0].dtype)
        low = high = None
        centred = f.op in ("spread", "tilt")  # every value moves the mean
        for expr in () if centred else _conditions(f.args[0], neutral):
            factor = expr.coefficient(axis)
            if factor not in (1, -1) or any(not isinstance(a, Axis) for a, _ in expr.parts):
                continue
            rest = bound(substitute(expr, {axis: Expr(0)}))
            if factor == 1:  # axis + rest >= 0
                low = rest * -1
            else:
                high = rest + 1
        ends.append((low, high))
    low, high = (every[0] if len({*every}) == 1 else None for every in zip(*ends, strict=True))
    return low, high


def _conditions(value: Term, neutral: float) -> list[Expr]:
    """Expressions that are below 0 only where a value is the neutral element of its fold."""
    if value.op == "select" and value.args[2].op == "const" and value.args[2].value == neutral:
        return _needs(value.args[0]) + _conditions(value.args[1], neutral)
    if neutral != float("-inf"):
        return []
    parts = {t: c for t, c in terms.factors(value).items() if t is not value and 0 < c < -neutral}
    return [e for t in parts for e in _conditions(t, neutral)]  # a sum is -inf where one of it is


def _needs(condition: Term) -> list[Expr]:
    """Expressions that are all 0 or more where a condition holds."""
    if condition.op == "nonneg":
        return [condition.attr]
    return [e for a in condition.args for e in _needs(a)] if condition.op == "mul" else []
