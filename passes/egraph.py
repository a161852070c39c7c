"""Equality saturation over terms: put terms in, run the rules, read the classes out.

graph = saturate(roots=[t], equal=[(load_of_t, t)], precision="fast", budget=Budget())
graph.classes[graph.class_of[t]]     every way of computing t that was found
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, lru_cache, partial
from operator import or_
from typing import Any, TypeVar

import ml_dtypes
from egglog.bindings import EGraph

from ..dialect import DTYPES, DType
from . import rules, terms
from .index import Axis, of_axis
from .terms import Term, postorder

Split = tuple[Axis, Axis, Axis]
BINDERS = (*terms.FOLDS, "contract")  # the ops of nodes that bind an axis
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
        return self.template.attr[0] if self.template is not None and self.op == "load" else None

    def build(self, children: Sequence[Term]) -> Term:
        """The term, given terms of the children's classes."""
        if self.template is not None:
            given = dict(zip(self.template.children, children, strict=True))
            return terms.rebuild(self.template, given)
        if self.op == "contract":
            return terms.reduction("sum", self.attr, terms.apply("mul", *children))
        kind = DTYPES[self.attr] if isinstance(self.attr, str) else children[0].dtype
        return terms.make(self.op, tuple(children), self.attr, kind)


@dataclass
class Saturated:
    """The classes of a saturated e-graph, the e-graph itself, and what the rules did.

    Only after a search that was watched is the e-graph still full: else another search has it.
    """

    classes: dict[str, list[ENode]]
    class_of: dict[Term, str]
    axes: dict[str, frozenset[Axis]]  # that each class depends on
    graph: EGraph
    report: dict = field(default_factory=dict)

    def follow(
        self, start: T, step: Callable[[ENode, list[T]], T], join: Callable[[T, T], T]
    ) -> dict[str, T]:
        """A value for every class: `step` gives a node's from its children's, `join` combines those
        of a class's nodes, until nothing changes. Nodes on a cycle begin with `start`."""
        found, before = dict.fromkeys(self.classes, start), dict[str, T]()
        while found != before:
            before = dict(found)
            for where, nodes in self.classes.items():
                for node in nodes:
                    below = [found.get(c, start) for c in node.children]
                    found[where] = join(found[where], step(node, below))
        return found

    def below(self, where: str) -> list[str]:
        """The classes of the operands of a class's nodes."""
        return list(dict.fromkeys(c for node in self.classes[where] for c in node.children))

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
    for name, make in JOINED:
        if name in allowed:
            made = [(t, make(t)) for t in order]
            equal = [*equal, *((t, new) for t, new in made if new is not None)]
    order = postorder([*order, *(t for pair in equal for t in pair)])
    parts = [found for split in splits for found in cut_parts(order, *split)]
    order = postorder([*order, *(part for *_, part in parts)])
    number = {t: i for i, t in enumerate(order)}
    known = _known(order, number, equal, parts, early)
    related = dict.fromkeys(("swaps", pair) for t in order for pair in terms.swaps(t))
    for relation, axes in [*(("splits", split) for split in splits), *related]:
        known.append(f"({relation} {' '.join(map(_axis, axes))})")
    rows = rules.searched(precision, without)
    with _graph(tuple(rows.values()), watch is not None) as graph:
        # egglog compiles each command, and mends its tables after it: so not a fact at a time, but
        # not all at once, for to compile many takes longer than in proportion
        batches = [" ".join(known[n : n + 10]) for n in range(0, len(known), 10)]
        tell(graph, *(f"(rule () ({facts}) :ruleset known)" for facts in batches), "(run known 1)")

        told = watch and partial(watch, read=lambda: _read(graph, order))
        iterations, stopped, work = _run(graph, list(rows), budget, told)
        tell(graph, f"(run-schedule {ANALYSIS})")
        found = _read(graph, order)
    found.report = {
        "terms": len(order),
        "nodes": sum(map(len, found.classes.values())),
        "classes": len(found.classes),
        "iterations": iterations,
        "stopped": stopped,
        "matches": {name: matches for name, (matches, _) in work.items() if matches},
        "rule seconds": {name: seconds for name, (matches, seconds) in work.items() if matches},
        "seconds": time.perf_counter() - started,
    }
    return found


_KEPT = threading.Lock()


@contextmanager
def _graph(rows: tuple[rules.Rule, ...], alone: bool) -> Iterator[EGraph]:
    """An e-graph that knows the rules: a new one if it is to stay alone, or one kept for all, that
    is emptied at the end. To tell egglog the rules takes longer than most searches."""
    if alone:
        yield _declared.__wrapped__(rows)
        return
    with _KEPT:
        graph = _declared(rows)
        tell(graph, "(push)")
        try:
            yield graph
        finally:
            tell(graph, "(pop)")


@lru_cache(4)
def _declared(rows: tuple[rules.Rule, ...]) -> EGraph:
    graph = EGraph()
    tell(graph, rules.declarations(), *(row.ruleset for row in rows))
    return graph


def tell(graph: EGraph, *lines: str) -> list[Any]:
    """What egglog answers to commands in its own words."""
    # each command keeps the text that it was parsed from
    return graph.run_program(*(c for line in lines for c in graph.parse_program(line)))


ANALYSIS = "(saturate (run analysis))"  # what follows of all that is in the e-graph


def _run(
    graph: EGraph, names: Sequence[str], budget: Budget, watch: Watch | None
) -> tuple[int, str, dict[str, list]]:
    """The number of iterations, why they ended, how often each rule matched, and its seconds."""
    work = {name: [0, 0.0] for name in names}
    started, held = time.perf_counter(), _peak()
    runs = {"": ANALYSIS, **{name: f"(run {name}_laws)" for name in names}}
    steps = runs if watch else {"": f"(seq {' '.join(runs.values())})"}
    for iteration in range(budget.iterations):
        changed = False
        for name, step in steps.items():
            before = time.perf_counter()
            done = tell(graph, f"(run-schedule {step})")[0].report
            passed = time.perf_counter() - before
            spent = done.search_and_apply_time_per_rule  # in whole units of one that varies
            total = sum(spent.values(), timedelta())
            for rule, matches in done.num_matches_per_rule.items():
                row, _, _ = rule.partition(" ")
                if row in work:
                    work[row][0] += matches
                    work[row][1] += passed * (spent[rule] / total) if total else 0.0
            changed |= done.updated
            if done.updated and watch and name:
                watch(name, iteration)
            if time.perf_counter() - started > budget.seconds:
                return iteration + 1, f"time budget of {budget.seconds:g} s", work
        if not changed:
            return iteration + 1, "saturated", work
        if sum(n for _, n in tell(graph, "(print-size)")[0].sizes) > budget.nodes:
            return iteration + 1, f"node budget of {budget.nodes}", work
        if _peak() - held > budget.megabytes:
            return iteration + 1, f"memory budget of {budget.megabytes:g} MB", work
    return budget.iterations, f"iteration budget of {budget.iterations}", work


def _peak() -> float:
    """The most megabytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def cut_parts(
    order: list[Term], axis: Axis, outer: Axis, inner: Axis
) -> list[tuple[Term, Axis, Term]]:
    """The leaves that depend on an axis, and what they are where it is split."""
    place = {axis: of_axis(outer) * inner.size + of_axis(inner)}
    return [(t, axis, terms.at(t, place)) for t in order if not t.args and axis in t.axes]


JOINED = (
    ("powers", terms.joined_power),
    ("pick", terms.picked),
    ("scatter", terms.scattered),
)

# --- encoding -----------------------------------------------------------------------------------


def _axis(axis: Axis) -> str:
    return f'(axis "{axis.name}:{axis.size}")'


def _known(
    order: Sequence[Term],
    number: dict[Term, int],
    equal: Sequence[tuple[Term, Term]],
    parts: Sequence[tuple[Term, Axis, Term]],
    early: Collection[str],
) -> list[str]:
    """All that is known at the start, in egglog's words."""
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
    facts = [f"(union {named} {encode(t, number)})"]
    if not t.args:  # what other terms depend on follows by the analysis
        axes = " ".join(map(_axis, sorted(t.axes)))
        facts.append(f"(set (free {named}) ({'set-of' if axes else 'set-empty'} {axes}))")
    if t.dtype.kind in ("int", "uint"):
        facts.append(f"(integer {named})")
    return facts


def encode(t: Term, number: dict[Term, int]) -> str:
    """A term's node in egglog's words, over terms that have numbers."""
    children = " ".join(f"(named {number[c]})" for c in t.children)
    finite = t.op == "const" and t.dtype.is_float and abs(t.value) < float("inf")
    if finite and (t.value or not t.attr.startswith("-")):  # egglog's 0.0 is -0.0
        return f'(real "{t.dtype.name}" {t.value!r})'
    if not t.args:
        return f'(leaf "{number[t]}" ({"vec-of" if children else "vec-empty"} {children}))'
    args = " ".join(f"(named {number[a]})" for a in t.args)
    if t.op in terms.FOLDS:
        args = f"{_axis(t.attr)} {args}"
    if t.op in (*terms.FOLDS, "add", "mul", "select"):
        return f"({rules.EGGLOG.get(t.op, t.op)} {args})"
    name = f"{t.op}:{t.dtype.name}" if t.op in ("cast", "bitcast") else t.op
    return f'(apply{len(t.args)} "{name}" {args})'


# --- reading ------------------------------------------------------------------------------------

_OPS = {name: op for op, name in rules.EGGLOG.items()}


def _read(graph: EGraph, order: list[Term]) -> Saturated:
    """The classes, without the nodes of operands that have no way to be computed."""
    tables, number, text = graph.freeze().functions, graph.value_to_i64, graph.value_to_string

    def where(value: Any) -> str:
        return f"Node-{number(value)}"  # a class is a number, kept as egglog keeps small integers

    def read(function: str, row: Any) -> ENode:
        op, given, attr = _OPS.get(function, function), row.inputs, None
        if op == "leaf":
            template = order[int(text(given[0]))]
            return ENode(template.op, tuple(map(where, graph.value_to_vec(given[1]))), template)
        if op == "real":
            value = terms.constant(graph.value_to_f64(given[1]), DTYPES[text(given[0])])
            return ENode("const", (), value)
        if op in ("apply1", "apply2"):
            op, _, attr = text(given[0]).partition(":")
        elif op in BINDERS:
            attr = axes[given[0]]
        sorts = tables[function].input_sorts
        below = [where(x) for x, sort in zip(given, sorts, strict=True) if sort == "Node"]
        if op in ("add", "mul", "contract"):  # the e-graph holds both orders
            below.sort()
        return ENode(op, tuple(below), None, attr or None)

    parts = [(row.output, *text(row.inputs[0]).split(":")) for row in tables["axis"].rows]
    axes = {value: Axis(name, int(size)) for value, name, size in parts}
    named = {number(row.inputs[0]): where(row.output) for row in tables["named"].rows}
    class_of = {t: named[n] for n, t in enumerate(order)}
    free = {
        where(row.inputs[0]): frozenset(axes[axis] for axis in graph.value_to_set(row.output))
        for row in tables["free"].rows
    }
    classes: dict[str, list[ENode]] = {}
    for function, table in tables.items():
        computes = table.output_sort == "Node" and function not in ("named", "cut")
        for row in table.rows if computes else ():
            classes.setdefault(where(row.output), []).append(read(function, row))
    found = Saturated(classes, class_of, free, graph)
    computed = found.follow(False, lambda _, below: all(below), or_)
    for place, nodes in classes.items():
        nodes[:] = [n for n in nodes if all(computed.get(c) for c in n.children)]
        nodes.sort(key=lambda n: (n.op, n.template.digest if n.template else "", n.children))
        classes[place] = list(dict.fromkeys(nodes))
    every = postorder((place for place in classes if computed[place]), children=found.below)
    return replace(found, classes={place: classes[place] for place in every})
