"""Where a rule applies in a program, and which of its conditions stop it elsewhere.

In the saturated e-graph the places of a law's left side are marked, and where each of its
conditions holds; what a place lacks is what stopped the rule there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from .. import engine as engine  # before what needs egglog: it loads no more than that
from ..passes import egraph, terms
from ..passes.rules import Rewrite, Rule
from ..passes.terms import Term
from .closure import COMMUTATIVE, Made
from .equality import JOINED, Numbers, Question, Search
from .laws import Call, Law, Snapshot, Tree, Var, build, laws_of, mark, sort_of, variables
from .wording import Place, WhyNot, Words, count

Row = tuple[Any, ...]  # the classes and data of a marked place


def look(rule: Rule, question: Question) -> WhyNot:
    """The places of a rule's shape in what the question asks about."""
    law = f"{rule.law}, where {rule.when}" if rule.when else rule.law
    allowed = question.precision == "fast" or rule.kind == "exact"
    if rule.rewrites:
        return _searched(rule, law, question, allowed)
    if rule.name in JOINED:
        return _joined(rule, question.roots, allowed)
    verdict = "applied when a term is built: what the e-graph sees went through it already"
    return WhyNot(rule.name, law, verdict)


def _searched(rule: Rule, law: str, question: Question, allowed: bool) -> WhyNot:
    """Of a rule that the e-graph searches for."""
    looked = _Looked(rule, question)
    places: dict[tuple[int, str], list[_Try]] = {}
    for n in range(len(rule.rewrites)):
        for found in looked.tries(n):
            places.setdefault((n, found.where), []).append(found)
    for key, found in places.items():
        applies = [t for t in found if not t.failing]
        places[key] = sorted(applies or found, key=lambda t: (len(t.failing), looked.rank(t.left)))
    tries = [t for found in places.values() for t in found]
    words = Words(looked.numbers, [t.left for t in tries] + [n for t in tries for n in t.parts], {})
    fired: list[Place] = []
    stopped: list[Place] = []
    for found in sorted(places.values(), key=lambda ts: looked.rank(ts[0].left)):
        told = sorted({t.told(words): None for t in found}, key=lambda t: (len(t[1]), t))
        place = Place(words.of(found[0].left), tuple((dict(names), f) for names, f in told))
        (stopped if found[0].failing else fired).append(place)
    verdict = _verdict(rule, allowed, len(fired), len(stopped)) + looked.early
    kept = (tuple(fired), tuple(stopped)) if allowed else ((), (*fired, *stopped))
    return WhyNot(rule.name, law, verdict, *kept, words.shared)


def _joined(rule: Rule, roots: list[Term], allowed: bool) -> WhyNot:
    """Of a law that is joined at the start."""
    numbers = Numbers(terms.postorder(roots))
    made = [(t, JOINED[rule.name](t)) for t in list(numbers.terms)] if allowed else []
    pairs = [(numbers.add(t), numbers.add(new)) for t, new in made if new is not None]
    words = Words(numbers, [n for pair in pairs for n in pair], {})
    places = tuple(Place(words.of(a), (({"": words.of(b)}, ()),)) for a, b in pairs)
    verdict = _verdict(rule, allowed, len(places), 0)
    return WhyNot(rule.name, rule.law, verdict, places, (), words.shared)


def _verdict(rule: Rule, allowed: bool, fired: int, stopped: int) -> str:
    if not allowed:
        would = f"; else it would apply at {count(fired, 'place')}" if fired else ""
        return f"left out: it is {rule.kind}, and precision 'strict' takes exact rules alone{would}"
    if fired:
        more = f", stopped at {stopped}" if stopped else ""
        return f"applied at {count(fired, 'place')}{more}"
    if stopped:
        return f"stopped: its shape is at {count(stopped, 'place')}, its conditions hold at none"
    return "no term has its shape"


class _Try(NamedTuple):
    """One way to read a law's left side in a class: the terms or data that its names stand for, and
    the conditions that fail."""

    where: str
    left: int
    names: Mapping[str, Any]
    sorts: Mapping[str, str]
    failing: tuple[str, ...]

    @property
    def parts(self) -> list[int]:
        return [n for name, n in self.names.items() if self.sorts[name] == "Node"]

    def told(self, words: Words) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        """What the names stand for, as texts; c and d are the constants' names in laws."""
        called = {"a": "c", "b": "d"}
        found = {
            called.get(name, name): words.named(x) if self.sorts[name] == "Node" else words.data(x)
            for name, x in self.names.items()
            if name != "w" and self.sorts[name] != "String"
        }
        return tuple(sorted(found.items())), self.failing


class _Looked:
    """A saturated e-graph in which the places of a rule's shape and conditions are marked."""

    def __init__(self, rule: Rule, question: Question):
        search = Search(question)
        stopped = search.final.report["stopped"]
        self.early = "" if stopped == "saturated" else f"; the search ended early: {stopped}"
        self.laws = laws_of(rule)
        self.conditions = [_conditions(rule, rewrite) for rewrite in rule.rewrites]
        graph = search.final.graph
        egraph.tell(graph, "(run-schedule (saturate (run analysis)))", "(ruleset marks)")
        egraph.tell(graph, *(m for n in range(len(self.laws)) for m in self._marks(n)))
        egraph.tell(graph, "(run marks 1)")
        self.now = Snapshot.of(graph)
        self.numbers = search.numbers
        self.given = range(len(self.numbers.pool.made))
        self.chosen = self._choose()

    def _marks(self, n: int) -> Iterator[str]:
        """Rules that mark where the left side is, with each condition of the shape and with all,
        and then with each guard."""
        law, (shape, guards) = self.laws[n], self.conditions[n]
        left = self._left(n)
        first, *_ = law.rewrite.shape
        yield mark(f"left_{n}", left, [first], "marks")
        for i, fact in enumerate(shape.values()):
            yield mark(f"shape_{n}_{i}", left, [first, fact], "marks")
        yield mark(f"shape_{n}", law.variables, law.rewrite.shape, "marks")
        for i, fact in enumerate(guards.values()):
            yield mark(f"guard_{n}_{i}", law.variables, [*law.rewrite.shape, fact], "marks")

    def _left(self, n: int) -> dict[str, str]:
        """The variables of the left side, and that of the place."""
        law = self.laws[n]
        inside = variables(law.left)
        return {v: s for v, s in law.variables.items() if v == "w" or v in inside}

    def _rows(self, name: str) -> dict[Row, None]:
        """What was marked, in a fixed order."""
        return dict.fromkeys(sorted(self.now.marked.get(name, ()), key=str))

    def tries(self, n: int) -> Iterator[_Try]:
        """The places of a law's left side, what its names are there, and which conditions fail."""
        law, (shape, guards) = self.laws[n], self.conditions[n]
        left = [list(law.variables).index(v) for v in self._left(n)]
        whole: dict[Row, list[Row]] = {}
        for row in self._rows(f"shape_{n}"):
            whole.setdefault(tuple(row[i] for i in left), []).append(row)
        with_shape = [(text, self._rows(f"shape_{n}_{i}")) for i, text in enumerate(shape)]
        with_guard = [(text, self._rows(f"guard_{n}_{i}")) for i, text in enumerate(guards)]
        parts = self._rows(f"left_{n}")
        if not parts:
            yield from self._near(law)
        for part in parts:
            for row in whole.get(part, ()):
                failing = tuple(text for text, held in with_guard if row not in held)
                yield self._try(law, law.variables, row, failing)
            if part not in whole:
                failing = tuple(text for text, held in with_shape if part not in held)
                yield self._try(law, self._left(n), part, failing or ("all of them at once",))

    def _try(self, law: Law, sorts: Mapping[str, str], row: Row, failing: tuple[str, ...]) -> _Try:
        """A marked place, with a term for each class."""
        given = zip(sorts.items(), row, strict=True)
        names = {name: self.chosen[x] if sort == "Node" else x for (name, sort), x in given}
        left = build(law.left, names, self.numbers.pool.add)
        return _Try(row[0], left, names, sorts, failing)

    def _near(self, law: Law) -> Iterator[_Try]:
        """The places that have a law's left side but for a name, which stands for two terms."""
        nodes: dict[str, list[Made]] = {}
        for made, where in self.now.classes.items():
            nodes.setdefault(where, []).append(made)
        for where in nodes:
            for found in _matches(law.left, where, nodes):
                twice = [n for n, xs in found.items() if len(set(xs)) > 1]
                failing = tuple(f"{n} is {n}'" for n in twice if law.variables[n] != "String")
                if not failing:
                    continue
                names, sorts = {}, {}
                for n, xs in found.items():
                    for k, x in enumerate(dict.fromkeys(xs)):
                        name = n + k * "'"
                        sorts[name] = law.variables[n]
                        names[name] = self.chosen[x] if sorts[name] == "Node" else x
                yield _Try(where, self.chosen[where], names, sorts, failing)

    def rank(self, n: int) -> tuple[bool, int, int]:
        """What the program says comes before what rules made, small terms before large ones."""
        return n not in self.given, self.numbers.pool.sizes[n], n

    def _choose(self) -> dict[str, int]:
        """A term for each class: the program's own, or else the smallest."""
        pool = self.numbers.pool
        found: dict[str, int] = {}
        for n, where in self.now.places(pool).items():
            found[where] = min(found.get(where, n), n, key=lambda n: (pool.sizes[n], n))
        given, changed = set(found), True
        while changed:
            changed = False
            for made, where in self.now.classes.items():
                if where in given or not all(c in found for c in made.below):
                    continue
                n = pool.add(made._replace(below=tuple(found[c] for c in made.below)))
                if where not in found or pool.sizes[n] < pool.sizes[found[where]]:
                    found[where], changed = n, True
        return found


def _matches(
    tree: Tree, where: Any, nodes: Mapping[str, list[Made]]
) -> Iterator[dict[str, tuple[Any, ...]]]:
    """What the names of a tree stand for, each time that they occur, in a class or datum."""
    if isinstance(tree, Var):
        number = tree.sort == "f64"
        yield {tree.name: (float.fromhex(where) if number else where,)}
        return
    if not isinstance(tree, Call):
        if where == (tree.hex() if isinstance(tree, float) else tree):
            yield {}
        return
    data = [t for t in tree.args if sort_of(t) != "Node"]
    below = [t for t in tree.args if sort_of(t) == "Node"]
    for made in nodes[where]:
        if (made.op, len(made.data), len(made.below)) != (tree.op, len(data), len(below)):
            continue
        commutes = made.op in COMMUTATIVE and made.below[0] != made.below[-1]
        for order in (made.below, made.below[::-1]) if commutes else (made.below,):
            parts = zip([*data, *below], [*made.data, *order], strict=True)
            for found in product(*(list(_matches(t, x, nodes)) for t, x in parts)):
                names = dict.fromkeys(name for part in found for name in part)
                yield {n: sum((part.get(n, ()) for part in found), ()) for n in names}


Conditions = dict[str, str]


def _conditions(rule: Rule, rewrite: Rewrite) -> tuple[Conditions, Conditions]:
    """The conditions that belong to a rewrite's shape, and its guards, by what they say."""
    texts = [text for text in rule.when.split("; ") if text and text not in rewrite.guards]
    return dict(zip(texts, rewrite.shape[1:], strict=True)), dict(rewrite.guards)
