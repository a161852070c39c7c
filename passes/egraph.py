"""Equality saturation over terms: put terms in, run the rules, read the classes out.

graph = saturate(roots=[t], equal=[(load_of_t, t)], precision="fast", budget=Budget())
graph.classes[graph.class_of[t]]     every way of computing t that was found
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import egglog as eg

from ..dialect import DTYPES
from . import rules, terms
from .index import Axis
from .terms import Term

BINARY = ("mod", "less_than", "div")


@dataclass(frozen=True)
class Budget:
    """Where saturation stops; at a limit what was found so far is used, and the report says so."""

    iterations: int = 8
    nodes: int = 20_000
    seconds: float = 10.0


@dataclass(frozen=True)
class ENode:
    """One way to compute a class. `template` is a term that has the op and what is no child."""

    op: str
    children: tuple[str, ...]
    template: Term | None
    attr: object = None

    def build(self, children: Sequence[Term]) -> Term:
        """The term, given terms of the children's classes."""
        if self.template is not None and self.op in ("leaf", "at", "const"):
            return terms.rebuild(
                self.template, dict(zip(self.template.children, children, strict=True))
            )
        if self.op in ("sum", "max"):
            assert isinstance(self.attr, Axis)
            return terms.reduction(self.op, self.attr, children[0])
        if self.op == "contract":
            assert isinstance(self.attr, Axis)
            return terms.reduction("sum", self.attr, terms.apply("mul", *children))
        if self.op == "select":
            return terms.select(*children)
        if isinstance(self.attr, str):
            kind = DTYPES[self.attr]
            return (terms.cast if self.op == "cast" else terms.bitcast)(children[0], kind)
        return terms.apply(self.op, *children)


@dataclass
class Saturated:
    """The classes of a saturated e-graph, and what the rules did."""

    classes: dict[str, list[ENode]]
    class_of: dict[Term, str]
    report: dict = field(default_factory=dict)


def saturate(
    roots: Sequence[Term], equal: Sequence[tuple[Term, Term]], precision: str, budget: Budget
) -> Saturated:
    """Run the active rules on the terms below `roots`; the pairs in `equal` are joined first."""
    started = time.perf_counter()
    order = terms.postorder([*roots, *(t for pair in equal for t in pair)])
    number = {t: i for i, t in enumerate(order)}
    graph = eg.EGraph()
    facts = [fact for t in order for fact in _facts(t, number)]
    axes = {t.attr for t in order if t.op in terms.REDUCTIONS}
    facts += [rules.nonempty(_axis(a)) for a in sorted(axes) if a.size]
    facts += [
        eg.union(rules.Node.named(number[x])).with_(rules.Node.named(number[y])) for x, y in equal
    ]
    graph.register(*facts)
    matches, iterations, stopped = _run(graph, precision, budget, started)
    classes, named = _read(graph, order)
    report = {
        "terms": len(order),
        "nodes": sum(map(len, classes.values())),
        "classes": len(classes),
        "iterations": iterations,
        "stopped": stopped,
        "matches": {name: count for name, count in matches.items() if count},
        "seconds": time.perf_counter() - started,
    }
    return Saturated(classes, {t: named[i] for i, t in enumerate(order)}, report)


def _run(
    graph: eg.EGraph, precision: str, budget: Budget, started: float
) -> tuple[dict[str, int], int, str]:
    analysis, tables = rules.analysis(), rules.rulesets(precision)
    matches = dict.fromkeys(tables, 0)
    for iteration in range(budget.iterations):
        graph.run(analysis.saturate())
        changed = False
        for name, ruleset in tables.items():
            done = graph.run(ruleset)
            changed |= done.updated
            matches[name] += sum(done.num_matches_per_rule.values())
        if not changed:
            return matches, iteration + 1, "saturated"
        if time.perf_counter() - started > budget.seconds:
            return matches, iteration + 1, f"time budget of {budget.seconds} s"
        if sum(n for _, n in graph.all_function_sizes()) > budget.nodes:
            return matches, iteration + 1, f"node budget of {budget.nodes}"
    return matches, budget.iterations, f"iteration budget of {budget.iterations}"


# --- encoding -----------------------------------------------------------------------------------


def _axis(axis: Axis) -> rules.Axis:
    return rules.Axis(f"{axis.name}:{axis.size}")


def _facts(t: Term, number: dict[Term, int]) -> list:
    """How a term enters the e-graph: its node, and what is known of it."""
    named = rules.Node.named(number[t])
    facts: list = [eg.union(named).with_(_encode(t, number))]
    if not t.args:  # what other terms depend on follows by the analysis
        axes = [_axis(a) for a in sorted(t.axes)]
        known = eg.Set(*axes) if axes else eg.Set[rules.Axis].empty()
        facts.append(eg.set_(rules.free(named)).to(known))
    if t.dtype.kind in ("int", "uint"):
        facts.append(rules.integer(named))
    if t.op == "const" and t.dtype.is_float and 0 < t.value < float("inf"):
        facts.append(rules.positive(named))
    return facts


def _encode(t: Term, number: dict[Term, int]) -> rules.Node:
    children = [rules.Node.named(number[c]) for c in t.children]
    if t.op in ("load", "index", "nonneg", "table"):
        key = str(number[t])
        return rules.Node.at(key, eg.Vec(*children)) if children else rules.Node.leaf(key)
    if t.op == "const":
        return rules.Node.const(str(number[t]))
    args = [rules.Node.named(number[a]) for a in t.args]
    if t.op == "add":
        return args[0] + args[1]
    if t.op == "mul":
        return args[0] * args[1]
    if t.op in terms.REDUCTIONS:
        return (rules.sum_over if t.op == "sum" else rules.max_over)(_axis(t.attr), args[0])
    if t.op == "select":
        return rules.select(*args)
    if t.op in BINARY:
        return rules.apply2(t.op, *args)
    name = f"{t.op}:{t.dtype.name}" if t.op in ("cast", "bitcast") else t.op
    return rules.apply1(name, args[0])


# --- reading ------------------------------------------------------------------------------------

_OPS = {
    "sum_of": "add",
    "product_of": "mul",
    "sum_over": "sum",
    "max_over": "max",
    "contract": "contract",
    "select": "select",
}


def _read(graph: eg.EGraph, order: list[Term]) -> tuple[dict[str, list[ENode]], dict[int, str]]:
    nodes = json.loads(graph._serialize(n_inline_leaves=0).to_json())["nodes"]
    classes: dict[str, list[ENode]] = {}
    named: dict[int, str] = {}
    for name, node in nodes.items():
        function = name.split("-", 2)[2]
        if function == "named":
            named[int(nodes[node["children"][0]]["op"])] = node["eclass"]
        elif node["eclass"].startswith("Node-"):
            made = _read_node(function, node, nodes, order)
            if made is not None:
                classes.setdefault(node["eclass"], []).append(made)
    for found in classes.values():
        found.sort(key=lambda n: (n.op, n.template.digest if n.template else "", n.children))
    return classes, named


def _read_node(function: str, node: dict, nodes: dict, order: list[Term]) -> ENode | None:
    children = node["children"]
    below = tuple(nodes[c]["eclass"] for c in children)

    def text(i: int) -> str:
        return json.loads(nodes[children[i]]["op"])

    if function in ("leaf", "const", "at"):
        template = order[int(text(0))]
        data = nodes[children[1]]["children"] if function == "at" else []
        return ENode(function, tuple(nodes[c]["eclass"] for c in data), template)
    if function in ("sum_over", "max_over", "contract"):
        name, _, size = json.loads(nodes[nodes[children[0]]["children"][0]]["op"]).partition(":")
        return ENode(_OPS[function], below[1:], None, Axis(name, int(size)))
    if function == "apply1":
        op, _, kind = text(0).partition(":")
        return ENode(op, below[1:], None, kind or None)
    if function == "apply2":
        return ENode(text(0), below[1:], None)
    return ENode(_OPS[function], below, None) if function in _OPS else None
