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
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from inspect import getclosurevars
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from mlir import ir

from .dialect.errors import ArgumentError, Error
from .dialect.ops import NAME, WEIGHT, entry_function, named_arguments
from .passes import terms
from .passes.comprehend import Comprehension
from .passes.index import Axis
from .passes.terms import Term
from .trace import Graph, Spec, trace

if TYPE_CHECKING:  # the e-graph is imported by the first question
    import egglog as eg

    from .passes.egraph import Saturated
    from .passes.rules import Rewrite, Rule

# `python -m dodeca.explain` runs this file a second time, and that is meant.
warnings.filterwarnings("ignore", ".*dodeca.explain.* found in sys.modules", RuntimeWarning)

Program = Callable[..., Any] | Graph | Term
Pair = tuple[Term, Term]
Split = tuple[Axis, Axis, Axis]
T = TypeVar("T")

LARGEST_PICTURE = 300  # nodes
SHOWN = 12  # places of one kind that `why_not` prints
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
    iteration: int | None  # None: before the first one
    before: str
    after: str

    def __str__(self) -> str:
        when = f", where {self.when}" if self.when else ""
        started = "at the start" if self.iteration is None else f"iteration {self.iteration}"
        return f"{self.rule} ({self.kind}, {started}): {self.law}{when}\n     {self.before}\n" + (
            f"  -> {self.after}"
        )


@dataclass(frozen=True)
class Result:
    """A result of two programs, whether it is proved to be the same, and else where they part."""

    left: str
    right: str
    equal: bool
    parting: tuple[str, str] | None = None


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
            sign = "equals" if r.equal else "is not proved equal to"
            lines += ["", f"result{name}", f"     {r.left}", f"  {sign}", f"     {r.right}"]
            if r.parting:
                lines += ["  they part at", *(f"     {text}" for text in r.parting)]
        for n, step in enumerate(self.steps, 1):
            lines += ["", f"{n}. {step}"]
        if "commute" in self.rules:
            lines += ["", "Operands of + and * are in no order here (commute)."]
        if self.shared:
            lines += ["", "where", *(f"  {name} = {text}" for name, text in self.shared.items())]
        return "\n".join(lines)

    def _verdict(self) -> str:
        said = f"{self.report['nodes']} nodes after {self.report['iterations']} iterations"
        said = f"the search ended with {said}: {self.report['stopped']}"
        if not self.equal:
            return f"not proved equal; {said}"
        if not self.rules:
            return "equal as they stand: one term"
        return f"equal by {len(self.rules)} rules ({', '.join(self.rules)}); {said}"


@dataclass(frozen=True)
class Derivation:
    """How the values that a program's kernels store follow from the program, kernel by kernel."""

    kernels: Mapping[str, Explanation]

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(sorted({rule for e in self.kernels.values() for rule in e.rules}))

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


# --- questions ----------------------------------------------------------------------------------


def explain(a: Program, *more: Any, precision: str = "fast") -> Explanation | Derivation:
    """Why two programs are equal: `explain(a, b, *specs)`; or what one becomes: `explain(a, *specs)`.

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
    from .passes import rules

    _check_precision(precision)
    known = {row.name: row for row in rules.TABLE}
    if rule not in known:
        close = get_close_matches(rule, known, 3) or list(known)
        raise Error(f"there is no rule {rule!r}; did you mean {', '.join(close)}?")
    found = [program] if isinstance(program, Term) else _results(_graph(program, specs))
    return _why_not(known[rule], found, precision, precision == "fast" or known[rule].kind == "exact")


def egraph_picture(
    program: Program, *specs: Any, path: str | Path | None = None, precision: str = "fast"
) -> str:
    """The saturated e-graph as DOT text: a box for each node, around it the class that it is in.

    With `path` the text is written there as well. Error if there are more nodes than one can see.
    """
    from .passes.egraph import saturate

    _check_precision(precision)
    roots = [program] if isinstance(program, Term) else _results(_graph(program, specs))
    graph = saturate(roots, (), precision, _budget(), splits=_splits([(t, t) for t in roots]))
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


def _made(op: str, values: Iterable[Any], sorts: Iterable[str]) -> Made:
    """A node of arguments in their order; numbers become texts, so that -0.0 is not 0.0."""
    data: list[str | int] = []
    below: list[Any] = []
    for value, sort in zip(values, sorts, strict=True):
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
    name = getattr(expr.callable, "method_name", None) or expr.callable.ident.name
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
        kept = {n: s for n, s in _variables(*shape).items() if s in ("Node", "Axis", "f64", "String")}
        return Law(rewrite, first.args[1], _read(rewrite.made), kept)

    @property
    def facts(self) -> list[eg.Fact]:
        """All that must hold where the law is used."""
        return [*self.rewrite.shape, *(f for facts in self.rewrite.guards.values() for f in facts)]

    @property
    def commutes(self) -> bool:
        """Whether both sides are one node here, where operands are in no order."""
        pool = Pool()
        leaves = {n: pool.add(Made("leaf", (n,), ())) for n in self.variables}
        kinds = self.variables.items()
        values = {n: leaves[n] if s == "Node" else 1.0 if s == "f64" else n for n, s in kinds}
        return _build(self.left, values, pool.add) == _build(self.right, values, pool.add)


def _mark(name: str, variables: Mapping[str, str], facts: Iterable[eg.Fact]) -> eg.RewriteOrRule:
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

        return saturate(
            self.roots, self.equal, self.precision, Budget(nodes=60_000, seconds=60.0), without, watch,
            self.splits, self.early,
        )  # fmt: skip


class Equation(NamedTuple):
    """A law at a place: two terms, by number. `iteration` is None for one from the start."""

    rule: str
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
            one = t.op == "roll" and t.args[1] is terms.constant(1, t.dtype)
            op, below = ("roll_one", below[:1]) if one else (t.op, below)
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
        if not self.numbers.terms:  # no rule changed anything
            self._begin(list(self.final.class_of))
        for pair in question.pairs:
            for t in pair:
                self.closure.enter(self.numbers.add(t))

    def is_equal(self, pair: Pair) -> bool:
        """Whether the e-graph has both terms in one class."""
        return _in_one_class(self.final, pair)

    def _join(self, rule: str, iteration: int | None, left: int, right: int) -> None:
        self.closure.enter(left, right)
        if not self.closure.same(left, right):
            self.equations.append(Equation(rule, iteration, left, right))
            self.closure.join(left, right, len(self.equations) - 1)

    def _begin(self, order: list[Term]) -> None:
        """The terms that were put in, and what was joined before any rule."""
        from .passes import egraph

        for t in order:
            self.closure.enter(self.numbers.add(t))
        number = self.numbers.number
        for x, y in self.question.equal:
            self._join("fusion", None, number[x], number[y])
        allowed = {r.name for r in self.allowed}
        for name, make in egraph._JOINED:
            made = [(t, make(t)) for t in order if name in allowed]
            for t, new in made:
                if new in number:
                    self._join(name, None, number[t], number[new])
        for split in self.question.splits:
            for whole, axis, part in egraph._parts(order, *split):
                if part in number:
                    cut = self.numbers.pool.add(Made("cut", (_axis_text(axis),), (number[whole],)))
                    self._join("cut", None, cut, number[part])

    def _watch(self, rule: str, iteration: int, read: Callable[[], Saturated]) -> None:
        """After a rule: the places where it holds, as equations."""
        if not self.numbers.terms:
            self._begin(list(read().class_of))
        laws = self._laws[rule]
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
            (law, dict(zip(law.variables, row, strict=True)))
            for n, law in enumerate(laws)
            if not law.commutes
            for row in now.marked.get(f"{MARK}{rule}_{n}", ())
        ]
        rows.sort(key=lambda r: [f"{places.get(v, [v])[0]:>9}" for v in r[1].values()])
        again = True
        while again:
            count = len(self.equations)
            for law, row in rows:
                self._use(rule, iteration, law, row, now, places, classes)
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

    def _use(
        self,
        rule: str,
        iteration: int,
        law: Law,
        row: Mapping[str, Any],
        now: Snapshot,
        places: Mapping[str, list[int]],
        classes: Mapping[int, str],
    ) -> None:
        """Both sides of a law at a marked place, as terms; only what the e-graph has made equal."""
        if _build(law.right, row, now.find) != row["w"]:
            return
        names = [n for n in _variables(law.left, law.right) if law.variables[n] == "Node"]
        roots = ({self.closure.root(n) for n in places.get(row[name], ())} for name in names)
        for choice in product(*map(sorted, roots)):
            values = {**row, **dict(zip(names, choice, strict=True))}
            if _build(law.left, values, self.closure.find) is None:
                continue
            values |= {name: self.closure.smallest[self.closure.root(values[name])] for name in names}
            sides = [_build(side, values, self.numbers.pool.add) for side in (law.left, law.right)]
            self._join(rule, iteration, *sides)

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


def _in_one_class(graph: Saturated, pair: Pair) -> bool:
    x, y = (_class_of(graph, t) for t in pair)
    return x is not None and x == y


def _class_of(graph: Saturated, root: Term) -> str | None:
    """The class of a term, which may have rolling sums."""
    where = {(n.op, n.attr, n.children): c for c, ns in graph.classes.items() for n in ns}
    found: dict[Term, str | None] = {}
    for t in terms.postorder([root]):
        if t in graph.class_of:
            found[t] = graph.class_of[t]
            continue
        one = t.op == "roll" and t.args[1] is terms.constant(1, t.dtype)
        below = [found[a] for a in (t.args[:1] if one else t.args)]
        if None in below or not t.args:
            return None
        below = sorted(map(str, below)) if t.op in ("add", "mul") else below
        attr = t.dtype.name if t.op in ("cast", "bitcast") else t.attr
        found[t] = where.get((t.op, attr, tuple(map(str, below))))
    return found[root]


def _explain(question: _Question) -> Explanation:
    """Find out; then with as few rules as can be; then tell it."""
    trace = _Trace(question)
    equal = [pair for pair in question.pairs if trace.is_equal(pair)]
    report, rules, steps = trace.final.report, [], []
    if any(a is not b for a, b in equal):
        rules = _least_rules(trace, equal)
        others = [r.name for r in trace.allowed if r.name not in rules]
        trace = _Trace(question, others)
        steps = trace.proof(equal)
        assert steps is not None, f"the steps of {', '.join(rules)} were not all seen"
    return _tell(question, trace, equal, rules, steps, report)


def _least_rules(trace: _Trace, pairs: Sequence[Pair]) -> list[str]:
    """Rules in the table's order, that together prove the pairs, and do not without one of them."""
    every = {r.name for r in trace.allowed}

    def proves(kept: Collection[str]) -> bool:
        graph = trace.question.saturate(every - set(kept))
        return all(_in_one_class(graph, pair) for pair in pairs)

    proof = trace.proof(pairs)
    used = {e.rule for e in proof or ()} | ({"commute"} & every)
    if proof is None or not proves(used):
        used = {e.rule for e in trace.equations} | ({"commute"} & every)
    used &= every
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

    partings = {p: _parting(trace.final, *p) for p in question.pairs if p not in equal}
    number = trace.numbers.add
    shown = [n for e in steps for n in (e.left, e.right)]
    shown += [number(t) for p in question.pairs for t in (*p, *partings.get(p, ()))]
    words = _Words(trace.numbers, shown)
    table = {rule.name: rule for rule in TABLE}
    results = []
    for a, b in question.pairs:
        parting = partings.get((a, b), (a, b))
        part = tuple(words.of(number(t)) for t in parting)
        texts = words.of(number(a)), words.of(number(b))
        results.append(Result(*texts, (a, b) in equal, part if parting != (a, b) else None))
    told = []
    for e in steps:
        row = table[e.rule]
        sides = words.of(e.left), words.of(e.right)
        told.append(Step(row.name, row.law, row.kind, row.when, e.iteration, *sides))
    return Explanation(tuple(results), tuple(told), tuple(rules), words.shared, report)


def _parting(graph: Saturated, a: Term, b: Term) -> Pair:
    """The innermost pair of terms where two terms are not equal, as long as that is one pair."""
    while a.op == b.op and a.attr == b.attr and len(a.args) == len(b.args):
        ways = [b.args, b.args[::-1]] if a.op in ("add", "mul") else [b.args]
        apart = [[p for p in zip(a.args, w, strict=True) if not _in_one_class(graph, p)] for w in ways]
        found = min(apart, key=len)
        if len(found) != 1:
            break
        a, b = found[0]
    return a, b


# --- words --------------------------------------------------------------------------------------

SUM, PRODUCT, ATOM = 1, 2, 3  # how tightly a text holds together
LONG, SHORT = 56, 16


class _Words:
    """The texts of terms; what is repeated and long gets a name, S0, S1, ..."""

    def __init__(self, numbers: _Numbers, shown: Iterable[int]):
        self.numbers = numbers
        self.shared: dict[str, str] = {}
        self._texts: dict[int, tuple[str, int]] = {}
        self._inside: dict[int, tuple[str, int]] = {}
        shown = set(shown)
        every = numbers.pool.below(shown)
        uses = Counter(c for n in every for c in set(numbers.pool.made[n].below))
        sizes: dict[str, set[str]] = {}
        for n in every:
            for x in numbers.pool.made[n].data:
                name, colon, size = str(x).partition(":")
                sizes.setdefault(name, set()).update([size] if colon else [])
        self._twice = {name for name, found in sizes.items() if len(found) > 1}
        for n in every:
            text, tight = self._texts[n] = self._text(numbers.pool.made[n])
            often = uses[n] + (n in shown)
            if uses[n] and (len(text) > LONG or (often > 1 and len(text) > SHORT)):
                name = f"S{len(self.shared)}"
                self.shared[name] = text
                text, tight = name, ATOM
            self._inside[n] = text, tight

    def of(self, n: int) -> str:
        """The text of a term."""
        return self._texts[n][0]

    def _text(self, made: Made) -> tuple[str, int]:
        """An operation's text, and how tightly it holds together."""
        below = [self._inside[c] for c in made.below]
        plain = [text for text, _ in below]
        if made.op in ("leaf", "const", "at"):
            return self._leaf(self.numbers.terms[int(made.data[0])], plain), ATOM
        if made.op == "real":
            return f"{float.fromhex(str(made.data[1])):.7g}", ATOM
        if made.op == "sum_of":
            return self._sum(made, below), SUM
        if made.op == "product_of":
            return f"{_in(below[0], PRODUCT)} * {_in(below[1], PRODUCT)}", PRODUCT
        words = [self._axis(str(x)) for x in made.data]
        if made.op == "cut":
            return f"{_in(below[0], ATOM)}[{words[0]}]", ATOM
        if made.op == "apply2" and words[0] in ("div", "less_than"):
            sign, tight = ("/", ATOM) if words[0] == "div" else ("<", SUM + 1)
            tight = PRODUCT if sign == "<" else ATOM
            return f"{_in(below[0], tight)} {sign} {_in(below[1], ATOM)}", PRODUCT if sign == "/" else SUM
        if made.op in ("apply1", "apply2"):
            return f"{words[0].replace(':', '.')}({', '.join(plain)})", ATOM
        name = {"sum_over": "sum", "max_over": "max", "roll_one": "roll"}.get(made.op, made.op)
        return f"{name}({', '.join([*words, *plain])})", ATOM

    def _sum(self, made: Made, below: Sequence[tuple[str, int]]) -> str:
        for n, first in ((made.below[1], below[0]), (made.below[0], below[1])):
            factor = self.numbers.pool.made[n]
            if factor.op == "product_of" and n not in self._named():
                for x, c in (factor.below, factor.below[::-1]):
                    minus = self.numbers.pool.made[c]
                    if minus.op == "real" and float.fromhex(str(minus.data[1])) == -1:
                        return f"{_in(first, SUM)} - {_in(self._inside[x], PRODUCT)}"
        return f"{_in(below[0], SUM)} + {_in(below[1], SUM)}"
