"""The table of rewrite rules: one entry is a law, its guards, its class and how egglog states it.

`exact` rules give the same bits; `reassociating` ones change the order of rounding (and may turn an
overflow into a finite number or the other way round); a precision policy chooses classes. The laws
that need no search (`construction`) are applied when a term is built: views are absorbed by
`comprehend`, constants folded and quotients recognised by `terms`; they stand here so that this
table is the whole list.

    >>> [rule.name for rule in active("strict") if rule.kind == "exact"][:2]
    ['view', 'fold']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import egglog as eg


class Axis(eg.Expr, egg_sort="Axis"):
    """A named axis; its size is a fact, `size(axis)`."""

    def __init__(self, name: eg.StringLike) -> None: ...


class Node(eg.Expr, egg_sort="Node"):
    """A term in the e-graph. Constructors have the names of the ops of `terms.Term`."""

    @eg.method(egg_fn="named")
    @classmethod
    def named(cls, number: eg.i64Like) -> Node: ...  # the class of a term that was put in

    @eg.method(egg_fn="leaf")
    @classmethod
    def leaf(cls, key: eg.StringLike) -> Node: ...

    @eg.method(egg_fn="at")
    @classmethod
    def at(cls, key: eg.StringLike, data: eg.Vec[Node]) -> Node: ...  # an index that reads data

    @eg.method(egg_fn="const")
    @classmethod
    def const(cls, key: eg.StringLike) -> Node: ...

    @eg.method(egg_fn="sum_of")
    def __add__(self, other: Node) -> Node: ...

    @eg.method(egg_fn="product_of")
    def __mul__(self, other: Node) -> Node: ...


@eg.function(egg_fn="apply1")
def apply1(op: eg.StringLike, x: Node) -> Node: ...
@eg.function(egg_fn="apply2")
def apply2(op: eg.StringLike, x: Node, y: Node) -> Node: ...
@eg.function(egg_fn="select")
def select(condition: Node, x: Node, y: Node) -> Node: ...
@eg.function(egg_fn="sum_over")
def sum_over(axis: Axis, x: Node) -> Node: ...
@eg.function(egg_fn="max_over")
def max_over(axis: Axis, x: Node) -> Node: ...
@eg.function(egg_fn="contract")
def contract(axis: Axis, x: Node, y: Node) -> Node: ...


@eg.function(egg_fn="free", merge=lambda old, new: old & new)
def free(x: Node) -> eg.Set[Axis]:
    """The axes that a term depends on; equal terms depend on what all of them depend on."""
    ...


integer = eg.relation("integer", Node)  # integers wrap, so their sums may be reordered exactly
positive = eg.relation("positive", Node)  # a finite constant above 0
nonempty = eg.relation("nonempty", Axis)

x, y, z, w = eg.vars_("x y z w", Node)
j = eg.var("j", Axis)
free_x, free_y, free_z = eg.vars_("free_x free_y free_z", eg.Set[Axis])
key = eg.var("key", eg.String)


@dataclass(frozen=True)
class Rule:
    """One law. `rewrites` gives egglog's rules; a construction law has none."""

    name: str
    law: str
    kind: str  # "exact" or "reassociating"
    guards: str = ""
    gain: str = ""  # what it is good for
    rewrites: Callable[[], list[eg.RewriteOrRule]] | None = None


def _both_orders(make: Callable[[Node, Node, eg.Set[Axis]], eg.RewriteOrRule]) -> list:
    """A law about a product x * y, for either operand in the role of the first."""
    return [make(x, y, free_x), make(y, x, free_y)]


def _hoist(outer: Callable[[Axis, Node], Node], guard: Callable | None = None) -> list:
    def make(still: Node, rest: Node, axes: eg.Set[Axis]) -> eg.RewriteOrRule:
        facts = [eg.eq(z).to(outer(j, x * y)), eg.eq(axes).to(free(still)), axes.not_contains(j)]
        facts += [guard(still)] if guard else []
        return eg.rule(*facts).then(eg.union(z).with_(still * outer(j, rest)))

    return _both_orders(make)


TABLE: list[Rule] = [
    Rule("view", "load(view(t, m), p) = load(t, m(p))", "exact", gain="no data is moved"),
    Rule("fold", "op(c1, c2) = c", "exact", "operands are constants"),
    Rule("unit", "x * 1 = x;  x + 0 = x", "exact", "the sum only for integers: -0.0 + 0 is 0"),
    Rule("widen", "cast(cast(x, wide), narrow) = x", "exact", "every narrow value is a wide one"),
    Rule(
        "quotient",
        "cast(cast64(a) * recip(cast64(b))) = a / b",
        "exact",
        "a, b of the result's dtype, which is narrower than float64",
        "one division instead of float64 arithmetic",
    ),
    Rule("same_branches", "select(c, x, x) = x", "exact"),
    Rule(
        "fusion",
        "load(compute(t), p) = t(p)",
        "exact",
        "a reduction inside t is finished: t is a whole term",
        "no buffer between producer and consumer; read backwards: compute once, load often",
        lambda: [],  # stated as the e-graph's first equalities, one for each buffer and point
    ),
    Rule(
        "hoist_sum",
        "sum(j, x * y) = x * sum(j, y)",
        "reassociating",
        "x does not depend on j",
        "one product instead of one for each j",
        lambda: _hoist(sum_over),
    ),
    Rule(
        "hoist_max",
        "max(j, x * y) = x * max(j, y)",
        "exact",
        "x is a finite constant above 0 (rounding is monotone)",
        "one product instead of one for each j",
        lambda: _hoist(max_over, positive),
    ),
    Rule(
        "max_of_still",
        "max(j, x) = x",
        "exact",
        "x does not depend on j, and j is not empty",
        "no loop",
        lambda: [
            eg.rule(
                eg.eq(z).to(max_over(j, x)),
                eg.eq(free_x).to(free(x)),
                free_x.not_contains(j),
                nonempty(j),
            ).then(eg.union(z).with_(x))
        ],
    ),
    Rule(
        "contraction",
        "sum(j, x * y) = contract(j, x, y)",
        "reassociating",
        "x and y both depend on j",
        "fused multiply-add, matrix instructions",
        lambda: [
            eg.rule(
                eg.eq(z).to(sum_over(j, x * y)),
                eg.eq(free_x).to(free(x)),
                free_x.contains(j),
                eg.eq(free_y).to(free(y)),
                free_y.contains(j),
            ).then(eg.union(z).with_(contract(j, x, y)))
        ],
    ),
    Rule(
        "factor",
        "x * y + x * z = x * (y + z)",
        "exact",
        "integers, which wrap",
        "one product instead of two",
        lambda: [
            eg.rule(eg.eq(w).to((x * y) + (x * z)), integer(w)).then(eg.union(w).with_(x * (y + z)))
        ],
    ),
]


def active(precision: str) -> list[Rule]:
    """The rules that a precision policy allows: "strict" only the exact ones, "fast" all."""
    return [rule for rule in TABLE if precision == "fast" or rule.kind == "exact"]


def analysis() -> eg.Ruleset:
    """How `free` follows from a term's operands."""
    of_x, of_y, of_z = (eg.eq(f).to(free(t)) for f, t in ((free_x, x), (free_y, y), (free_z, z)))

    def follows(op: Node, facts: list, axes: eg.Set[Axis]) -> eg.RewriteOrRule:
        return eg.rule(eg.eq(w).to(op), *facts).then(eg.set_(free(w)).to(axes))

    both = free_x | free_y
    return eg.ruleset(
        follows(apply1(key, x), [of_x], free_x),
        *(follows(op, [of_x, of_y], both) for op in (x + y, x * y, apply2(key, x, y))),
        follows(select(x, y, z), [of_x, of_y, of_z], both | free_z),
        *(follows(op, [of_x], free_x.remove(j)) for op in (sum_over(j, x), max_over(j, x))),
        follows(contract(j, x, y), [of_x, of_y], both.remove(j)),
    )


def rulesets(precision: str) -> dict[str, eg.Ruleset]:
    """One egglog ruleset for each rule that searches, so that its work can be told apart."""
    return {
        rule.name: eg.ruleset(*rule.rewrites())
        for rule in active(precision)
        if rule.rewrites is not None and rule.name != "fusion"
    }
