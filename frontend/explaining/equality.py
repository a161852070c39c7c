"""Why terms are equal: a search that is watched, and the fewest rules and steps that it takes.

    trace = Trace(Question(((naive, chosen),)))
    trace.same(naive, chosen)          whether the e-graph found them equal
    trace.proof([(naive, chosen)])     equations that it follows from
    explained(trace.question)          the answer, in words

The e-graph keeps no proofs. So after each rule the places where its laws hold are marked in it, and
each place is an equation; whatever it finds follows from these by congruence (see `closure`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from types import MappingProxyType
from typing import Any, NamedTuple

from .. import engine as engine  # before what needs egglog: it loads no more than that
from ..passes import egraph, rules, terms
from ..passes.egraph import Budget, EGraph, Saturated, Split, saturate
from ..passes.index import Axis, of_axis
from ..passes.rules import TABLE, Rule
from ..passes.terms import Term
from .closure import Closure, Made, Pool
from .laws import Call, Law, Snapshot, Tree, build, laws_of, marks, parsed, variables
from .wording import Explanation, Result, Step, Words

Pair = tuple[Term, Term]
JOINED = dict(egraph.JOINED)  # laws that are joined before any rule, by name
VARIANTS = 24  # ways to name the axes of a term
WITHOUT_SEARCH = {
    "cut": "x[j] = x, read at the place that the parts of j give",
    "fold": "a number that a rule made is rounded to its dtype",
}


@dataclass(frozen=True)
class Question:
    """What the e-graph is asked: are these pairs equal?

    `equal`, `splits` and `early` are those of `passes.egraph.saturate`.
    """

    pairs: tuple[Pair, ...]
    precision: str = "fast"
    equal: tuple[Pair, ...] = ()
    splits: tuple[Split, ...] = ()
    early: Collection[str] = ()

    @property
    def roots(self) -> list[Term]:
        """The terms, with the sums that rolling ones stand for."""
        return list(dict.fromkeys(terms.plain(t) for pair in self.pairs for t in pair))


class Equation(NamedTuple):
    """A law at a place: two terms, by number. `iteration` is None where no search was needed."""

    rule: str
    law: int | None  # which of the rule's, if the e-graph searches for them
    iteration: int | None
    left: int
    right: int


class Numbers:
    """Terms as nodes in a pool; `order` is that in which they were put into the e-graph."""

    def __init__(self, order: Iterable[Term]):
        self.pool = Pool()
        self.terms: list[Term] = []
        self._index: dict[Term, int] = {}
        self._number: dict[Term, int] = {}
        for t in order:
            self.add(t)

    def __contains__(self, t: Term) -> bool:
        return t in self._number

    def add(self, root: Term) -> int:
        """The number of a term."""
        for t in terms.postorder([root], lambda t: t in self._number):
            self._index[t] = len(self.terms)
            self.terms.append(t)
            self._number[t] = self._add(t)
        return self._number[root]

    def _add(self, t: Term) -> int:
        def make(made: Made) -> int:
            named = made.op == "named"
            return self._number[self.terms[int(made.data[0])]] if named else self.pool.add(made)

        return build(parsed(egraph.encode(t, self._index))[0], {}, make)


# --- searching ----------------------------------------------------------------------------------


class Search:
    """A saturated e-graph, and the terms that were put in.

    A number that a rule makes is rounded to its dtype where it is a term's, but not in the e-graph
    (where 0.1 * 3 is more exact than any float32); so both are joined as soon as it is made.
    """

    numbers: Numbers
    graph: EGraph | None = None

    def __init__(self, question: Question, without: Collection[str] = ()):
        self.question = question
        active = rules.active(question.precision)
        self.allowed = {r.name: r for r in active if r.name not in without}
        asked = (question.roots, question.equal, question.precision, Budget(12, 60_000, 60.0))
        self.final = saturate(*asked, without, self._watch, question.splits, question.early)
        if self.graph is None:
            self.graph = self._begin(self.final)
        self.now = Snapshot.of(self.final.graph)

    def same(self, a: Term, b: Term) -> bool:
        """Whether both terms are in one class."""
        x, y = self.numbers.add(a), self.numbers.add(b)
        found = self.now.places(self.numbers.pool)
        return x == y or (x in found and found[x] == found.get(y))

    def _watch(self, rule: str, iteration: int, read: Callable[[], Saturated]) -> None:
        """After a rule that changed something."""
        if self.graph is None:
            self.graph = self._begin(read())
        self._after(self.graph, self.allowed[rule], iteration)

    def _begin(self, state: Saturated) -> EGraph:
        """Number the terms that were put in; the e-graph."""
        self.numbers = Numbers(state.class_of)
        return state.graph

    def _after(self, graph: EGraph, rule: Rule, iteration: int) -> None:
        if any(_computes(law.right) for law in laws_of(rule)):
            self._round(graph, Snapshot.of(graph))

    def _round(self, graph: EGraph, now: Snapshot) -> list[tuple[Made, Made]]:
        """Join numbers with what they are in their dtype; those that were not joined yet."""
        found = [pair for pair in now.unrounded() if now.find(pair[0]) != now.find(pair[1])]
        for pair in found:
            made, rounded = (f'(real "{x.data[0]}" {float.fromhex(x.data[1])!r})' for x in pair)
            egraph.tell(graph, f"(union {made} {rounded})")
        return found


class Trace(Search):
    """A search in which every use of a law becomes an equation."""

    def __init__(self, question: Question, without: Collection[str] = ()):
        self.equations: list[Equation] = []
        self._marked: set[str] = set()  # the rules whose marks the e-graph knows
        super().__init__(question, without)
        self.closure.enter(*(self.numbers.add(t) for pair in question.pairs for t in pair))

    def _join(self, new: Equation) -> None:
        self.closure.enter(new.left, new.right)
        if not self.closure.same(new.left, new.right):
            self.equations.append(new)
            self.closure.join(new.left, new.right, len(self.equations) - 1)

    def _begin(self, state: Saturated) -> EGraph:
        """The terms that were put in, and what was joined before any rule."""
        super()._begin(state)
        self.closure = Closure(self.numbers.pool)
        order, number = list(self.numbers.terms), self.numbers.add
        self.closure.enter(*map(number, order))
        joined = [("fusion", *pair) for pair in self.question.equal]
        joined += [(n, t, f(t)) for n, f in JOINED.items() if n in self.allowed for t in order]
        for name, x, y in joined:
            if y is not None and y in self.numbers:
                self._join(Equation(name, None, None, number(x), number(y)))
        for split in self.question.splits:
            for whole, axis, part in egraph.cut_parts(order, *split):
                if part in self.numbers:
                    cut = self.numbers.pool.add(Made("cut", (_axis(axis),), (number(whole),)))
                    self._join(Equation("cut", None, None, cut, number(part)))
        return state.graph

    def _after(self, graph: EGraph, rule: Rule, iteration: int) -> None:
        """The places where a rule holds, as equations; `commute` has none, for operands are in no
        order here."""
        if rule.name != "commute":
            new = [marks(rule)] if rule.name not in self._marked else []
            egraph.tell(graph, *new, f"(run marks_{rule.name} 1)")
            self._marked.add(rule.name)
            now = Snapshot.of(graph)
            self._see(rule, iteration, now)
            for pair in self._round(graph, now):
                self._join(Equation("fold", None, iteration, *map(self.numbers.pool.add, pair)))

    def _see(self, rule: Rule, iteration: int, now: Snapshot) -> None:
        """The equations at the marked places."""
        classes = now.places(self.numbers.pool)
        places: dict[str, list[int]] = {}
        for n in sorted(classes):
            if self.closure.root(n) == n:
                places.setdefault(classes[n], []).append(n)
        rows = [
            (n, law, row)
            for n, law in enumerate(laws_of(rule))
            for marked in now.marked.get(f"{rule.name}_{n}", ())
            for row in [dict(zip(law.variables, marked, strict=True))]
            if build(law.right, row, now.find) == marked[0]
        ]
        rows.sort(key=lambda r: (r[0], [f"{places.get(v, [v])[0]:>9}" for v in r[2].values()]))
        again = True
        while again:
            count = len(self.equations)
            for n, law, row in rows:
                for left, right in self._sides(law, row, places):
                    self._join(Equation(rule.name, n, iteration, left, right))
            again = len(self.equations) > count

    def _sides(
        self, law: Law, row: Mapping[str, Any], places: Mapping[str, list[int]]
    ) -> Iterator[tuple[int, int]]:
        """Both sides of a law at a marked place, as terms, wherever the left one is known."""
        names = [n for n in variables(law.left, law.right) if law.variables[n] == "Node"]
        roots = ({self.closure.root(n) for n in places.get(row[name], ())} for name in names)
        for choice in product(*map(sorted, roots)):
            values = {**row, **dict(zip(names, choice, strict=True))}
            if build(law.left, values, self.closure.find) is not None:
                for name, n in zip(names, choice, strict=True):
                    values[name] = self.closure.smallest[self.closure.root(n)]
                left, right = (
                    build(side, values, self.numbers.pool.add) for side in (law.left, law.right)
                )
                yield left, right

    # what an equality takes

    def proves(self, kept: Collection[int], goals: Sequence[tuple[int, int]]) -> Closure | None:
        """The closure of some equations, if pairs of numbers follow from them."""
        closure = Closure(self.numbers.pool)
        closure.enter(*(n for goal in goals for n in goal))
        for n in sorted(kept):
            equation = self.equations[n]
            closure.enter(equation.left, equation.right)
            closure.join(equation.left, equation.right, n)
        return closure if all(closure.same(*goal) for goal in goals) else None

    def proof(self, pairs: Sequence[Pair]) -> list[Equation] | None:
        """Equations that all of the pairs follow from; none of them, and no rule, can go.

        None where the equations are not enough.
        """
        goals = [(self.numbers.add(x), self.numbers.add(y)) for x, y in pairs]
        if not all(self.closure.same(*goal) for goal in goals):
            return None
        kept = self.closure.reasons(goals)
        used = {self.equations[n].rule for n in kept}
        kept = {n for n, e in enumerate(self.equations) if e.rule in used}
        for rule in reversed([name for name in self.allowed if name in used]):
            fewer = {n for n in kept if self.equations[n].rule != rule}
            if self.proves(fewer, goals):
                kept = fewer
        closure = self.proves(kept, goals)
        assert closure is not None
        kept = closure.reasons(goals)
        for n in sorted(kept, reverse=True):
            if self.proves(kept - {n}, goals):
                kept.remove(n)
        return [self.equations[n] for n in sorted(kept)]


def _axis(axis: Axis) -> str:
    """An axis as the e-graph has it."""
    return f"{axis.name}:{axis.size}"


def _computes(tree: Tree) -> bool:
    """Whether a side of a law has a number that is computed from others."""
    return isinstance(tree, Call) and (tree.sort == "f64" or any(map(_computes, tree.args)))


# --- the answer ---------------------------------------------------------------------------------


def explained(question: Question, names: Mapping[Term, str] = MappingProxyType({})) -> Explanation:
    """Find out; then with as few rules as can be; then tell it, with these names for terms."""
    trace, asked = Trace(question), question.pairs
    named = tuple(p if trace.same(*p) else _with_names(question, p) for p in asked)
    report = trace.final.report
    if named != asked:
        trace = Trace(replace(question, pairs=named))
    equal = [pair for pair in named if trace.same(*pair)]
    partings = {p: _parting(trace, *p) for p in named if p not in equal}
    rules, steps = set(), []
    if any(a is not b for a, b in equal):
        rules, trace, steps = _least(trace, equal)
    number = trace.numbers.add
    shown = [n for e in steps for n in (e.left, e.right)]
    shown += [number(t) for p in named for t in (*p, *partings.get(p, ()))]
    words = Words(trace.numbers, shown, {number(t): name for t, name in names.items()})

    def texts(pair: Pair) -> tuple[str, str]:
        return words.of(number(pair[0])), words.of(number(pair[1]))

    results = []
    for pair, before in zip(named, asked, strict=True):
        parting = partings.get(pair, pair)
        part = texts(parting) if parting != pair else None
        results.append(Result(*texts(pair), pair not in partings, pair != before, part))
    told = tuple(_step(e, words) for e in steps)
    ordered = tuple(row.name for row in TABLE if row.name in rules)
    return Explanation(tuple(results), told, ordered, words.shared, report)


def _step(e: Equation, words: Words) -> Step:
    row = next(r for r in TABLE if r.name == e.rule)
    law = WITHOUT_SEARCH.get(e.rule, row.law) if e.law is None else row.law.split("; ")[e.law]
    sides = words.of(e.left), words.of(e.right)
    return Step(row.name, law, row.kind, row.when, e.iteration, *sides)


def _least(trace: Trace, pairs: Sequence[Pair]) -> tuple[set[str], Trace, list[Equation]]:
    """Rules that together prove the pairs, and do not without one of them; and the equations of a
    trace that has no others, from which the pairs follow."""
    every = set(trace.allowed)

    def proves(kept: Collection[str]) -> bool:
        search = Search(trace.question, every - set(kept))
        return all(search.same(*pair) for pair in pairs)

    steps = trace.proof(pairs)
    used = {e.rule for e in steps or ()} | ({"commute"} & every)
    if steps is None or not proves(used):
        used = {e.rule for e in trace.equations} | ({"commute"} & every)
    for name, rule in reversed(trace.allowed.items()):
        searched = rule.rewrites or name in JOINED
        if name in used and searched and proves(used - {name}):
            used.remove(name)
    if steps is None or not {e.rule for e in steps} <= used:
        trace = Trace(trace.question, every - used)
        steps = trace.proof(pairs)
    assert steps is not None, f"the steps of {', '.join(used)} were not all seen"
    return used | {e.rule for e in steps}, trace, steps


def _parting(search: Search, a: Term, b: Term) -> Pair:
    """The innermost pair of terms where two terms are not equal, as long as that is one pair."""
    while a.op == b.op and a.attr == b.attr and len(a.args) == len(b.args):
        ways = [b.args, b.args[::-1]] if a.op in ("add", "mul") else [b.args]
        pairs = [zip(a.args, way, strict=True) for way in ways]
        apart = [[p for p in way if not search.same(*p)] for way in pairs]
        found = min(apart, key=len)
        if len(found) != 1:
            break
        a, b = found[0]
    return a, b


# --- other names for axes -----------------------------------------------------------------------


def _with_names(question: Question, pair: Pair) -> Pair:
    """The pair with the axes for which it is proved equal, if there are any.

    In the e-graph equal terms meet under equal names. But the names are those of a term as it was
    put in: (A B) x becomes A (B x) with the axes of (A B) x, and a part of an axis that was split
    has a name of its own.
    """
    left, right = pair
    known = [*_bound(left), *(a for split in question.splits for a in split)]
    variants = list(islice(_variants(right, known), VARIANTS))
    search = Search(replace(question, pairs=(pair, *((left, v) for v in variants))))
    return next(((left, v) for v in variants if search.same(left, v)), pair)


def _variants(t: Term, known: Iterable[Axis]) -> Iterator[Term]:
    """What a term is with other axes of the same sizes for its reductions."""
    own = _bound(t)
    every = sorted({*known, *own})
    for to in product(*([a for a in every if a.size == axis.size] for axis in own)):
        if len(set(to)) == len(own) and list(to) != own:
            yield _renamed(t, dict(zip(own, to, strict=True)))


def _bound(t: Term) -> list[Axis]:
    """The axes of a term's reductions."""
    return sorted({x.attr for x in terms.postorder([t]) if x.op in terms.FOLDS})


def _renamed(t: Term, axes: Mapping[Axis, Axis]) -> Term:
    """The same term with other axes of its reductions; no two may become one."""
    made: dict[Term, Term] = {}
    for x in terms.postorder([t]):
        if not x.args:
            places = {a: of_axis(axes[a]) for a in x.axes if a in axes}
            made[x] = terms.at(x, places, {c: made[c] for c in x.children})
        elif x.op in terms.FOLDS:
            made[x] = terms.reduction(x.op, axes[x.attr], *(made[a] for a in x.args))
        else:
            made[x] = terms.rebuild(x, made)
    return made[t]
