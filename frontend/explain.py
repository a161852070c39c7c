"""Why programs are equal, why a rule did nothing, and what the e-graph looks like.

    >>> print(dd.explain(lambda x, w: dd.sum(x * w), lambda x, w: w * dd.sum(x), spec, scalar))
    >>> print(dd.why_not("hoist_sum", lambda a, b: a @ b, dd.spec((4, 8)), dd.spec((8, 4))))
    $ python -m dodeca.explain one.mlir other.mlir

The e-graph keeps no proofs. So every rule is watched at work: the places where it holds are marked
in the e-graph, and each place is an *equation*, an instance of the rule's law between two terms.
All that the e-graph finds follows from these equations, for equal terms in equal places are equal
(congruence closure). Of those that an equality follows from, as few as possible are kept.

The proof forest is that of Nieuwenhuis and Oliveras, "Proof-producing congruence closure" (2005).
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from inspect import getclosurevars
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from mlir import ir

from .diagnostics import Source, collected
from .dialect import DTYPES
from .dialect.errors import ArgumentError, Error, ParseError
from .dialect.ops import NAME, WEIGHT, context, entry_function, named_arguments
from .passes import terms
from .passes.comprehend import Comprehension
from .passes.index import Axis, of_axis
from .passes.terms import Term
from .trace import Graph, Spec, trace

if TYPE_CHECKING:  # the e-graph is imported by the first question
    import egglog as eg

    from .passes.egraph import ENode, Saturated
    from .passes.rules import Rewrite, Rule

# `python -m dodeca.explain` runs this file a second time, and that is meant.
warnings.filterwarnings("ignore", ".*dodeca.explain.* found in sys.modules", RuntimeWarning)

Program = Callable[..., Any] | Graph | Term
Pair = tuple[Term, Term]
Split = tuple[Axis, Axis, Axis]
T = TypeVar("T")

LARGEST_PICTURE = 300  # nodes
VARIANTS = 24  # ways to name the axes of a term
LARGEST_PROGRAM = 160  # operations
SHOWN = 12  # places of one kind that `why_not` prints
WITHOUT_SEARCH = {
    "cut": "x[j] = x, read at the place that the parts of j give",
    "fold": "a number that a rule made is rounded to its dtype",
}
MARK = "marked_"  # the names of relations that only this file writes
COMMUTATIVE = ("sum_of", "product_of", "contract")


# --- what is answered ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """An instance of a rule's law: `after` is `before`, rewritten once at its root."""

    rule: str
    law: str
    kind: str  # "exact", "reassociating" or "approximate"
    when: str  # the law's conditions
    iteration: int | None  # None: no search was needed
    before: str
    after: str

    def __str__(self) -> str:
        when = f", where {self.when}" if self.when else ""
        time = "without search" if self.iteration is None else f"iteration {self.iteration}"
        head = f"{self.rule} ({self.kind}, {time}): {self.law}{when}"
        return f"{head}\n     {self.before}\n  -> {self.after}"


@dataclass(frozen=True)
class Result:
    """A result of two programs, whether it is proved to be the same, and else where they part."""

    left: str
    right: str
    equal: bool
    renamed: bool = False  # the right one's axes of reductions have got other names
    parting: tuple[str, str] | None = None

    def __str__(self) -> str:
        sign = "equals" if self.equal else "is not proved equal to"
        names = ", with other names for its axes" if self.renamed else ""
        lines = [f"     {self.left}", f"  {sign}{names}", f"     {self.right}"]
        if self.parting:
            lines += ["  they part at", *(f"     {text}" for text in self.parting)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """Whether the e-graph proves results equal, and by which steps.

    `rules` is a least set: without any one of them the e-graph does not prove it. `shared` has the
    names of parts that the texts repeat. `report` says what the search did.
    """

    results: tuple[Result, ...]
    steps: tuple[Step, ...]
    rules: tuple[str, ...]
    shared: Mapping[str, str]
    report: Mapping[str, Any]

    @property
    def equal(self) -> bool:
        return all(r.equal for r in self.results)

    def __str__(self) -> str:
        lines = [self._verdict()]
        for n, r in enumerate(self.results):
            name = f" {n}" if len(self.results) > 1 else ""
            lines += ["", f"result{name}", str(r)]
        for n, step in enumerate(self.steps, 1):
            lines += ["", f"{n}. {step}"]
        if "commute" in self.rules:
            lines += ["", "Operands of + and * are in no order here (commute)."]
        if self.shared:
            lines += ["", "where", *(f"  {name} = {text}" for name, text in self.shared.items())]
        return "\n".join(lines)

    def _verdict(self) -> str:
        nodes, times = self.report["nodes"], self.report["iterations"]
        said = f"{_count(nodes, 'node')} after {_count(times, 'iteration')}"
        said = f"the search ended with {said}: {self.report['stopped']}"
        if not self.equal:
            return f"not proved equal; {said}"
        if not self.rules:
            return "equal as they stand: one term"
        return f"equal by {_count(len(self.rules), 'rule')} ({', '.join(self.rules)}); {said}"


@dataclass(frozen=True)
class Derivation:
    """How the values that a program's kernels store follow from the program, kernel by kernel."""

    kernels: Mapping[str, Explanation]

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rule for e in self.kernels.values() for rule in e.rules))

    def __str__(self) -> str:
        return "\n\n".join(f"kernel {name}: {e}" for name, e in self.kernels.items())


@dataclass(frozen=True)
class Place:
    """A term of a rule's shape. `tries` has what the law's names stand for there, and the
    conditions that do not hold then; none where the rule applies."""

    term: str
    tries: tuple[tuple[Mapping[str, str], tuple[str, ...]], ...]

    def __str__(self) -> str:
        lines = [self.term]
        for names, failing in self.tries:
            given = ", ".join(f"{name} = {text}" for name, text in names.items())
            fails = " and ".join(f'"{text}" does not hold' for text in failing)
            lines.append(f"     {given}" + (f": {fails}" if fails else ""))
        return "\n".join(lines)


@dataclass(frozen=True)
class WhyNot:
    """Where a rule applied, and where a condition stopped it."""

    rule: str
    law: str
    verdict: str
    fired: tuple[Place, ...] = ()
    blocked: tuple[Place, ...] = ()
    shared: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.law}", self.verdict]
        for title, places in (("applied at", self.fired), ("stopped at", self.blocked)):
            for n, place in enumerate(places[:SHOWN], 1):
                lines += ["", f"{title}, {n} of {len(places)}: {place}"]
            if len(places) > SHOWN:
                lines += ["", f"and {len(places) - SHOWN} places more"]
        if self.shared:
            lines += ["", "where", *(f"  {name} = {text}" for name, text in self.shared.items())]
        return "\n".join(lines)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


# --- questions ----------------------------------------------------------------------------------


def explain(a: Program, *more: Any, precision: str = "fast") -> Explanation | Derivation:
    """Why two programs are equal: `explain(a, b, *specs)`. What one becomes: `explain(a, *specs)`.

    A program is a function, traced with the specs, or a Graph, or a term of `dodeca.passes.terms`
    (of the element of the one result, at the axes d0, d1, ...; buffers have the inputs' names).
    With one program, the Derivation of each kernel that the compiler chooses for the CPU.
    """
    _check_precision(precision)
    if not more or not _is_program(more[0]):
        return _derivation(_graph(a, more), precision)
    pairs = _pairs(a, more[0], more[1:])
    return _explain(_Question(pairs, precision, splits=_splits(pairs)))


def explain_terms(
    naive: Term,
    chosen: Term,
    precision: str = "fast",
    equal: Sequence[Pair] = (),
    splits: Collection[Split] = (),
    early: Collection[str] = (),
) -> Explanation:
    """Why the e-graph may replace a term by another one, which may have rolling sums.

    `equal`, `splits` and `early` are those of `passes.egraph.saturate`: loads of buffers and what
    these hold, axes that may be split, buffers that are known before any call.
    """
    _check_precision(precision)
    return _explain(_Question(((naive, chosen),), precision, tuple(equal), tuple(splits), early))


def why_not(rule: str, program: Program, *specs: Any, precision: str = "fast") -> WhyNot:
    """Where a rule of `passes/rules.py` applies in a program, and which of its conditions stop it.

    Every place is looked at, those too that only other rules make. Error for an unknown rule.
    """
    _check_precision(precision)
    row = _rule(rule)
    found = [program] if isinstance(program, Term) else _results(_graph(program, specs))
    return _why_not(row, found, precision)


def egraph_picture(
    program: Program, *specs: Any, path: str | Path | None = None, precision: str = "fast"
) -> str:
    """The saturated e-graph as DOT text: a box for each node, around it the class that it is in.

    With `path` the text is written there as well. Error if there are more nodes than one can see.
    """
    _check_precision(precision)
    roots = [program] if isinstance(program, Term) else _results(_graph(program, specs))
    pairs = tuple((t, t) for t in roots)
    graph = _Question(pairs, precision, splits=_splits(pairs)).saturate()
    count = sum(map(len, graph.classes.values()))
    if count > LARGEST_PICTURE:
        raise Error(
            f"the e-graph has {count} nodes, and a picture of more than {LARGEST_PICTURE} shows "
            "nothing; take a smaller part of the program, or precision='strict'"
        )
    text = _dot(graph, roots)
    if path is not None:
        _write(Path(path), text)
    return text


def _rule(name: str) -> Rule:
    from .passes.rules import TABLE

    known = {row.name: row for row in TABLE}
    if name not in known:
        close = get_close_matches(name, known, 3) or list(known)
        raise Error(f"there is no rule {name!r}; did you mean {', '.join(close)}?")
    return known[name]


def _check_precision(precision: str) -> None:
    if precision not in ("fast", "strict"):
        raise ArgumentError(f"explain: precision is fast or strict, not {precision!r}")


def _is_program(x: Any) -> bool:
    return isinstance(x, Graph | Term) or (callable(x) and not isinstance(x, Spec))


# --- from programs to terms ---------------------------------------------------------------------


def _graph(program: Any, specs: Sequence[Any]) -> Graph:
    if isinstance(program, Term):
        raise ArgumentError("explain: a term is compared with another program; give that too")
    if isinstance(program, Graph) and specs:
        raise ArgumentError("explain: a Graph has its specs; leave them out")
    graph = program if isinstance(program, Graph) else trace(program, *specs)
    if graph.dims:
        raise Error(f"explain: {graph.dims[0]} must be a number; give specs without Dims")
    return graph


def _pairs(a: Program, b: Program, specs: Sequence[Any]) -> tuple[Pair, ...]:
    """The results of two programs, one by one, on the same buffers."""
    if isinstance(a, Term) and isinstance(b, Term):
        return ((a, b),)
    if isinstance(a, Term) or (isinstance(b, Graph) and not isinstance(a, Graph)):
        return tuple((x, y) for y, x in _pairs(b, a, specs))
    first = _graph(a, specs if isinstance(b, Graph) or not isinstance(a, Graph) else ())
    if isinstance(b, Term):
        found, kinds = [b], [len(_results(first)), 1]
    else:
        second = _graph(b, () if isinstance(b, Graph) else specs or first.inputs)
        takes = [[(s.shape, s.dtype) for s in g.inputs] for g in (first, second)]
        if takes[0] != takes[1]:
            said = [", ".join(map(str, g.inputs)) or "nothing" for g in (first, second)]
            raise Error(f"explain: one program takes {said[0]}, the other {said[1]}")
        found, kinds = _results(second, _names_like(first, second)), [_kinds(first), _kinds(second)]
    if kinds[0] != kinds[1]:
        raise Error(f"explain: the results are {kinds[0]} in one program, {kinds[1]} in the other")
    return tuple(zip(_results(first), found, strict=True))


def _kinds(graph: Graph) -> str:
    """The types of the results."""
    block = entry_function(graph.module.operation).regions[0].blocks[0]
    return ", ".join(str(x.type) for x in block.operations[len(block.operations) - 1].operands)


def _results(graph: Graph, names: Sequence[str] | None = None) -> list[Term]:
    """The element of each result; the buffers are the arguments, under these names."""
    block = entry_function(graph.module.operation).regions[0].blocks[0]
    buffers = dict(zip(block.arguments, names or _names(graph), strict=True))
    comprehension = Comprehension(buffers.get)
    last = block.operations[len(block.operations) - 1]
    return [comprehension.whole(value) for value in last.operands]


def _names(graph: Graph) -> list[str]:
    """A name for each argument, those of the program where it has some, each once."""
    function = entry_function(graph.module.operation)
    given = named_arguments(function, NAME) | named_arguments(function, WEIGHT)
    found: list[str] = []
    for n in range(len(function.regions[0].blocks[0].arguments)):
        name = given.get(n, f"a{n}")
        found.append(name if name not in found else f"{name}_{n}")
    return found


def _names_like(first: Graph, second: Graph) -> list[str]:
    """The names of the second's arguments: inputs are the first's; weights are, where equal."""
    names, count = _names(first), len(first.inputs)
    weights = dict(zip(names[count:], first.weights.values(), strict=False))
    found = names[:count]
    for name, array in zip(_names(second)[count:], second.weights.values(), strict=False):
        same = (n for n, w in weights.items() if w.dtype == array.dtype)
        found.append(next((n for n in same if np.array_equal(weights[n], array)), f"{name}'"))
    return found + _names(second)[len(found) :]


def _splits(pairs: Iterable[Pair]) -> tuple[Split, ...]:
    """The axes that the compiler would try to split."""
    from .passes.extract import splittable
    from .passes.targets import find_target

    roots = [terms.plain(t) for pair in pairs for t in pair]
    return tuple(splittable(list(dict.fromkeys(roots)), find_target("cpu")))


# --- expressions of egglog as trees -------------------------------------------------------------


class Made(NamedTuple):
    """A node: an operation of `rules.Node`, what it has besides terms (axes, names, numbers), and
    the terms below it, by their numbers or by the names of their classes."""

    op: str
    data: tuple[str | int, ...]
    below: tuple[Any, ...]


def _made(op: str, values: Sequence[Any], sorts: Iterable[str] | None = None) -> Made:
    """A node of arguments in their order, none of them terms unless their sorts say so.

    Numbers become texts, so that -0.0 is not 0.0.
    """
    data: list[str | int] = []
    below: list[Any] = []
    for value, sort in zip(values, sorts or [""] * len(values), strict=True):
        if sort in ("Node", "Vec"):
            below += value if sort == "Vec" else [value]
        else:
            data.append(value.hex() if isinstance(value, float) else value)
    return Made(op, tuple(data), tuple(below))


def _ordered(made: Made, below: Iterable[Any]) -> Made:
    """The node with other terms below it; where they commute, in a fixed order."""
    return made._replace(below=tuple(sorted(below) if made.op in COMMUTATIVE else below))


class Var(NamedTuple):
    """A variable of a rule."""

    name: str
    sort: str


class Call(NamedTuple):
    """An operation on trees; of two facts, "=" is an equation."""

    op: str
    sort: str
    args: tuple[Any, ...]


Tree = Var | Call | float | int | str
ARITHMETIC = {"__add__": operator.add, "__sub__": operator.sub, "__mul__": operator.mul}
ARITHMETIC |= {"__truediv__": operator.truediv, "__neg__": operator.neg, "__abs__": abs}
OPERATORS = {"__add__": "sum_of", "__mul__": "product_of"}


def _read(found: Any) -> Tree:
    """An egglog expression or fact as a tree."""
    if hasattr(found, "fact"):
        fact = found.fact
        if hasattr(fact, "left"):
            return Call("=", "", tuple(_read_expr(e, fact.tp) for e in (fact.left, fact.right)))
        return _read_expr(fact.typed_expr.expr, fact.typed_expr.tp)
    return _read_expr(found.__egg_typed_expr__.expr, found.__egg_typed_expr__.tp)


def _read_expr(expr: Any, kind: Any) -> Tree:
    sort = kind.ident.name
    if hasattr(expr, "value"):
        return expr.value
    if not hasattr(expr, "callable"):
        return Var(expr.name, sort)
    name = str(getattr(expr.callable, "method_name", expr.callable.ident.name))
    name = OPERATORS.get(name, name) if sort == "Node" else name
    return Call(name, sort, tuple(_read_expr(arg.expr, arg.tp) for arg in expr.args))


def _variables(*trees: Tree) -> dict[str, str]:
    """The variables and their sorts."""
    found: dict[str, str] = {}
    for tree in trees:
        if isinstance(tree, Var):
            found[tree.name] = tree.sort
        elif isinstance(tree, Call):
            found |= _variables(*tree.args)
    return found


def _sort(tree: Tree) -> str:
    return tree.sort if isinstance(tree, Var | Call) else ""


def _build(tree: Tree, values: Mapping[str, Any], make: Callable[[Made], T | None]) -> Any:
    """What a tree stands for; None where `make` gives None for a node of it."""
    if isinstance(tree, Var):
        return values[tree.name]
    if not isinstance(tree, Call):
        return tree
    args = [_build(t, values, make) for t in tree.args]
    if None in args:
        return None
    if tree.sort == "f64":
        return ARITHMETIC[tree.op](*args)
    if tree.sort == "Axis":
        return args[0]
    return args if tree.sort == "Vec" else make(_made(tree.op, args, map(_sort, tree.args)))


@dataclass(frozen=True)
class Law:
    """A rewrite as trees, and the variables of its shape."""

    rewrite: Rewrite
    left: Tree
    right: Tree
    variables: Mapping[str, str]

    @staticmethod
    def of(rewrite: Rewrite) -> Law:
        """What is found is in the first fact, as `w = ...`."""
        shape = [_read(fact) for fact in rewrite.shape]
        first = shape[0]
        assert isinstance(first, Call) and first.args[0] == _read(rewrite.found)
        sorts = ("Node", "Axis", "f64", "String")
        kept = {n: s for n, s in _variables(*shape).items() if s in sorts}  # the place comes first
        return Law(rewrite, first.args[1], _read(rewrite.made), kept)

    @property
    def facts(self) -> list[Any]:
        """All that must hold where the law is used."""
        return [*self.rewrite.shape, *(f for facts in self.rewrite.guards.values() for f in facts)]

    @cached_property
    def commutes(self) -> bool:
        """Whether both sides are one node here, where operands are in no order."""
        pool = Pool()
        leaves = {n: pool.add(Made("leaf", (n,), ())) for n in self.variables}
        kinds = self.variables.items()
        values = {n: leaves[n] if s == "Node" else 1.0 if s == "f64" else n for n, s in kinds}
        return _build(self.left, values, pool.add) == _build(self.right, values, pool.add)


def _mark(name: str, variables: Mapping[str, str], facts: Iterable[Any]) -> eg.RewriteOrRule:
    """A rule that changes nothing, but writes what the variables are where the facts hold."""
    import egglog as eg

    from .passes import rules

    sorts: dict[str, type] = {"Node": rules.Node, "Axis": rules.Axis, "f64": eg.f64}
    sorts["String"] = eg.String
    relation: Any = eg.relation(name, *(sorts[s] for s in variables.values()))
    return eg.rule(*facts).then(relation(*(eg.var(n, sorts[s]) for n, s in variables.items())))


def _ruleset(made: Iterable[eg.RewriteOrRule]) -> eg.Ruleset:
    import egglog as eg

    return eg.ruleset(*made)


@dataclass(frozen=True)
class Snapshot:
    """The e-graph at a moment: the class of every node, those of the terms that were put in, and
    what was marked, by name."""

    classes: Mapping[Made, str]
    named: Mapping[int, str]
    marked: Mapping[str, list[tuple[Any, ...]]]

    @staticmethod
    def of(graph: eg.EGraph) -> Snapshot:
        """Read what egglog writes for its pictures; it says nothing else about where nodes are."""
        nodes = json.loads(graph._serialize(n_inline_leaves=0).to_json())["nodes"]
        classes: dict[Made, str] = {}
        named: dict[int, str] = {}
        marked: dict[str, list[tuple[Any, ...]]] = {}
        for name, node in nodes.items():
            if not name.startswith("function-"):
                continue
            op = name.split("-", 2)[2]
            is_node = node["eclass"].startswith("Node-")
            if not is_node and not node["op"].startswith(MARK):
                continue
            values = [_value(nodes, child) for child in node["children"]]
            if not is_node:
                marked.setdefault(node["op"], []).append(tuple(v for v, _ in values))
            elif op == "named":
                named[values[0][0]] = node["eclass"]
            else:
                made = _made(op, *zip(*values, strict=True))
                classes[_ordered(made, made.below)] = node["eclass"]
        return Snapshot(classes, named, marked)

    def find(self, made: Made) -> str | None:
        """The class of a node of classes, if there is such a node."""
        return self.classes.get(_ordered(made, made.below))


def _value(nodes: Mapping[str, Any], name: str) -> tuple[Any, str]:
    """An argument of a node and its sort: a class, several of them, or a text or number."""
    node = nodes[name]
    if node["eclass"].startswith("Node-"):
        return node["eclass"], "Node"
    if node["op"] == "Vec":
        return [nodes[child]["eclass"] for child in node["children"]], "Vec"
    if node["op"] == "Axis":
        return _value(nodes, node["children"][0])
    text = node["op"]
    if text.startswith('"'):
        return json.loads(text), ""
    return int(text) if text.lstrip("-").isdigit() else float(text), ""


# --- equations, and what follows from them ------------------------------------------------------


class Pool:
    """Terms of nodes, each once and under a number; those below a term have smaller numbers."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.sizes: list[int] = []
        self._numbers: dict[Made, int] = {}

    def add(self, made: Made) -> int:
        """The number of a node over terms."""
        made = _ordered(made, made.below)
        number = self._numbers.setdefault(made, len(self.made))
        if number == len(self.made):
            self.made.append(made)
            self.sizes.append(1 + sum(self.sizes[n] for n in made.below))
        return number

    def find(self, made: Made) -> int | None:
        """The number of a node over terms, if it has one."""
        return self._numbers.get(_ordered(made, made.below))

    def below(self, roots: Iterable[int]) -> list[int]:
        """These terms and all below them, in order."""
        seen: set[int] = set()
        todo = list(roots)
        while todo:
            n = todo.pop()
            if n not in seen:
                seen.add(n)
                todo += self.made[n].below
        return sorted(seen)


Reason = int | tuple[tuple[int, int], ...]  # an equation, or equal operands


class Closure:
    """Which terms of a pool are equal, by equations and because their operands are equal."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.smallest: dict[int, int] = {}  # of each class, by its root
        self._parent: dict[int, int] = {}
        self._members: dict[int, list[int]] = {}
        self._users: dict[int, list[int]] = {}
        self._nodes: dict[Made, int] = {}  # nodes over roots
        self._edges: dict[int, tuple[int, Reason]] = {}  # the proof forest

    def root(self, n: int) -> int:
        while self._parent[n] != n:
            self._parent[n] = n = self._parent[self._parent[n]]
        return n

    def same(self, a: int, b: int) -> bool:
        return self.root(a) == self.root(b)

    def find(self, made: Made) -> int | None:
        """The class of a node over classes, if a term has this node."""
        n = self._nodes.get(self._over_roots(made))
        return None if n is None else self.root(n)

    def _over_roots(self, made: Made) -> Made:
        return _ordered(made, map(self.root, made.below))

    def enter(self, *roots: int) -> None:
        """Take terms in, with all below them."""
        missing = [n for n in roots if n not in self._parent]
        for n in self.pool.below(missing) if missing else ():
            if n in self._parent:
                continue
            self._parent[n] = self.smallest[n] = n
            self._members[n], self._users[n] = [n], []
            made = self.pool.made[n]
            for c in set(map(self.root, made.below)):
                self._users[c].append(n)
            other = self._nodes.setdefault(self._over_roots(made), n)
            if other != n:
                self.join(n, other, self._operands(n, other))

    def _operands(self, a: int, b: int) -> tuple[tuple[int, int], ...]:
        """The pairs of equal operands of two nodes."""
        x, y = self.pool.made[a].below, self.pool.made[b].below
        straight = tuple(zip(x, y, strict=True))
        if all(self.same(*pair) for pair in straight):
            return straight
        return tuple(zip(x, y[::-1], strict=True))

    def join(self, a: int, b: int, reason: Reason) -> None:
        """Make two terms equal, and what follows from it."""
        todo = [(a, b, reason)]
        while todo:
            a, b, reason = todo.pop()
            old, new = self.root(a), self.root(b)
            if old == new:
                continue
            if len(self._members[old]) > len(self._members[new]):
                a, b, old, new = b, a, new, old
            self._link(a, b, reason)
            self._parent[old] = new
            self._members[new] += self._members.pop(old)
            both = self.smallest.pop(old), self.smallest[new]
            self.smallest[new] = min(both, key=lambda n: (self.pool.sizes[n], n))
            users = self._users.pop(old)
            self._users[new] += users
            for n in users:
                other = self._nodes.setdefault(self._over_roots(self.pool.made[n]), n)
                if not self.same(n, other):
                    todo.append((n, other, self._operands(n, other)))

    def _link(self, a: int, b: int, reason: Reason) -> None:
        """Turn the path from `a` up to its tree's root around, and hang it below `b`."""
        n, above, why = a, b, reason
        while True:
            old = self._edges.get(n)
            self._edges[n] = (above, why)
            if old is None:
                return
            above, n, why = n, old[0], old[1]

    def reasons(self, pairs: Iterable[tuple[int, int]]) -> set[int]:
        """The equations that the equality of these pairs was concluded from."""
        found: set[int] = set()
        seen: set[tuple[int, int]] = set()
        todo = list(pairs)
        while todo:
            pair = todo.pop()
            if pair in seen:
                continue
            seen.add(pair)
            for reason in self._path(*pair):
                if isinstance(reason, int):
                    found.add(reason)
                else:
                    todo += reason
        return found

    def _path(self, a: int, b: int) -> Iterator[Reason]:
        """The reasons between two terms of one tree."""
        above = {n: i for i, n in enumerate(self._up(a))}
        meeting = next(n for n in self._up(b) if n in above)
        for start in (a, b):
            for n in self._up(start):
                if n == meeting:
                    break
                yield self._edges[n][1]

    def _up(self, n: int) -> Iterator[int]:
        yield n
        while n in self._edges:
            n = self._edges[n][0]
            yield n


# --- watching the rules -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """What the e-graph is asked: are these pairs equal?"""

    pairs: tuple[Pair, ...]
    precision: str
    equal: tuple[Pair, ...] = ()
    splits: tuple[Split, ...] = ()
    early: Collection[str] = ()

    @property
    def roots(self) -> list[Term]:
        return list(dict.fromkeys(terms.plain(t) for pair in self.pairs for t in pair))

    def saturate(self, without: Collection[str] = (), watch: Any = None) -> Saturated:
        from .passes.egraph import Budget, saturate

        budget = Budget(nodes=60_000, seconds=60.0)
        asked = (self.roots, self.equal, self.precision, budget)
        return saturate(*asked, without, watch, self.splits, self.early)


class Equation(NamedTuple):
    """A law at a place: two terms, by number. `iteration` is None for one from the start."""

    rule: str
    law: int | None  # which of the rule's, if the e-graph searches for them
    iteration: int | None
    left: int
    right: int


class _Numbers:
    """The terms of an e-graph in a pool; `order` is that in which they were put in."""

    def __init__(self, order: Iterable[Term]):
        self.pool = Pool()
        self.terms: list[Term] = []
        self.index: dict[Term, int] = {}
        self.number: dict[Term, int] = {}
        for t in order:
            self.add(t)

    def add(self, root: Term) -> int:
        """The number of a term."""
        for t in terms.postorder([root], lambda t: t in self.number):
            self.index[t] = len(self.terms)
            self.terms.append(t)
            self.number[t] = self._add(t)
        return self.number[root]

    def _add(self, t: Term) -> int:
        from .passes import egraph

        if t.op in ("roll", "spread", "tilt"):
            below = [self.number[a] for a in t.args]
            op, below = ("roll_one", below[:1]) if _is_plain_roll(t) else (t.op, below)
            return self.pool.add(Made(op, (_axis_text(t.attr),), tuple(below)))

        def make(made: Made) -> int:
            named = made.op == "named"
            return self.number[self.terms[int(made.data[0])]] if named else self.pool.add(made)

        return _build(_read(egraph._encode(t, self.index)), {}, make)


def _axis_text(axis: Axis) -> str:
    return f"{axis.name}:{axis.size}"


class _Trace:
    """A search in which every use of a law becomes an equation."""

    def __init__(self, question: _Question, without: Collection[str] = ()):
        from .passes import rules

        self.question = question
        self.equations: list[Equation] = []
        self.numbers = _Numbers([])
        self.closure = Closure(self.numbers.pool)
        self.allowed = [r for r in rules.active(question.precision) if r.name not in without]
        self._laws = {r.name: [Law.of(w) for w in r.rewrites] for r in self.allowed}
        self._rulesets: dict[str, Any] = {}
        self.final = question.saturate(without, self._watch)
        self.classes = _Classes(self.final)
        if not self.numbers.terms:  # no rule changed anything
            self._begin(list(self.final.class_of))
        for pair in question.pairs:
            for t in pair:
                self.closure.enter(self.numbers.add(t))
        self._round()

    def _round(self) -> None:
        """A number that a rule made, and what it is in its dtype, are one (see `_Classes`)."""
        pool = self.numbers.pool
        for n, made in enumerate(list(pool.made)):
            if made.op == "real":
                kind, value = DTYPES[str(made.data[0])], float.fromhex(str(made.data[1]))
                rounded = pool.find(_made("real", (kind.name, terms.constant(value, kind).value)))
                if rounded not in (None, n):
                    self._join(Equation("fold", None, None, n, rounded))

    def _join(self, new: Equation) -> None:
        self.closure.enter(new.left, new.right)
        if not self.closure.same(new.left, new.right):
            self.equations.append(new)
            self.closure.join(new.left, new.right, len(self.equations) - 1)

    def _begin(self, order: list[Term]) -> None:
        """The terms that were put in, and what was joined before any rule."""
        from .passes import egraph

        for t in order:
            self.closure.enter(self.numbers.add(t))
        number = self.numbers.number
        for x, y in self.question.equal:
            self._join(Equation("fusion", None, None, number[x], number[y]))
        allowed = {r.name for r in self.allowed}
        for name, make in egraph._JOINED:
            made = [(t, make(t)) for t in order if name in allowed]
            for t, new in made:
                if new in number:
                    self._join(Equation(name, None, None, number[t], number[new]))
        for split in self.question.splits:
            for whole, axis, part in egraph._parts(order, *split):
                if part in number:
                    cut = self.numbers.pool.add(Made("cut", (_axis_text(axis),), (number[whole],)))
                    self._join(Equation("cut", None, None, cut, number[part]))

    def _watch(self, rule: str, iteration: int, read: Callable[[], Saturated]) -> None:
        """After a rule: the places where it holds, as equations."""
        if not self.numbers.terms:
            self._begin(list(read().class_of))
        laws = self._laws[rule]
        if all(law.commutes for law in laws):
            return
        graph = getclosurevars(read).nonlocals["graph"]
        if rule not in self._rulesets:
            self._rulesets[rule] = _ruleset(
                _mark(f"{MARK}{rule}_{n}", law.variables, law.facts) for n, law in enumerate(laws)
            )
        graph.run(self._rulesets[rule])
        now = Snapshot.of(graph)
        classes = self._classes(now)
        places: dict[str, list[int]] = {}
        for n in sorted(classes):
            if self.closure.root(n) == n:
                places.setdefault(classes[n], []).append(n)
        rows = [
            (n, dict(zip(law.variables, row, strict=True)))
            for n, law in enumerate(laws)
            for row in now.marked.get(f"{MARK}{rule}_{n}", ())
            if _build(law.right, dict(zip(law.variables, row, strict=True)), now.find) == row[0]
        ]
        rows.sort(key=lambda r: (r[0], [f"{places.get(v, [v])[0]:>9}" for v in r[1].values()]))
        again = True
        while again:
            count = len(self.equations)
            for n, row in rows:
                for left, right in self._sides(laws[n], row, places):
                    self._join(Equation(rule, n, iteration, left, right))
            again = len(self.equations) > count

    def _classes(self, now: Snapshot) -> dict[int, str]:
        """The e-graph's class of every term so far."""
        found: dict[int, str] = {}
        for n, made in enumerate(self.numbers.pool.made):
            if all(c in found for c in made.below):
                where = now.find(made._replace(below=tuple(found[c] for c in made.below)))
                if where is not None:
                    found[n] = where
        return found

    def _sides(
        self, law: Law, row: Mapping[str, Any], places: Mapping[str, list[int]]
    ) -> Iterator[tuple[int, int]]:
        """Both sides of a law at a marked place, as terms, wherever the left one is known."""
        names = [n for n in _variables(law.left, law.right) if law.variables[n] == "Node"]
        roots = ({self.closure.root(n) for n in places.get(row[name], ())} for name in names)
        for choice in product(*map(sorted, roots)):
            values = {**row, **dict(zip(names, choice, strict=True))}
            if _build(law.left, values, self.closure.find) is not None:
                for name, n in zip(names, choice, strict=True):
                    values[name] = self.closure.smallest[self.closure.root(n)]
                sides = (law.left, law.right)
                left, right = (_build(side, values, self.numbers.pool.add) for side in sides)
                yield left, right

    # what an equality takes

    def _proves(self, kept: Collection[int], goals: Sequence[tuple[int, int]]) -> Closure | None:
        """The closure of some equations, if the goals follow from them."""
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
        goals = [(self.numbers.number[x], self.numbers.number[y]) for x, y in pairs]
        if not all(self.closure.same(*goal) for goal in goals):
            return None
        kept = self.closure.reasons(goals)
        used = {self.equations[n].rule for n in kept}
        kept = {n for n, e in enumerate(self.equations) if e.rule in used}
        for rule in reversed([r.name for r in self.allowed if r.name in used]):
            fewer = {n for n in kept if self.equations[n].rule != rule}
            if self._proves(fewer, goals):
                kept = fewer
        closure = self._proves(kept, goals)
        assert closure is not None
        kept = closure.reasons(goals)
        for n in sorted(kept, reverse=True):
            if self._proves(kept - {n}, goals):
                kept.remove(n)
        return [self.equations[n] for n in sorted(kept)]


class _Classes:
    """The classes that terms are in, also of terms that were not put in.

    A term may be in two: a number that a rule made is not rounded in the e-graph, and the term that
    has it is; of both it is the same number.
    """

    def __init__(self, graph: Saturated):
        self.graph = graph
        self._known: dict[Term, frozenset[str]] = {}
        self._nodes: dict[tuple[Any, ...], list[str]] = {}
        for where, nodes in graph.classes.items():
            for n in nodes:
                self._nodes.setdefault((n.op, n.template or n.attr, n.children), []).append(where)

    def same(self, pair: Pair) -> bool:
        """Whether both terms are in one class."""
        return not self.of(pair[0]).isdisjoint(self.of(pair[1]))

    def of(self, root: Term) -> frozenset[str]:
        for t in terms.postorder([root], lambda t: t in self._known):
            given = self.graph.class_of.get(t)
            self._known[t] = frozenset(self._find(t)) | ({given} if given else frozenset())
        return self._known[root]

    def _find(self, t: Term) -> Iterator[str]:
        if t.op == "const":
            yield from self._nodes.get(("const", t, ()), ())
            return
        args = t.args[:1] if _is_plain_roll(t) else t.args
        attr = t.dtype.name if t.op in ("cast", "bitcast") else t.attr
        for below in product(*(sorted(self._known[a]) for a in args)) if args else ():
            below = tuple(sorted(below)) if t.op in ("add", "mul") else below
            yield from self._nodes.get((t.op, attr, below), ())


def _is_plain_roll(t: Term) -> bool:
    """Whether it is a rolling sum of weight 1, which has a node of its own."""
    return t.op == "roll" and t.args[1] is terms.constant(1, t.args[1].dtype)


def _explain(question: _Question) -> Explanation:
    """Find out; then with as few rules as can be; then tell it."""
    trace, asked = _Trace(question), question.pairs
    if not all(map(trace.classes.same, asked)):
        named = [p if trace.classes.same(p) else _with_names(question, p) for p in asked]
        question = replace(question, pairs=tuple(named))
        trace = _Trace(question) if question.pairs != asked else trace
    equal = [pair for pair in question.pairs if trace.classes.same(pair)]
    report, rules, steps = trace.final.report, [], []
    if any(a is not b for a, b in equal):
        rules = _least_rules(trace, equal)
        trace = _Trace(question, [r.name for r in trace.allowed if r.name not in rules])
        steps = trace.proof(equal)
        assert steps is not None, f"the steps of {', '.join(rules)} were not all seen"
    told = _tell(question, trace, equal, rules, steps, report)
    renamed = [p != q for p, q in zip(question.pairs, asked, strict=True)]
    results = [replace(r, renamed=n) for r, n in zip(told.results, renamed, strict=True)]
    return replace(told, results=tuple(results))


def _least_rules(trace: _Trace, pairs: Sequence[Pair]) -> list[str]:
    """Rules in the table's order, that together prove the pairs, and do not without one of them."""
    every = {r.name for r in trace.allowed}

    def proves(kept: Collection[str]) -> bool:
        classes = _Classes(trace.question.saturate(every - set(kept)))
        return all(map(classes.same, pairs))

    proof = trace.proof(pairs)
    used = {e.rule for e in proof or ()} | ({"commute"} & every)
    if proof is None or not proves(used):
        used = {e.rule for e in trace.equations} | ({"commute"} & every)
    for rule in reversed(trace.allowed):
        if rule.name in used and proves(used - {rule.name}):
            used.remove(rule.name)
    return [r.name for r in trace.allowed if r.name in used]


def _tell(
    question: _Question,
    trace: _Trace,
    equal: Sequence[Pair],
    rules: Sequence[str],
    steps: Sequence[Equation],
    report: Mapping[str, Any],
) -> Explanation:
    from .passes.rules import TABLE

    partings = {p: _parting(trace.classes, *p) for p in question.pairs if p not in equal}
    number = trace.numbers.add
    shown = [n for e in steps for n in (e.left, e.right)]
    shown += [number(t) for p in question.pairs for t in (*p, *partings.get(p, ()))]
    words = _Words(trace.numbers, shown)
    table = {rule.name: rule for rule in TABLE}
    results = []
    for a, b in question.pairs:
        x, y = parting = partings.get((a, b), (a, b))
        part = words.of(number(x)), words.of(number(y))
        texts = words.of(number(a)), words.of(number(b))
        results.append(Result(*texts, (a, b) in equal, False, part if parting != (a, b) else None))
    told = []
    for e in steps:
        row = table[e.rule]
        sides = words.of(e.left), words.of(e.right)
        law = WITHOUT_SEARCH.get(e.rule, row.law) if e.law is None else row.law.split("; ")[e.law]
        told.append(Step(row.name, law, row.kind, row.when, e.iteration, *sides))
    named = [name for name in table if name in rules or any(e.rule == name for e in steps)]
    return Explanation(tuple(results), tuple(told), tuple(named), words.shared, report)


def _parting(classes: _Classes, a: Term, b: Term) -> Pair:
    """The innermost pair of terms where two terms are not equal, as long as that is one pair."""
    while a.op == b.op and a.attr == b.attr and len(a.args) == len(b.args):
        ways = [b.args, b.args[::-1]] if a.op in ("add", "mul") else [b.args]
        pairs = [zip(a.args, way, strict=True) for way in ways]
        apart = [[p for p in way if not classes.same(p)] for way in pairs]
        found = min(apart, key=len)
        if len(found) != 1:
            break
        a, b = found[0]
    return a, b


def _renamed(t: Term, axes: Mapping[Axis, Axis]) -> Term:
    """The same term with other axes of its reductions; no two may become one."""
    made: dict[Term, Term] = {}
    for x in terms.postorder([t]):
        if not x.args:
            places = {a: of_axis(axes[a]) for a in x.axes if a in axes}
            made[x] = terms.at(x, places, {c: made[c] for c in x.children})
        elif x.op in terms.FOLDS:
            build = terms.reduction if x.op in terms.REDUCTIONS else terms.rolling
            made[x] = build(x.op, axes[x.attr], *(made[a] for a in x.args))
        else:
            made[x] = terms.rebuild(x, made)
    return made[t]


def _bound(*roots: Term) -> list[Axis]:
    """The axes of the terms' reductions."""
    return sorted({x.attr for x in terms.postorder(list(roots)) if x.op in terms.FOLDS})


def _variants(t: Term, known: Iterable[Axis]) -> Iterator[Term]:
    """A term, and what it is with other axes of the same sizes for its reductions.

    In the e-graph equal terms meet under equal names. But the names are those of a term as it was
    put in: (A B) x becomes A (B x) with the axes of (A B) x, and a part of an axis that was split
    has a name of its own.
    """
    own = _bound(t)
    every = sorted({*known, *own})
    choices = product(*([a for a in every if a.size == axis.size] for axis in own))
    found = (dict(zip(own, to, strict=True)) for to in choices if len(set(to)) == len(own))
    yield t
    yield from (
        _renamed(t, to) for to in islice(found, VARIANTS) if any(a != b for a, b in to.items())
    )


def _with_names(question: _Question, pair: Pair) -> Pair:
    """The pair with the axes for which it is proved equal, if there are any."""
    left, right = pair
    known = [*_bound(left), *(a for split in question.splits for a in split)]
    for variant in islice(_variants(right, known), 1, None):
        asked = replace(question, pairs=((left, variant),))
        if _Classes(asked.saturate()).same((left, variant)):
            return left, variant
    return pair


# --- what the compiler chose --------------------------------------------------------------------


def _derivation(graph: Graph, precision: str) -> Derivation:
    """Each kernel's term on the program's inputs, and how it follows from the program."""
    from .pass_pipeline import build_pipeline
    from .passes.fuse import fuse
    from .passes.targets import find_target

    with graph.module.context, ir.Location.unknown():
        module = ir.Module.parse(str(graph.module))
        build_pipeline("dodeca-simplify", module.context).run(module)
        block = entry_function(module.operation).regions[0].blocks[0]
        operations = list(block.operations)
        if len(operations) > LARGEST_PROGRAM:
            raise Error(
                f"explain: the program has {len(operations)} operations; what is derived is told "
                f"of programs of at most {LARGEST_PROGRAM}: take a part of it"
            )
        names = _names(graph)
        whole = Comprehension(dict(zip(block.arguments, names, strict=True)).get).whole
        values = [whole(op.results[0]) for op in operations[:-1]]
        outputs = [whole(x) for x in operations[-1].operands]
        fused = fuse(module.operation, find_target("cpu"), precision).module
        kernels = _kernel_terms(fused, names)
    told: dict[str, Explanation] = {}
    pairs = _beside([*outputs, *values], [t for _, found in kernels for t in found], precision)
    for name, found in kernels:
        asked = tuple(
            (pairs[t] or (outputs[n] if n is not None else t), t) for t, n in found.items()
        )
        made = _explain(_Question(asked, precision, splits=_splits(asked)))
        results = [
            replace(r, left="no value of the program") if a is b and a not in values else r
            for r, (a, b) in zip(made.results, asked, strict=True)
        ]
        times = sum(n == name or n.startswith(f"{name} (") for n in told)
        told[f"{name} ({times + 1})" if times else name] = replace(made, results=tuple(results))
    return Derivation(told)


def _beside(
    values: Sequence[Term], chosen: Sequence[Term], precision: str
) -> dict[Term, Term | None]:
    """For each chosen term the value of the program that it is proved to be, if there is one."""
    every = tuple((t, t) for t in values)
    splits = _splits(every)
    known = [*_bound(*values), *(a for split in splits for a in split)]
    variants = {t: list(_variants(t, known)) for t in chosen}
    every += tuple((v, v) for found in variants.values() for v in found)
    classes = _Classes(_Question(every, precision, splits=splits).saturate())
    pairs = {}
    for t, found in variants.items():
        here = (x for v in found for x in values if classes.same((x, v)))
        pairs[t] = next(here, None)
    return pairs


def _kernel_terms(
    module: ir.Module, names: Sequence[str]
) -> list[tuple[str, dict[Term, int | None]]]:
    """What each call of a kernel gives, on the inputs of the program, and which result it is, if
    it is one. The calls are inlined."""
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f.operation for f in module.body}
    block = entry_function(module.operation).regions[0].blocks[0]
    calls: list[tuple[str, list[ir.Value], bool]] = []
    for call in [op for op in block.operations if op.operation.name == "func.call"]:
        name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        inner = functions[name].regions[0].blocks[0]
        known: dict[ir.Value, ir.Value] = dict(zip(inner.arguments, call.operands, strict=True))
        results: list[ir.Value] = []
        for op in inner.operations:
            if op.operation.name == "func.return":
                results = [known[x] for x in op.operands]
                continue
            new = op.operation.clone(ir.InsertionPoint(call))
            for n, x in enumerate(op.operands):
                new.operands[n] = known[x]
            known.update(zip(op.results, new.results, strict=True))
        for old, value in zip(call.results, results, strict=True):
            old.replace_all_uses_with(value)
        calls.append((name, results, _is_rolling(functions[name])))
    whole = Comprehension(dict(zip(block.arguments, names, strict=True)).get).whole
    last = block.operations[len(block.operations) - 1]
    place = {x: n for n, x in enumerate(last.operands)}
    return [
        (name, {terms.rolled(whole(x)) if rolls else whole(x): place.get(x) for x in results})
        for name, results, rolls in calls
    ]


def _is_rolling(kernel: ir.Operation) -> bool:
    """Whether a single loop keeps what depends on its other folds."""
    from .passes.fuse import SCHEDULE

    found = ir.DictAttr(kernel.attributes[SCHEDULE]) if SCHEDULE in kernel.attributes else None
    return found is not None and "fold" in found and ir.IntegerAttr(found["fold"]).value > 0


# --- why not ------------------------------------------------------------------------------------


def _why_not(rule: Rule, roots: Sequence[Term], precision: str) -> WhyNot:
    allowed = precision == "fast" or rule.kind == "exact"
    if not rule.rewrites:
        return _why_not_built(rule, roots, allowed)
    looked = _Looked(rule, roots, precision)
    places: dict[tuple[int, str], list[_Try]] = {}
    for n in range(len(rule.rewrites)):
        for found in looked.tries(n):
            places.setdefault((n, found.where), []).append(found)
    for key, found in places.items():
        applies = [t for t in found if not t.failing]
        places[key] = sorted(applies or found, key=lambda t: (len(t.failing), looked.rank(t.left)))
    tries = [t for found in places.values() for t in found]
    words = _Words(looked.numbers, [t.left for t in tries] + [n for t in tries for n in t.parts])
    fired: list[Place] = []
    stopped: list[Place] = []
    for found in sorted(places.values(), key=lambda ts: looked.rank(ts[0].left)):
        told = sorted({t.told(words): None for t in found}, key=lambda t: (len(t[1]), t))
        place = Place(words.of(found[0].left), tuple((dict(names), f) for names, f in told))
        (stopped if found[0].failing else fired).append(place)
    verdict = _verdict(rule, allowed, len(fired), len(stopped)) + looked.early
    law = f"{rule.law}, where {rule.when}" if rule.when else rule.law
    kept = (tuple(fired), tuple(stopped)) if allowed else ((), (*fired, *stopped))
    return WhyNot(rule.name, law, verdict, *kept, words.shared)


def _why_not_built(rule: Rule, roots: Sequence[Term], allowed: bool) -> WhyNot:
    """Of a law that is applied when terms are built, or joined at the start."""
    from .passes import egraph

    joined = dict(egraph._JOINED).get(rule.name)
    if joined is None:
        when = f", where {rule.when}" if rule.when else ""
        verdict = "applied when a term is built: what the e-graph sees went through it already"
        return WhyNot(rule.name, rule.law + when, verdict)
    order = terms.postorder(list(roots))
    made = [(t, joined(t)) for t in order] if allowed else []
    numbers = _Numbers(order)
    pairs = [(numbers.add(t), numbers.add(new)) for t, new in made if new is not None]
    words = _Words(numbers, [n for pair in pairs for n in pair])
    places = tuple(Place(words.of(a), (({"": words.of(b)}, ()),)) for a, b in pairs)
    verdict = _verdict(rule, allowed, len(places), 0)
    return WhyNot(rule.name, rule.law, verdict, places, (), words.shared)


def _verdict(rule: Rule, allowed: bool, fired: int, stopped: int) -> str:
    if not allowed:
        would = f"; else it would apply at {_count(fired, 'place')}" if fired else ""
        return f"left out: it is {rule.kind}, and precision 'strict' takes exact rules alone{would}"
    if fired:
        more = f", stopped at {stopped}" if stopped else ""
        return f"applied at {_count(fired, 'place')}{more}"
    if stopped:
        return f"stopped: its shape is at {_count(stopped, 'place')}, its conditions hold at none"
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

    def told(self, words: _Words) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
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

    def __init__(self, rule: Rule, roots: Sequence[Term], precision: str):
        from .passes import rules

        graph, final, probe = _saturated_graph(roots, precision)
        stopped = final.report["stopped"]
        self.early = "" if stopped == "saturated" else f"; the search ended early: {stopped}"
        self.laws = [Law.of(rewrite) for rewrite in rule.rewrites]
        self.conditions = [_conditions(rule, rewrite) for rewrite in rule.rewrites]
        graph.run(rules.analysis().saturate())
        graph.run(_ruleset(m for n in range(len(self.laws)) for m in self._marks(n)))
        self.now = Snapshot.of(graph)
        self.numbers = _Numbers(final.class_of)
        self.chosen = self._choose()
        self.given = {self.numbers.number[t] for t in final.class_of}
        self.probe = self.chosen[final.class_of[probe]] if probe is not None else None

    def _marks(self, n: int) -> Iterator[eg.RewriteOrRule]:
        """Rules that mark where the left side is, with each condition of the shape and with all,
        and then with each guard and with all."""
        law, (shape, guards) = self.laws[n], self.conditions[n]
        left = self._left(n)
        first, *_ = law.rewrite.shape
        yield _mark(f"{MARK}left_{n}", left, [first])
        for i, facts in enumerate(shape.values()):
            yield _mark(f"{MARK}shape_{n}_{i}", left, [first, *facts])
        yield _mark(f"{MARK}shape_{n}", law.variables, law.rewrite.shape)
        for i, facts in enumerate(guards.values()):
            yield _mark(f"{MARK}guard_{n}_{i}", law.variables, [*law.rewrite.shape, *facts])
        yield _mark(f"{MARK}all_{n}", law.variables, law.facts)

    def _left(self, n: int) -> dict[str, str]:
        """The variables of the left side, and that of the place."""
        law = self.laws[n]
        inside = _variables(law.left)
        return {v: s for v, s in law.variables.items() if v == "w" or v in inside}

    def _rows(self, name: str) -> dict[tuple[Any, ...], None]:
        """What was marked, in a fixed order."""
        return dict.fromkeys(sorted(self.now.marked.get(f"{MARK}{name}", ()), key=str))

    def tries(self, n: int) -> Iterator[_Try]:
        """The places of a law's left side, what its names are there, and which conditions fail."""
        law, (shape, guards) = self.laws[n], self.conditions[n]
        left = [list(law.variables).index(v) for v in self._left(n)]
        whole: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for row in self._rows(f"shape_{n}"):
            whole.setdefault(tuple(row[i] for i in left), []).append(row)
        with_shape = [(text, self._rows(f"shape_{n}_{i}")) for i, text in enumerate(shape)]
        with_guard = [(text, self._rows(f"guard_{n}_{i}")) for i, text in enumerate(guards)]
        every = self._rows(f"all_{n}")
        parts = [p for p in self._rows(f"left_{n}") if self.chosen[p[0]] != self.probe]
        if not parts:
            yield from self._near(law)
        for part in parts:
            for row in whole.get(part, ()):
                failing = tuple(text for text, held in with_guard if row not in held)
                known = failing or (() if row in every else ("all of them at once",))
                yield self._try(law, law.variables, row, known)
            if part not in whole:
                failing = tuple(text for text, held in with_shape if part not in held)
                yield self._try(law, self._left(n), part, failing or ("all of them at once",))

    def _try(
        self, law: Law, sorts: Mapping[str, str], row: tuple[Any, ...], failing: tuple[str, ...]
    ) -> _Try:
        """A marked place, with a term for each class."""
        given = zip(sorts.items(), row, strict=True)
        names = {name: self.chosen[x] if sort == "Node" else x for (name, sort), x in given}
        left = _build(law.left, names, self.numbers.pool.add)
        return _Try(row[0], left, names, sorts, failing)

    def _near(self, law: Law) -> Iterator[_Try]:
        """The places that have a law's left side but for a name, which stands for two terms."""
        nodes: dict[str, list[Made]] = {}
        for made, where in self.now.classes.items():
            nodes.setdefault(where, []).append(made)
        for where in nodes:
            for found in _matches(law.left, where, nodes):
                twice = [n for n, xs in found.items() if len(set(xs)) > 1]
                several = [
                    (f"{n}{k * chr(39)}", n, x)
                    for n, xs in found.items()
                    for k, x in enumerate(dict.fromkeys(xs))
                ]
                sorts = {name: law.variables[n] for name, n, _ in several}
                names = {
                    name: self.chosen[x] if sorts[name] == "Node" else x for name, _, x in several
                }
                failing = tuple(f"{n} is {n}'" for n in twice if law.variables[n] != "String")
                if failing and self.chosen[where] != self.probe:
                    yield _Try(where, self.chosen[where], names, sorts, failing)

    def rank(self, n: int) -> tuple[bool, int, int]:
        """What the program says comes before what rules made, small terms before large ones."""
        return n not in self.given, self.numbers.pool.sizes[n], n

    def _choose(self) -> dict[str, int]:
        """A term for each class: the program's own, or else the smallest."""
        pool = self.numbers.pool
        found: dict[str, int] = {}
        for i, where in sorted(self.now.named.items()):
            n = self.numbers.number[self.numbers.terms[i]]
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
    data = [t for t in tree.args if _sort(t) != "Node"]
    below = [t for t in tree.args if _sort(t) == "Node"]
    for made in nodes[where]:
        if (made.op, len(made.data), len(made.below)) != (tree.op, len(data), len(below)):
            continue
        commutes = made.op in COMMUTATIVE and made.below[0] != made.below[-1]
        for order in (made.below, made.below[::-1]) if commutes else (made.below,):
            parts = zip([*data, *below], [*made.data, *order], strict=True)
            for found in product(*(list(_matches(t, x, nodes)) for t, x in parts)):
                names = dict.fromkeys(name for part in found for name in part)
                yield {n: sum((part.get(n, ()) for part in found), ()) for n in names}


Conditions = dict[str, Sequence[Any]]


def _conditions(rule: Rule, rewrite: Rewrite) -> tuple[Conditions, Conditions]:
    """The conditions that belong to a rewrite's shape, and its guards, by what they say."""
    texts = [text for text in rule.when.split("; ") if text and text not in rewrite.guards]
    facts = rewrite.shape[1:]
    if len(texts) != len(facts):  # a condition that says several things
        return ({"; ".join(texts): facts} if texts else {}), dict(rewrite.guards)
    return {t: [f] for t, f in zip(texts, facts, strict=True)}, dict(rewrite.guards)


def _saturated_graph(
    roots: Sequence[Term], precision: str
) -> tuple[eg.EGraph, Saturated, Term | None]:
    """The e-graph itself, what was read from it, and a term that was added so as to get it."""
    pairs = tuple((t, t) for t in dict.fromkeys(roots))
    seen: list[eg.EGraph] = []

    def watch(rule: str, iteration: int, read: Callable[[], Saturated]) -> None:
        seen[:] = [getclosurevars(read).nonlocals["graph"]]

    splits = _splits(pairs)
    final = _Question(pairs, precision, splits=splits).saturate(watch=watch)
    probe = None
    if not seen:  # no rule changed anything; now one will
        names = ("one that the program lacks", "another")
        probe = terms.apply("add", *(terms.load(name, (), (), roots[0].dtype) for name in names))
        asked = _Question((*pairs, (probe, probe)), precision, splits=splits)
        final = asked.saturate(watch=watch)
    return seen[0], final, probe


# --- a picture ----------------------------------------------------------------------------------


def _dot(graph: Saturated, roots: Sequence[Term]) -> str:
    """DOT text. Classes are numbered from the results on."""
    number: dict[str, int] = {}
    todo = [graph.class_of[t] for t in reversed(roots)]
    while todo:
        where = todo.pop()
        if where not in number:
            number[where] = len(number)
            todo += [c for n in reversed(graph.classes[where]) for c in reversed(n.children)]
    lines = ["digraph egraph {", "  compound=true;", "  node [shape=box, fontname=monospace];"]
    results = {graph.class_of[t] for t in roots}
    for where, c in number.items():
        style = "solid" if where in results else "dashed"
        lines.append(f"  subgraph cluster_{c} {{ style={style};")
        for i, node in enumerate(graph.classes[where]):
            lines.append(f"    n{c}_{i} [label={_quoted(_label(node))}];")
        lines.append("  }")
    for where, c in number.items():
        for i, node in enumerate(graph.classes[where]):
            for position, child in enumerate(node.children):
                to = number[child]
                label = f", label={position}" if len(node.children) > 1 else ""
                lines.append(f"  n{c}_{i} -> n{to}_0 [lhead=cluster_{to}{label}];")
    return "\n".join([*lines, "}"]) + "\n"


def _label(node: ENode) -> str:
    if node.template is not None:
        return f"{node.template.value:.7g}" if node.op == "const" else node.template.text
    return node.op if node.attr is None else f"{node.op} {node.attr}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _write(path: Path, text: str) -> None:
    """Write a file, so that it changes as a whole or stays as it was."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise Error(f"cannot write {path}: {error.strerror}") from None


# --- words --------------------------------------------------------------------------------------

SUM, PRODUCT, ATOM = 1, 2, 3  # how tightly a text holds together
LONG, SHORT = 56, 16
NAMES = {"sum_over": "sum", "max_over": "max", "roll_one": "roll"}


class _Words:
    """The texts of terms; what is repeated and long gets a name, S0, S1, ..."""

    def __init__(self, numbers: _Numbers, shown: Iterable[int]):
        self.numbers, self.made = numbers, numbers.pool.made
        self.shared: dict[str, str] = {}
        self._texts: dict[int, str] = {}
        self._inside: dict[int, tuple[str, int]] = {}  # as an operand
        every = numbers.pool.below(shown)
        uses = Counter(c for n in every for c in set(self.made[n].below))
        axes = {str(x) for n in every for x in self.made[n].data if _is_axis(x)}
        self._sizes = Counter(axis.partition(":")[0] for axis in axes)
        for n in every:
            text, tight = self._text(self.made[n])
            self._texts[n] = text
            long = len(text) > (SHORT if uses[n] > 1 else LONG)
            if uses[n] and long and self._negated(n) is None:
                text, tight = f"S{len(self.shared)}", ATOM
                self.shared[text] = self._texts[n]
            self._inside[n] = text, tight

    def of(self, n: int) -> str:
        """The text of a term."""
        return self._texts[n]

    def named(self, n: int) -> str:
        """The text of a term, or its name if it has got one."""
        return self._inside[n][0]

    def data(self, x: Any) -> str:
        """The text of an axis, with its size where another axis has the same name, or a number."""
        if _is_axis(x):
            name, _, _ = str(x).partition(":")
            return name if self._sizes[name] < 2 else str(x)
        return f"{x:.7g}" if isinstance(x, float) else str(x)

    def _text(self, made: Made) -> tuple[str, int]:
        """A node's text, and how tightly it holds together."""
        plain = [self._inside[c][0] for c in made.below]
        plain = sorted(plain) if made.op in COMMUTATIVE else plain  # the same in every text
        if made.op in ("leaf", "const", "at"):
            return self._leaf(self.numbers.terms[int(made.data[0])]), ATOM
        if made.op == "real":
            value = float.fromhex(str(made.data[1]))
            rounded = terms.constant(value, DTYPES[str(made.data[0])]).value
            return self.data(value) if value == rounded else f"{value!r}", ATOM
        if made.op == "sum_of":
            for a, b in (made.below, made.below[::-1]):
                taken = self._negated(b)
                if taken is not None:
                    return f"{self._part(a, PRODUCT)} - {self._part(taken, PRODUCT)}", SUM
            return " + ".join(sorted(self._part(n, PRODUCT) for n in made.below)), SUM
        if made.op == "product_of":
            return " * ".join(sorted(self._part(n, ATOM) for n in made.below)), PRODUCT
        if made.op == "cut":
            return f"{self._part(made.below[0], ATOM)}[{self.data(made.data[0])}]", ATOM
        if made.data[:1] == ("div",):
            return " / ".join(self._part(n, ATOM) for n in made.below), PRODUCT
        if made.op in ("apply1", "apply2"):
            return f"{str(made.data[0]).replace(':', '.')}({', '.join(plain)})", ATOM
        words = [*map(self.data, made.data), *plain]
        return f"{NAMES.get(made.op, made.op)}({', '.join(words)})", ATOM

    def _part(self, n: int, least: int) -> str:
        """An operand that must hold together as tightly as `least`."""
        text, tight = self._inside[n]
        return text if tight >= least else f"({text})"

    def _negated(self, n: int) -> int | None:
        """x, of x * -1."""
        made = self.made[n]
        for x, c in (made.below, made.below[::-1]) if made.op == "product_of" else ():
            minus = self.made[c]
            if minus.op == "real" and float.fromhex(str(minus.data[1])) == -1:
                return x
        return None

    def _leaf(self, t: Term) -> str:
        """A leaf's text; data in its index as text too, where terms print a hash."""
        if t.op == "const":
            return self.data(t.value)
        text = {"index": str(t.attr), "nonneg": f"({t.attr} >= 0)"}.get(t.op, t.text)
        for read in t.children:
            text = text.replace(f"<{read.digest}>", self._inside[self.numbers.number[read]][0])
        return text


def _is_axis(x: Any) -> bool:
    name, _, size = str(x).rpartition(":")
    return bool(name) and size.isdigit()


# --- the command --------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is that of dodeca-opt: 1 for a bad file, 2 for bad usage."""
    from . import opt

    options = _options(arguments)
    try:
        if options.why_not:
            _rule(options.why_not)
        sources = [opt._read(name) for name in options.inputs]
    except Error as error:
        return _complain(error, 2)
    try:
        graphs = [graph for source in sources if (graph := _parsed(source)) is not None]
        if len(graphs) < len(sources):
            return 1
        print(_answer(options, graphs), flush=True)
    except Error as error:
        return _complain(error, 1)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dodeca.explain",
        description="Says why two programs are equal, or what the kernels of one are derived by.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="FILE", help="MLIR of one program or two; - is standard input")
    add("--precision", choices=["fast", "strict"], default="fast", help="which rules may be used")
    add("--why-not", metavar="RULE", help="where a rule applies, and what stops it")
    add("--picture", metavar="FILE", help="write the e-graph as DOT; - is the standard output")
    options = parser.parse_args(arguments)
    if options.why_not and options.picture:
        parser.error("--why-not and --picture are two questions; ask one")
    if len(options.inputs) > (1 if options.why_not or options.picture else 2):
        parser.error("too many programs")
    return options


def _parsed(source: Source) -> Graph | None:
    """The program of a file; what is wrong with it is printed, with its line."""
    from .opt import _printer
    from .pass_pipeline import check_module

    with context(), ir.Location.unknown(), collected(context(), source, _printer(source)):
        try:
            module = ir.Module.parse(source.text)
        except ir.MLIRError:  # pyright: ignore[reportAttributeAccessIssue]  # not in stubs
            return None
        if not check_module(module.operation):
            return None
    try:
        return Graph.from_mlir(f"{module}\n")
    except ParseError as error:
        raise ParseError(str(error).replace("<text>", source.name)) from None


def _answer(options: argparse.Namespace, graphs: Sequence[Graph]) -> str:
    precision = options.precision
    if options.why_not:
        return str(why_not(options.why_not, *graphs, precision=precision))
    if options.picture:
        path = None if options.picture == "-" else options.picture
        text = egraph_picture(*graphs, path=path, precision=precision)
        return text.rstrip() if path is None else f"wrote {path}"
    return str(explain(*graphs, precision=precision))


def _complain(error: Error, status: int) -> int:
    print(f"dodeca.explain: {error}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
