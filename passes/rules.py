"""The table of rewrite rules. A row is a law, the conditions under which it holds, and its class;
what stands there is what runs: laws and conditions are read by `_law` and `CONDITIONS`.

`exact` rules give the same bits; `reassociating` ones change the order of rounding (and may turn an
overflow into a finite number or the other way round); `approximate` ones hold for finite numbers
only, or to a few last places. A precision policy chooses classes.

In a law x, y, z, u, v are terms, j, k, o, i axes, c and d finite constants, and x[j] is x where the
axis j is given by the two that it is split into. Laws that need no search are applied when a term
is built (views are absorbed by `comprehend`, constants folded by `terms`) or joined at the start;
they stand here so that this table is the whole list.

    >>> [rule.name for rule in active("strict") if rule.kind == "exact"][:2]
    ['view', 'fold']
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from typing import Any

import egglog as eg


class Axis(eg.Expr, egg_sort="Axis"):
    """A named axis; its size is a fact, `size(axis)`."""

    @eg.method(egg_fn="axis")
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
    def const(cls, key: eg.StringLike) -> Node: ...  # an integer, infinite or NaN

    @eg.method(egg_fn="real")
    @classmethod
    def real(cls, dtype: eg.StringLike, value: eg.f64Like) -> Node: ...

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
@eg.function(egg_fn="roll")
def roll(axis: Axis, score: Node, weight: Node) -> Node: ...
@eg.function(egg_fn="roll_one")
def roll_one(axis: Axis, score: Node) -> Node: ...  # with a weight of 1
@eg.function(egg_fn="part")
def part(axis: Axis, score: Node, weight: Node) -> Node: ...
@eg.function(egg_fn="part_one")
def part_one(axis: Axis, score: Node) -> Node: ...


@eg.function(egg_fn="spread")
def spread(axis: Axis, x: Node) -> Node: ...
@eg.function(egg_fn="tilt")
def tilt(axis: Axis, x: Node, weight: Node) -> Node: ...
@eg.function(egg_fn="scatter")
def scatter(axis: Axis, place: Node, x: Node, position: Node) -> Node: ...
@eg.function(egg_fn="cut")
def cut(x: Node, axis: Axis) -> Node: ...  # x where its axis is given by the two it splits into


@eg.function(egg_fn="free", merge=lambda old, new: old & new)
def free(x: Node) -> eg.Set[Axis]:
    """The axes that a term depends on; equal terms depend on what all of them depend on."""
    ...


@eg.function(egg_fn="size", merge=lambda old, new: new)
def size(axis: Axis) -> eg.f64:
    """The number of places along an axis."""
    ...


@eg.function(egg_fn="limit", merge=lambda old, new: new)
def limit(name: eg.StringLike, dtype: eg.StringLike) -> eg.f64:
    """The `rounding` (largest relative error), `smallest` normal or `largest` number of a dtype."""
    ...


# integers wrap, so their sums may be reordered exactly
integer = eg.relation("integer", Node, egg_fn="integer")
early = eg.relation("early", Node, egg_fn="early")  # computed from weights alone, before any call
factor_in = eg.relation("factor_in", Axis, Node)  # a factor, or part of one, of what is summed
splits = eg.relation("splits", Axis, Axis, Axis)  # an axis, and its outer and inner part
swaps = eg.relation("swaps", Axis, Axis)  # an outer and an inner one, the other way round is less
exponent = eg.relation("exponent", Node)  # what exp2 is taken of

x, y, z, u, v, w = eg.vars_("x y z u v w", Node)
j, k, o, i = eg.vars_("j k o i", Axis)
a, b, length, least, most = eg.vars_("a b length least most", eg.f64)
key = eg.var("key", eg.String)

Facts = tuple[eg.Fact | eg.Unit, ...]
NAMES = {"x": x, "y": y, "z": z, "u": u, "v": v, "j": j, "k": k, "o": o, "i": i}
NAMES |= {"c": Node.real(key, a), "d": Node.real(key, b)}
FUNCTIONS = {"sum": sum_over, "max": max_over, "contract": contract, "select": select}
FUNCTIONS |= {"spread": spread, "tilt": tilt}


@dataclass(frozen=True)
class Rewrite:
    """Where `shape` is found and every guard holds, `found` (of the shape) equals `made`."""

    shape: Facts
    found: Node
    made: Node
    guards: dict[str, Facts]  # by what they ask for

    def rule(self, *without: str, name: str | None = None) -> eg.RewriteOrRule:
        """The egglog rule; `without` names guards to leave out."""
        asked = [f for text, facts in self.guards.items() if text not in without for f in facts]
        return eg.rule(*self.shape, *asked, name=name).then(eg.union(self.found).with_(self.made))


@dataclass(frozen=True)
class Rule:
    """One row: laws under common conditions, both separated by semicolons."""

    name: str
    law: str
    kind: str  # "exact", "reassociating" or "approximate"
    when: str = ""
    gain: str = ""  # what it is good for
    searched: bool = True  # by the e-graph; else applied when a term is built, or at the start

    @cached_property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """What egglog searches for."""
        laws = self.law.split("; ") if self.searched else []
        return tuple(_rewrite(law, self.when) for law in laws)

    @cached_property
    def ruleset(self) -> eg.Ruleset:
        """What egglog runs; its rules are named after the row."""
        named = enumerate(self.rewrites)
        return eg.ruleset(*(rewrite.rule(name=f"{self.name} {n}") for n, rewrite in named))


def _rewrite(law: str, when: str) -> Rewrite:
    left, _, right = law.partition(" = ")
    shape: list[eg.Fact | eg.Unit] = [eg.eq(w).to(_term(left))]
    guards: dict[str, Facts] = {}
    for text in filter(None, when.split("; ")):
        found = [(c, re.fullmatch(pattern, text)) for pattern, c in CONDITIONS.items()]
        (is_guard, make), match = next((c, m) for c, m in found if m)
        facts = make(*match.groups())
        if is_guard:
            guards[text] = facts
        else:
            shape += facts
    return Rewrite(tuple(shape), w, _term(right), guards)


def _free(name: str) -> eg.Set[Axis]:
    return eg.var(f"free_{name}", eg.Set[Axis])


def _depends(term: str, axis: str, does: bool) -> Facts:
    axes = _free(term)
    holds = axes.contains(NAMES[axis]) if does else axes.not_contains(NAMES[axis])
    return eg.eq(axes).to(free(NAMES[term])), holds


def _mean(axis: str) -> Facts:
    off = abs(a * length + 1.0)
    known = eg.eq(length).to(size(NAMES[axis])), eg.eq(least).to(limit("rounding", key))
    return *known, off <= least


def _normal() -> Facts:
    known = eg.eq(least).to(limit("smallest", key)), eg.eq(most).to(limit("largest", key))
    return *known, abs(a * b) >= least, abs(a * b) <= most


# What a condition says, whether it is a guard (else it is part of the shape), and egglog's facts.
CONDITIONS: dict[str, tuple[bool, Callable[..., Facts]]] = {
    r"(\w) does not depend on (\w)": (True, lambda t, axis: _depends(t, axis, False)),
    r"(\w) depends on (\w)": (True, lambda t, axis: _depends(t, axis, True)),
    r"(\w) is a weight": (True, lambda t: (early(NAMES[t]),)),
    r"they are integers": (True, lambda: (integer(w),)),
    r"c > 0": (True, lambda: (a > 0.0,)),
    r"(\w) is not empty": (True, lambda t: (eg.eq(length).to(size(NAMES[t])), length > 0.0)),
    r"(\w) is not (\w)": (True, lambda t, other: (eg.ne(NAMES[t]).to(NAMES[other]),)),
    r"c is -1 / the places of (\w)": (True, _mean),
    r"c \* d is a normal number": (True, _normal),
    r"in a sum over (\w)": (False, lambda t: (factor_in(NAMES[t], w),)),
    r"in an exponent": (False, lambda: (exponent(w),)),
    r"(\w) before (\w) is less work": (False, lambda k, j: (swaps(NAMES[j], NAMES[k]),)),
    r"(\w) splits into (\w) and (\w)": (False, lambda *t: (splits(*(NAMES[n] for n in t)),)),
    r"(\w) is (\w [+*] \w)": (False, lambda t, other: (eg.eq(NAMES[t]).to(_term(other)),)),
}


def _term(law: str) -> Node:
    """A side of a law, as egglog's expression."""
    return _build(ast.parse(law.strip(), mode="eval").body)


def _build(tree: ast.AST) -> Any:  # a Node or an Axis
    if isinstance(tree, ast.Name):
        return NAMES[tree.id]
    if isinstance(tree, ast.UnaryOp):  # -1 is the only number
        return Node.real(key, -1.0)
    if isinstance(tree, ast.Subscript):
        return cut(_build(tree.value), _build(tree.slice))
    if isinstance(tree, ast.BinOp):
        if ast.unparse(tree) == "c * d":
            return Node.real(key, a * b)
        left, right = _build(tree.left), _build(tree.right)
        if isinstance(tree.op, ast.Sub):
            return left + right * Node.real(key, -1.0)
        if isinstance(tree.op, ast.Div):
            return apply2("div", left, right)
        return left * right if isinstance(tree.op, ast.Mult) else left + right
    assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)
    name, args = tree.func.id, [_build(t) for t in tree.args]
    if name in ("roll", "part"):
        whole, one = (roll, roll_one) if name == "roll" else (part, part_one)
        return whole(*args) if len(args) == 3 else one(*args)
    if name in FUNCTIONS:
        return FUNCTIONS[name](*args)
    operation = key if name == "op" else name
    return apply1(operation, *args) if len(args) == 1 else apply2(operation, *args)


EXACT, REASSOCIATING, APPROXIMATE = "exact", "reassociating", "approximate"

TABLE: list[Rule] = [
    Rule("view", "load(view(t, m), p) = load(t, m(p))", EXACT, "", "no data is moved", False),
    Rule("fold", "op(c, d) = e", EXACT, "operands are constants", "", False),
    Rule("unit", "x * 1 = x; x + 0 = x", EXACT, "x + 0 for integers: -0.0 + 0 is 0", "", False),
    Rule("widen", "narrow(wide(x)) = x", EXACT, "every narrow value is a wide one", "", False),
    Rule("branches", "select(c, x, x) = x; select(c, true, false) = c", EXACT, "", "", False),
    Rule(
        "quotient", "cast(cast64(x) * recip(cast64(y))) = x / y", EXACT,
        "x and y are of the result's dtype, which is narrower than float64",
        "one division instead of float64 arithmetic", False,
    ),
    Rule(
        "position", "i < j = (0 <= j - i - 1); (0 <= i) < true = (0 <= -i - 1)", EXACT,
        "i and j are positions that their dtype can hold",
        "blocks of an axis where a condition fails are passed over", False,
    ),
    Rule(
        "fusion", "load(compute(t), p) = t(p)", EXACT,
        "a reduction inside t is finished: t is a whole term",
        "no buffer between producer and consumer; read backwards: compute once, load often", False,
    ),
    Rule(
        "pick", "sum(j, (i == j) * y) = y at j = i, or 0 where no j is i", APPROXIMATE,
        "i does not depend on j",
        "a row is read by its index; the other rows count as finite, as 0 * inf is NaN", False,
    ),
    Rule(
        "scatter", "sum(j, (i == d) * y) = y added at i, for each j", APPROXIMATE,
        "i depends on j, and d is a position that does not",
        "each y is touched once; y counts as finite, as 0 * inf is NaN", False,
    ),
    Rule(
        "powers", "exp2(x) * exp2(y) = exp2(x + y)", REASSOCIATING,
        "x + y is simpler: parts of them cancel", "an exponential in two parts is one", False,
    ),
    Rule(
        "commute", "x * y = y * x; x + y = y + x", EXACT, "",
        "the other laws are stated in one order",
    ),
    Rule(
        "float", "(x * y) * z = x * (y * z)", REASSOCIATING,
        "in a sum over j; x does not depend on j", "x can leave the sum",
    ),
    Rule(
        "difference", "(x * y) * z = x * (y * z)", REASSOCIATING,
        "in a sum over j; x is u + v; v does not depend on j", "a weighted sum of differences",
    ),
    Rule(
        "weights", "(x * y) * z = x * (y * z)", REASSOCIATING,
        "in a sum over j; y is a weight; z is a weight", "products of weights are computed once",
    ),
    Rule(
        "hoist_sum", "sum(j, x * y) = x * sum(j, y)", REASSOCIATING, "x does not depend on j",
        "one product instead of one for each j",
    ),
    Rule(
        "hoist_max", "max(j, x * c) = max(j, x) * c; max(j, x) * c = max(j, x * c)", EXACT,
        "c > 0", "one product instead of one for each j; a scale becomes part of a score",
    ),
    Rule(
        "max_of_still", "max(j, x) = x", EXACT, "x does not depend on j; j is not empty", "no loop"
    ),
    Rule(
        "contraction", "sum(j, x * y) = contract(j, x, y)", REASSOCIATING,
        "x depends on j; y depends on j", "fused multiply-add, matrix instructions",
    ),
    Rule(
        "factor", "x * y + x * z = x * (y + z)", EXACT, "they are integers",
        "one product instead of two",
    ),
    Rule(
        "divide", "x / y = x * recip(y)", REASSOCIATING, "in a sum over j",
        "the divisor can leave the sum",
    ),
    Rule("negate", "(x * -1) * c = (x * c) * -1", EXACT, "", "a difference stays one"),
    Rule(
        "scales", "(x * c) * d = x * (c * d)", REASSOCIATING, "c * d is a normal number",
        "one product instead of two",
    ),
    Rule(
        "scale_exponent", "(x + y) * c = x * c + y * c", REASSOCIATING, "in an exponent",
        "exp2((x - y) * c) is a difference of scaled numbers",
    ),
    Rule(
        "rolling",
        "sum(j, exp2(x - max(j, x)) * y) = roll(j, x, y); "
        "sum(j, exp2(x - max(j, x))) = roll(j, x)", REASSOCIATING, "",
        "one pass: where the maximum so far moves from m to m', what was added up is multiplied by "
        "exp2(m - m')",
    ),
    Rule(
        "centred",
        "sum(j, (x + sum(j, x) * c) * (x + sum(j, x) * c)) = spread(j, x); "
        "sum(j, (x + sum(j, x) * c) * y) = tilt(j, x, y)", REASSOCIATING,
        "c is -1 / the places of j",
        "one pass: where the mean so far moves, what was added up is corrected",
    ),
    Rule(
        "split", "sum(j, x) = sum(o, sum(i, x[j])); max(j, x) = max(o, max(i, x[j]))",
        REASSOCIATING, "j splits into o and i; x does not depend on o; x does not depend on i",
        "parts run at the same time, or have factors that leave them",
    ),
    Rule(
        "split_roll", "roll(j, x, y) = roll(o, max(i, x[j]), part(i, x[j], y[j]))", REASSOCIATING,
        "j splits into o and i; x does not depend on o; x does not depend on i; "
        "y does not depend on o; y does not depend on i",
        "parts run at the same time; one whose scores are all -inf adds 0",
    ),
    Rule(
        "split_roll_one", "roll(j, x) = roll(o, max(i, x[j]), part(i, x[j]))", REASSOCIATING,
        "j splits into o and i; x does not depend on o; x does not depend on i",
        "the same without weights",
    ),
    Rule("cut_still", "x[j] = x", EXACT, "x does not depend on j", "what split needs"),
    Rule(
        "cut",
        "(x + y)[j] = x[j] + y[j]; (x * y)[j] = x[j] * y[j]; op(x)[j] = op(x[j]); "
        "op(x, y)[j] = op(x[j], y[j]); select(x, y, z)[j] = select(x[j], y[j], z[j])", EXACT, "",
        "what split needs; leaves are cut when they are put in",
    ),
    Rule(
        "cut_fold", "sum(k, x)[j] = sum(k, x[j]); max(k, x)[j] = max(k, x[j])", EXACT,
        "j splits into o and i; j is not k; k is not o; k is not i", "what split needs",
    ),
    Rule(
        "distribute", "sum(j, (x + y) * z) = sum(j, x * z) + sum(j, y * z)", REASSOCIATING,
        "x is u * v; u does not depend on j; v depends on j; y depends on j",
        "u can leave its sum",
    ),
    Rule(
        "exchange", "sum(j, x * sum(k, y)) = sum(k, sum(j, x * y))", REASSOCIATING,
        "x does not depend on k; k before j is less work", "(A B) x = A (B x)",
    ),
]  # fmt: skip


def active(precision: str) -> list[Rule]:
    """The rules that a precision policy allows: "strict" only the exact ones, "fast" all."""
    return [rule for rule in TABLE if precision == "fast" or rule.kind == "exact"]


@cache
def analysis() -> eg.Ruleset:
    """How facts about a term follow from its operands, or from where it stands."""

    def follows(operands: str, op: Node, folds: bool = False) -> eg.RewriteOrRule:
        facts = [eg.eq(_free(t)).to(free(NAMES[t])) for t in operands]
        axes = reduce(operator.or_, map(_free, operands))
        axes = axes.remove(j) if folds else axes
        return eg.rule(eg.eq(w).to(op), *facts).then(eg.set_(free(w)).to(axes))

    def implies(fact: eg.Unit, *facts: eg.Fact | eg.Unit) -> eg.RewriteOrRule:
        return eg.rule(*facts).then(fact)

    of_one = sum_over(j, x), max_over(j, x), roll_one(j, x), part_one(j, x), spread(j, x)
    of_two = contract(j, x, y), roll(j, x, y), part(j, x, y), tilt(j, x, y)
    return eg.ruleset(
        follows("x", apply1(key, x)),
        *(follows("xy", op) for op in (x + y, x * y, apply2(key, x, y))),
        follows("xyz", select(x, y, z)),
        *(follows("x", op, folds=True) for op in of_one),
        *(follows("xy", op, folds=True) for op in of_two),
        follows("xyz", scatter(j, x, y, z), folds=True),  # z does not depend on j
        eg.rule(eg.eq(w).to(Node.real(key, a))).then(eg.set_(free(w)).to(eg.Set[Axis].empty())),
        implies(exponent(x), eg.eq(w).to(apply1("exp2", x))),
        implies(factor_in(j, x), eg.eq(w).to(sum_over(j, x))),
        implies(factor_in(j, x), factor_in(j, w), eg.eq(w).to(x * y)),
        implies(factor_in(j, x), factor_in(j, w), eg.eq(w).to(x + y)),
        implies(early(w), eg.eq(w).to(x * y), early(x), early(y)),
    )


@cache
def declarations() -> eg.Ruleset:
    """A rule that names all there is, and matches nothing: egglog knows their names by it."""
    leaves = Node.named(eg.var("n", eg.i64)), Node.leaf(key), Node.at(key, eg.Vec(x, y))
    leaves += Node.const(key), Node.real(key, a), cut(x, j)
    folds = sum_over(j, x), max_over(j, x), roll(j, x, y), part(j, x, y), tilt(j, x, y)
    others = spread(j, x), scatter(j, x, y, z), apply1(key, x), apply2(key, x, y), select(x, y, z)
    known = eg.eq(_free("x")).to(free(x)), eg.eq(a).to(size(j)), eg.eq(b).to(limit(key, key))
    facts = [*known, integer(x), early(x), eg.eq(j).to(Axis(key))]
    facts += [eg.eq(w).to(node) for node in (*leaves, *folds, *others, x + y, x * y)]
    return eg.ruleset(eg.rule(*facts).then(eg.union(w).with_(w)))


def rulesets(precision: str, without: frozenset[str] = frozenset()) -> dict[str, eg.Ruleset]:
    """One egglog ruleset for each rule that searches, so that its work can be told apart."""
    return {
        rule.name: rule.ruleset
        for rule in active(precision)
        if rule.rewrites and rule.name not in without
    }
