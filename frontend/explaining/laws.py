"""The rules as data, and what an e-graph holds: its nodes, and the places where a rule applies.

law = laws_of(hoist_sum)[0]
law.left, law.right          sum(j, x * y) and x * sum(j, y), as trees
graph.run(marks(hoist_sum))  writes what j, x and y are, wherever the law holds
Snapshot.of(graph).marked    reads it back
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from .. import engine as engine  # before what needs egglog: it loads no more than that
from ..dialect import DTYPES
from ..passes import rules, terms
from ..passes.egraph import EGraph
from ..passes.rules import Rewrite, Rule
from .closure import Made, Pool

MARK = "marked_"  # the names of relations that only `mark` writes

# --- expressions of egglog as trees -------------------------------------------------------------


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
SORTS = {"axis": "Axis", "vec-of": "Vec", "vec-empty": "Vec", "*": "f64", "=": ""}  # of calls


def parsed(text: str) -> list[Tree]:
    """Terms and facts in egglog's notation as trees: (= w (sum_over j x)), (named 3)."""
    open_: list[list[Any]] = [[]]
    tokens = re.findall(r'"[^"]*"|[()]|[^\s()]+', text)
    for before, token in pairwise(["", *tokens]):
        if token == "(":
            open_.append([])
        elif token == ")":
            op, *args = open_.pop()
            open_[-1].append(Call(op, SORTS.get(op, "Node"), tuple(args)))
        elif before == "(":
            open_[-1].append(token)
        elif token[0].isalpha():
            open_[-1].append(Var(token, rules.SORTS.get(token, "Axes")))
        else:
            open_[-1].append(json.loads(token))
    return open_[0]


def variables(*trees: Tree) -> dict[str, str]:
    """The variables and their sorts."""
    found: dict[str, str] = {}
    for tree in trees:
        if isinstance(tree, Var):
            found[tree.name] = tree.sort
        elif isinstance(tree, Call):
            found |= variables(*tree.args)
    return found


def sort_of(tree: Tree) -> str:
    """The sort of a tree's value; none for a number or text that stands in a law."""
    return tree.sort if isinstance(tree, Var | Call) else ""


def build(tree: Tree, values: Mapping[str, Any], make: Callable[[Made], Any]) -> Any:
    """What a tree stands for; None where `make` gives None for a node of it."""
    if isinstance(tree, Var):
        return values[tree.name]
    if not isinstance(tree, Call):
        return tree
    args = [build(t, values, make) for t in tree.args]
    if None in args:
        return None
    if tree.sort == "f64":
        assert tree.op == "*", f"a law computes {tree.op}"
        return args[0] * args[1]
    if tree.sort == "Axis":
        return args[0]
    return args if tree.sort == "Vec" else make(Made.of(tree.op, args, map(sort_of, tree.args)))


# --- laws ---------------------------------------------------------------------------------------


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
        shape = [tree for fact in rewrite.shape for tree in parsed(fact)]
        first, (made,) = shape[0], parsed(rewrite.made)
        assert isinstance(first, Call) and first.args[0] == Var("w", "Node")
        kept = {n: s for n, s in variables(*shape).items() if s != "Axes"}  # `w` comes first
        return Law(rewrite, first.args[1], made, kept)


@cache
def laws_of(rule: Rule) -> tuple[Law, ...]:
    """The laws of a row of the table that the e-graph searches for."""
    return tuple(map(Law.of, rule.rewrites))


def mark(name: str, variables: Mapping[str, str], facts: Iterable[str], ruleset: str) -> str:
    """A rule that changes nothing, but writes what the variables are where the facts hold."""
    relation = f"(relation {MARK}{name} ({' '.join(variables.values())}))"
    written = f"({MARK}{name} {' '.join(variables)})"
    return f"{relation}(rule ({' '.join(facts)}) ({written}) :ruleset {ruleset})"


@cache
def marks(rule: Rule) -> str:
    """A ruleset, `marks_name`, that marks where the n-th law of a rule holds, under `name_n`."""
    told = f"(ruleset marks_{rule.name})"
    for n, law in enumerate(laws_of(rule)):
        facts = (*law.rewrite.shape, *law.rewrite.guards.values())
        told += mark(f"{rule.name}_{n}", law.variables, facts, f"marks_{rule.name}")
    return told


# --- what an e-graph holds ----------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """An e-graph at a moment: the class of every node, and what was marked, by name."""

    classes: Mapping[Made, str]
    marked: Mapping[str, list[tuple[Any, ...]]]

    @staticmethod
    def of(graph: EGraph) -> Snapshot:
        """Read what egglog writes for its pictures; it says nothing else about where nodes are."""
        nodes = json.loads(graph.serialize([]).to_json())["nodes"]
        classes: dict[Made, str] = {}
        marked: dict[str, list[tuple[Any, ...]]] = {}
        for name, node in nodes.items():
            is_node, is_mark = node["eclass"].startswith("Node-"), node["op"].startswith(MARK)
            if not name.startswith("function-") or not (is_node or is_mark):
                continue
            op = name.split("-", 2)[2]
            values, sorts = zip(*(_value(nodes, c) for c in node["children"]), strict=True)
            if is_mark:
                marked.setdefault(node["op"].removeprefix(MARK), []).append(values)
            elif op != "named":
                made = Made.of(op, values, sorts)
                classes[made.over(made.below)] = node["eclass"]
        return Snapshot(classes, marked)

    def find(self, made: Made) -> str | None:
        """The class of a node of classes, if there is such a node."""
        return self.classes.get(made.over(made.below))

    def places(self, pool: Pool) -> dict[int, str]:
        """The class of every term of a pool that the e-graph has."""
        found: dict[int, str] = {}
        for n, made in enumerate(pool.made):
            if all(c in found for c in made.below):
                where = self.find(made._replace(below=tuple(found[c] for c in made.below)))
                if where is not None:
                    found[n] = where
        return found

    def unrounded(self) -> Iterator[tuple[Made, Made]]:
        """The numbers that are none of their dtype, and what they are when rounded to it."""
        for made in self.classes:
            if made.op == "real":
                kind, value = made.data[0], float.fromhex(made.data[1])
                rounded = Made.of("real", (kind, terms.constant(value, DTYPES[kind]).value))
                if rounded != made:
                    yield made, rounded


def _value(nodes: Mapping[str, Any], name: str) -> tuple[Any, str]:
    """An argument of a node and its sort: a class, several of them, or a text or number."""
    node = nodes[name]
    if node["eclass"].startswith("Node-"):
        return node["eclass"], "Node"
    if node["op"] in ("vec-of", "vec-empty"):
        return [nodes[child]["eclass"] for child in node["children"]], "Vec"
    if node["eclass"].startswith("Axis-"):
        return _value(nodes, node["children"][0])
    text = str(node["op"])
    if text.startswith('"'):
        return json.loads(text), ""
    return int(text) if text.lstrip("-").isdigit() else float(text), ""
