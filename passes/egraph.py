"""Equality saturation over terms: put terms in, run the rules, read the classes out.

graph = saturate(roots=[t], equal=[(load_of_t, t)], precision="fast", budget=Budget())
graph.classes[graph.class_of[t]]     every way of computing t that was found
"""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

import egglog as eg
import ml_dtypes

from ..dialect import DTYPES, DType
from . import rules, terms
from .index import Axis, of_axis
from .terms import Term, postorder

Split = tuple[Axis, Axis, Axis]
T = TypeVar("T")
Watch = Callable[..., None]  # watch(rule, iteration, read=...)


@dataclass(frozen=True)
class Budget:
    """Where saturation stops; at a limit what was found so far is used, and the report says so."""

    iterations: int = 12
    nodes: int = 20_000
    seconds: float = 10.0
    megabytes: float = 1_000.0  # that the process may grow by


@dataclass(frozen=True)
class ENode:
    """One way to compute a class. `template` is a term that has the op and what is no child."""

    op: str
    children: tuple[str, ...]
    template: Term | None
    attr: Any = None  # the axis of a reduction, the dtype of a cast

    @property
    def loaded(self) -> str | None:
        """The buffer that it loads an element of."""
        template = self.template
        return template.attr[0] if template is not None and template.op == "load" else None

    def build(self, children: Sequence[Term]) -> Term:
        """The term, given terms of the children's classes."""
        if self.template is not None and self.op in ("leaf", "at", "const"):
            return terms.rebuild(
                self.template, dict(zip(self.template.children, children, strict=True))
            )
        if self.op == "contract":
            return terms.reduction("sum", self.attr, terms.apply("mul", *children))
        if self.op in ("roll", "part") and len(children) == 1:
            children = [*children, terms.constant(1, children[0].dtype)]
        kind = DTYPES[self.attr] if isinstance(self.attr, str) else children[0].dtype
        return terms.make(self.op, tuple(children), self.attr, kind)


@dataclass
class Saturated:
    """The classes of a saturated e-graph, the e-graph itself, and what the rules did.

    Only after a search that was watched is the e-graph still full: else another search has it.
    """

    classes: dict[str, list[ENode]]
    class_of: dict[Term, str]
    graph: eg.EGraph
    report: dict = field(default_factory=dict)

    def follow(
        self, start: T, step: Callable[[ENode, list[T]], T], join: Callable[[T, T], T]
    ) -> dict[str, T]:
        """A value for every class: `step` gives a node's from its children's, `join` combines those
        of a class's nodes, until nothing changes. Nodes on a cycle begin with `start`."""
        found = dict.fromkeys(self.classes, start)
        changed = True
        while changed:
            changed = False
            for where, nodes in self.classes.items():
                new = found[where]
                for node in nodes:
                    new = join(new, step(node, [found[c] for c in node.children]))
                changed |= new != found[where]
                found[where] = new
        return found

    @cached_property
    def axes(self) -> dict[str, frozenset[Axis] | None]:
        """The axes that each class depends on."""

        def of_node(node: ENode, below: list[frozenset[Axis] | None]) -> frozenset[Axis] | None:
            if None in below:
                return None
            axes = node.template.axes if node.template is not None else frozenset()
            axes = axes.union(*(b for b in below if b is not None))
            return axes - {node.attr} if isinstance(node.attr, Axis) else axes

        def both(a: frozenset[Axis] | None, b: frozenset[Axis] | None) -> frozenset[Axis] | None:
            return b if a is None else a if b is None else a & b

        return self.follow(None, of_node, both)

    @cached_property
    def dtypes(self) -> dict[str, DType | None]:
        """The dtype of each class."""

        def of_node(node: ENode, below: list[DType | None]) -> DType | None:
            if node.template is not None:
                return node.template.dtype
            named = {"less_than": "bool"}.get(node.op, node.attr)
            return DTYPES[named] if isinstance(named, str) else below[-1]

        return self.follow(None, of_node, lambda a, b: a or b)


def saturate(
    roots: Sequence[Term],
    equal: Sequence[tuple[Term, Term]],
    precision: str,
    budget: Budget,
    without: Collection[str] = (),
    watch: Watch | None = None,
    splits: Collection[Split] = (),
    early: Collection[str] = (),
) -> Saturated:
    """Run the active rules on the terms below `roots`; the pairs in `equal` are joined first.

    The axes in `splits` may be split, each into an outer and an inner one; the buffers in `early`
    are known before any call.
    `without` names rules that are left out. `watch`, if given, is told after every rule that
    changed something: its name, the iteration, and a function that reads the classes.
    """
    started = time.perf_counter()
    order = postorder([*roots, *(t for pair in equal for t in pair)])
    allowed = {rule.name for rule in rules.active(precision)} - set(without)
    for name, make in _JOINED:
        if name in allowed:
            made = [(t, make(t)) for t in order]
            equal = [*equal, *((t, new) for t, new in made if new is not None)]
    order = postorder([*order, *(t for pair in equal for t in pair)])
    parts = [found for split in splits for found in _parts(order, *split)]
    order = postorder([*order, *(part for *_, part in parts)])
    number = {t: i for i, t in enumerate(order)}
    known = _known(order, number, equal, parts, early)
    related: list[tuple[str, tuple[Axis, ...]]] = [("splits", split) for split in splits]
    related += dict.fromkeys(("swaps", pair) for t in order for pair in terms.swaps(t)).keys()
    tables = rules.rulesets(precision, frozenset(without))
    rows = tuple(rule for rule in rules.active(precision) if rule.name in tables)
    with _graph(rows, watch is not None) as graph:
        for relation, axes in related:
            graph.register(getattr(rules, relation)(*(rules.Axis(_name(a)) for a in axes)))
        # each command keeps the text that it was parsed from
        graph._run_program(*(c for line in known for c in graph._egraph.parse_program(line)))

        def read() -> Saturated:
            classes, named = _read(graph, order)
            return Saturated(classes, {t: named[i] for i, t in enumerate(order)}, graph)

        told = watch and partial(watch, read=read)
        iterations, stopped, work = _run(graph, tables, budget, told)
        found = read()
    found.report = {
        "terms": len(order),
        "nodes": sum(map(len, found.classes.values())),
        "classes": len(found.classes),
        "iterations": iterations,
        "stopped": stopped,
        "matches": {name: w.matches for name, w in work.items() if w.matches},
        "rule seconds": {name: w.seconds for name, w in work.items() if w.matches},
        "seconds": time.perf_counter() - started,
    }
    return found


_KEPT = threading.Lock()


@contextmanager
def _graph(rows: tuple[rules.Rule, ...], alone: bool) -> Iterator[eg.EGraph]:
    """An e-graph that knows the rules: a new one if it is to stay alone, or one kept for all, that
    is emptied at the end. To tell egglog the rules takes longer than most searches."""
    if alone:
        yield _declared.__wrapped__(rows)
        return
    with _KEPT, _declared(rows) as graph:
        yield graph


@lru_cache(4)
def _declared(rows: tuple[rules.Rule, ...]) -> eg.EGraph:
    graph = eg.EGraph()
    graph.run(eg.seq(rules.declarations(), rules.analysis(), *(row.ruleset for row in rows)))
    return graph


@dataclass
class Work:
    """What a rule did: how often it matched, and the time it took."""

    matches: int = 0
    seconds: float = 0.0


def _run(
    graph: eg.EGraph, tables: dict[str, eg.Ruleset], budget: Budget, watch: Watch | None
) -> tuple[int, str, dict[str, Work]]:
    """The number of iterations, why they ended, and what each rule did."""
    work = {name: Work() for name in tables}
    started, held = time.perf_counter(), _peak()
    facts = rules.analysis().saturate()
    steps = [("", facts), *tables.items()] if watch else [("", eg.seq(facts, *tables.values()))]
    for iteration in range(budget.iterations):
        changed = False
        for name, step in steps:
            before = time.perf_counter()
            done = graph.run(step)
            passed = time.perf_counter() - before
            spent = done.search_and_apply_time_per_rule  # in whole units of one that varies
            total = sum(spent.values(), timedelta())
            for rule, matches in done.num_matches_per_rule.items():
                row, _, number = (getattr(rule, "name", None) or "").partition(" ")
                if number:
                    work[row].matches += matches
                    work[row].seconds += passed * (spent[rule] / total) if total else 0.0
            changed |= done.updated
            if done.updated and watch and name:
                watch(name, iteration)
            if time.perf_counter() - started > budget.seconds:
                return iteration + 1, f"time budget of {budget.seconds:g} s", work
        if not changed:
            return iteration + 1, "saturated", work
        if sum(n for _, n in graph.all_function_sizes()) > budget.nodes:
            return iteration + 1, f"node budget of {budget.nodes}", work
        if _peak() - held > budget.megabytes:
            return iteration + 1, f"memory budget of {budget.megabytes:g} MB", work
    return budget.iterations, f"iteration budget of {budget.iterations}", work


def _peak() -> float:
    """The most megabytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _parts(
    order: list[Term], axis: Axis, outer: Axis, inner: Axis
) -> list[tuple[Term, Axis, Term]]:
    """The leaves that depend on an axis, and what they are where it is split."""
    place = {axis: of_axis(outer) * inner.size + of_axis(inner)}
    return [(t, axis, terms.at(t, place)) for t in order if not t.args and axis in t.axes]


_JOINED = (
    ("powers", terms.joined_power),
    ("pick", terms.picked),
    ("scatter", terms.scattered),
)

# --- encoding -----------------------------------------------------------------------------------


def _name(axis: Axis) -> str:
    return f"{axis.name}:{axis.size}"


def _axis(axis: Axis) -> str:
    return f'(axis "{_name(axis)}")'


def _known(
    order: Sequence[Term],
    number: dict[Term, int],
    equal: Sequence[tuple[Term, Term]],
    parts: Sequence[tuple[Term, Axis, Term]],
    early: Collection[str],
) -> list[str]:
    """All that is known at the start, in egglog's words (as text, 20 times as fast)."""
    known = [fact for t in order for fact in _facts(t, number)]
    known += _limits()
    axes = {t.attr for t in order if t.op in terms.FOLDS}
    axes.update(a for _, axis, part in parts for a in (axis, *part.axes))
    known += [f"(set (size {_axis(a)}) {float(a.size)})" for a in sorted(axes)]
    known += [f"(union (named {number[x]}) (named {number[y]}))" for x, y in equal]
    known += [
        f"(union (cut (named {number[whole]}) {_axis(axis)}) (named {number[part]}))"
        for whole, axis, part in parts
    ]
    loaded = [t for t in order if t.op == "const" or (t.op == "load" and t.attr[0] in early)]
    return known + [f"(early (named {number[t]}))" for t in loaded]


def _limits() -> list[str]:
    found = []
    for name in ("float16", "bfloat16", "float32", "float64"):
        of = ml_dtypes.finfo(DTYPES[name].numpy)
        limits = {"rounding": of.eps * 0.501, "smallest": of.smallest_normal, "largest": of.max}
        found += [f'(set (limit "{k}" "{name}") {float(v)!r})' for k, v in limits.items()]
    return found


def _facts(t: Term, number: dict[Term, int]) -> list[str]:
    """How a term enters the e-graph: its node, and what is known of it."""
    named = f"(named {number[t]})"
    facts = [f"(union {named} {_encode(t, number)})"]
    if not t.args:  # what other terms depend on follows by the analysis
        axes = " ".join(map(_axis, sorted(t.axes)))
        facts.append(f"(set (free {named}) ({'set-of' if axes else 'set-empty'} {axes}))")
    if t.dtype.kind in ("int", "uint"):
        facts.append(f"(integer {named})")
    return facts


def _encode(t: Term, number: dict[Term, int]) -> str:
    children = " ".join(f"(named {number[c]})" for c in t.children)
    if t.op in ("load", "index", "nonneg", "table"):
        return f'(at "{number[t]}" (vec-of {children}))' if children else f'(leaf "{number[t]}")'
    if t.op == "const":
        negative_zero = t.value == 0 and t.attr.startswith("-")  # egglog's 0.0 is -0.0
        if t.dtype.is_float and abs(t.value) < float("inf") and not negative_zero:
            return f'(real "{t.dtype.name}" {t.value!r})'
        return f'(const "{number[t]}")'
    args = " ".join(f"(named {number[a]})" for a in t.args)
    if t.op in terms.FOLDS:
        name = {"sum": "sum_over", "max": "max_over"}.get(t.op, t.op)
        return f"({name} {_axis(t.attr)} {args})"
    if t.op in ("add", "mul", "select"):
        return f"({ {'add': 'sum_of', 'mul': 'product_of'}.get(t.op, t.op) } {args})"
    name = f"{t.op}:{t.dtype.name}" if t.op in ("cast", "bitcast") else t.op
    return f'(apply{len(t.args)} "{name}" {args})'


# --- reading ------------------------------------------------------------------------------------

_OPS = {"sum_of": "add", "product_of": "mul", "sum_over": "sum", "max_over": "max"}
_OPS |= {"roll_one": "roll", "part_one": "part"}


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
    while any(_drop_unread(found, classes) for found in classes.values()):
        classes = {where: found for where, found in classes.items() if found}
    for where, found in classes.items():
        found.sort(key=lambda n: (n.op, n.template.digest if n.template else "", n.children))
        classes[where] = list(dict.fromkeys(found))

    def below(where: str) -> list[str]:
        return [child for node in classes[where] for child in node.children]

    return {where: classes[where] for where in postorder(classes, children=below)}, named


def _drop_unread(found: list[ENode], classes: dict[str, list[ENode]]) -> bool:
    """Drop nodes of operands that have no way to be computed; whether there were any."""
    kept = [n for n in found if all(c in classes for c in n.children)]
    dropped = len(kept) < len(found)
    found[:] = kept
    return dropped


def _read_node(function: str, node: dict, nodes: dict, order: list[Term]) -> ENode | None:
    children = node["children"]
    below = tuple(nodes[c]["eclass"] for c in children)

    def text(i: int) -> str:
        return json.loads(nodes[children[i]]["op"])

    if function in ("leaf", "const", "at"):
        template = order[int(text(0))]
        data = nodes[children[1]]["children"] if function == "at" else []
        return ENode(function, tuple(nodes[c]["eclass"] for c in data), template)
    if function == "real":
        return ENode("const", (), terms.constant(float(nodes[children[1]]["op"]), DTYPES[text(0)]))
    op = _OPS.get(function, function)
    if op in (*terms.FOLDS, "contract"):
        name, _, size = json.loads(nodes[nodes[children[0]]["children"][0]]["op"]).partition(":")
        parts = tuple(sorted(below[1:])) if function == "contract" else below[1:]
        return ENode(op, parts, None, Axis(name, int(size)))
    if function == "apply1":
        op, _, kind = text(0).partition(":")
        return ENode(op, below[1:], None, kind or None)
    if function == "apply2":
        return ENode(text(0), below[1:], None)
    if op in ("add", "mul"):  # the e-graph holds both orders
        return ENode(op, tuple(sorted(below)), None)
    return ENode(op, below, None) if op == "select" else None
