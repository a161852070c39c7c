"""The table of rewrite rules: one entry is a law, its guards, its class and how egglog states it.

`exact` rules give the same bits; `reassociating` ones change the order of rounding (and may turn an
overflow into a finite number or the other way round); `approximate` ones hold for finite numbers
only, or to a few last places. A precision policy chooses classes. The laws
that need no search are applied when a term is built: views are absorbed by `comprehend`, constants
folded and quotients recognised by `terms`; they stand here so that this table is the whole list.

    >>> [rule.name for rule in active("strict") if rule.kind == "exact"][:2]
    ['view', 'fold']
"""

from __future__ import annotations

from dataclasses import dataclass, field

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


@eg.function(egg_fn="spread")
def spread(axis: Axis, x: Node) -> Node: ...
@eg.function(egg_fn="tilt")
def tilt(axis: Axis, x: Node, weight: Node) -> Node: ...
@eg.function(egg_fn="cut")
def cut(
    x: Node, axis: Axis
) -> Node: ...  # x where its axis is given by the two that it splits into


@eg.function(egg_fn="free", merge=lambda old, new: old & new)
def free(x: Node) -> eg.Set[Axis]:
    """The axes that a term depends on; equal terms depend on what all of them depend on."""
    ...


@eg.function(egg_fn="size", merge=lambda old, new: new)
def size(axis: Axis) -> eg.f64:
    """The number of places along an axis."""
    ...


integer = eg.relation("integer", Node)  # integers wrap, so their sums may be reordered exactly
early = eg.relation("early", Node)  # computed from weights alone, before any call
factor_in = eg.relation("factor_in", Axis, Node)  # a factor, or part of one, of what is summed
splits = eg.relation("splits", Axis, Axis, Axis)  # an axis, and its outer and inner part
exponent = eg.relation("exponent", Node)  # what exp2 is taken of

x, y, z, u, v, w = eg.vars_("x y z u v w", Node)
j, k, outer, inner = eg.vars_("j k outer inner", Axis)
free_x, free_y, free_z = eg.vars_("free_x free_y free_z", eg.Set[Axis])
a, b, length = eg.vars_("a b length", eg.f64)
key = eg.var("key", eg.String)

Facts = tuple[eg.Fact, ...]


@dataclass(frozen=True)
class Rewrite:
    """Where `shape` is found and every guard holds, `found` (of the shape) equals `made`."""

    shape: Facts
    found: Node
    made: Node
    guards: dict[str, Facts] = field(default_factory=dict)  # by what they ask for

    def rule(self, *without: str) -> eg.RewriteOrRule:
        """The egglog rule; `without` names guards to leave out."""
        asked = [f for text, facts in self.guards.items() if text not in without for f in facts]
        return eg.rule(*self.shape, *asked).then(eg.union(self.found).with_(self.made))


@dataclass(frozen=True)
class Rule:
    """One law. A law without `rewrites` is applied when a term is built, or joined at the start."""

    name: str
    law: str
    kind: str  # "exact", "reassociating" or "approximate"
    guards: str = ""
    gain: str = ""  # what it is good for
    rewrites: tuple[Rewrite, ...] = ()


def _where(shape: Node, made: Node, *more: eg.Fact, **guards: Facts) -> Rewrite:
    """`shape = made`, where the facts `more` pick the places, under guards."""
    spoken = {text.replace("_", " "): facts for text, facts in guards.items()}
    return Rewrite((eg.eq(w).to(shape), *more), w, made, spoken)


def _still(x: Node, axes: eg.Set[Axis], axis: Axis = j) -> Facts:
    return eg.eq(axes).to(free(x)), axes.not_contains(axis)


def _moves(x: Node, axes: eg.Set[Axis], axis: Axis = j) -> Facts:
    return eg.eq(axes).to(free(x)), axes.contains(axis)


_minus = Node.real(key, -1.0)  # x - y is x + y * -1
_scale = Node.real(key, a)
_difference = x + sum_over(j, x) * _scale
_parts = splits(j, outer, inner)
_below_top = apply1("exp2", x + max_over(j, x) * _minus)


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
    Rule("branches", "select(c, x, x) = x;  select(c, true, false) = c", "exact"),
    Rule(
        "position",
        "i < j = (0 <= j - i - 1);  (0 <= i) < true = (0 <= -i - 1)",
        "exact",
        "i and j are positions that their dtype can hold",
        "blocks of an axis where a condition fails are passed over",
    ),
    Rule(
        "fusion",
        "load(compute(t), p) = t(p)",
        "exact",
        "a reduction inside t is finished: t is a whole term",
        "no buffer between producer and consumer; read backwards: compute once, load often",
    ),
    Rule(
        "pick",
        "sum(j, (i = j) * y) = y at j = i, or 0 where no j is i",
        "approximate",
        "i does not depend on j",
        "a row is read by its index; the other rows count as finite, as 0 * inf is NaN",
    ),
    Rule(
        "powers",
        "exp2(a) * exp2(b) = exp2(a + b)",
        "reassociating",
        "a + b is simpler: parts of them cancel",
        "an exponential in two parts is one",
    ),
    Rule(
        "commute",
        "x * y = y * x;  x + y = y + x",
        "exact",
        gain="the other laws are stated in one order",
        rewrites=(_where(x * y, y * x), _where(x + y, y + x)),
    ),
    Rule(
        "float",
        "(x * y) * z = x * (y * z)",
        "reassociating",
        "in a sum over j; x does not depend on j",
        "x can leave the sum",
        (
            _where(
                (x * y) * z,
                x * (y * z),
                factor_in(j, w),
                x_does_not_depend_on_the_axis=_still(x, free_x),
            ),
        ),
    ),
    Rule(
        "gather_factors",
        "(x * y) * z = x * (y * z)",
        "reassociating",
        "in a sum; x is a difference with a still number, or y and z are weights",
        "a weighted sum of differences; products of weights are computed once",
        (
            _where(
                (x * y) * z,
                x * (y * z),
                factor_in(j, w),
                eg.eq(x).to(u + v),
                a_part_of_x_does_not_depend_on_the_axis=_still(v, free_z),
            ),
            _where(
                (x * y) * z,
                x * (y * z),
                factor_in(j, w),
                y_and_z_are_weights=(early(y), early(z)),
            ),
        ),
    ),
    Rule(
        "hoist_sum",
        "sum(j, x * y) = x * sum(j, y)",
        "reassociating",
        "x does not depend on j",
        "one product instead of one for each j",
        (
            _where(
                sum_over(j, x * y),
                x * sum_over(j, y),
                x_does_not_depend_on_the_axis=_still(x, free_x),
            ),
        ),
    ),
    Rule(
        "hoist_max",
        "max(j, x * c) = max(j, x) * c",
        "exact",
        "c is a finite constant above 0 (rounding is monotone)",
        "one product instead of one for each j; read backwards: the scale is part of the score",
        (
            _where(max_over(j, x * _scale), max_over(j, x) * _scale, c_is_above_0=(a > 0.0,)),
            _where(max_over(j, x) * _scale, max_over(j, x * _scale), c_is_above_0=(a > 0.0,)),
        ),
    ),
    Rule(
        "max_of_still",
        "max(j, x) = x",
        "exact",
        "x does not depend on j, and j is not empty",
        "no loop",
        (
            _where(
                max_over(j, x),
                x,
                x_does_not_depend_on_the_axis=_still(x, free_x),
                the_axis_is_not_empty=(eg.eq(length).to(size(j)), length > 0.0),
            ),
        ),
    ),
    Rule(
        "contraction",
        "sum(j, x * y) = contract(j, x, y)",
        "reassociating",
        "x and y both depend on j",
        "fused multiply-add, matrix instructions",
        (
            _where(
                sum_over(j, x * y),
                contract(j, x, y),
                x_depends_on_the_axis=_moves(x, free_x),
                y_depends_on_the_axis=_moves(y, free_y),
            ),
        ),
    ),
    Rule(
        "factor",
        "x * y + x * z = x * (y + z)",
        "exact",
        "integers, which wrap",
        "one product instead of two",
        (_where((x * y) + (x * z), x * (y + z), it_is_an_integer=(integer(w),)),),
    ),
    Rule(
        "divide",
        "x / y = x * recip(y)",
        "reassociating",
        "in a sum",
        "the divisor can leave the sum",
        (_where(apply2("div", x, y), x * apply1("recip", y), factor_in(j, w)),),
    ),
    Rule(
        "negate",
        "(x * -1) * c = (x * c) * -1",
        "exact",
        gain="a difference stays one",
        rewrites=(_where((x * _minus) * _scale, (x * _scale) * _minus),),
    ),
    Rule(
        "scales",
        "(x * c1) * c2 = x * (c1 * c2)",
        "reassociating",
        gain="one product instead of two",
        rewrites=(_where((x * Node.real(key, a)) * Node.real(key, b), x * Node.real(key, a * b)),),
    ),
    Rule(
        "scale_exponent",
        "(x + y) * c = x * c + y * c",
        "reassociating",
        "in an exponent",
        "exp2((x - y) * c) is a difference of scaled numbers",
        (_where((x + y) * _scale, x * _scale + y * _scale, exponent(w)),),
    ),
    Rule(
        "rolling",
        "sum(j, exp2(x - max(j, x)) * y) = roll(j, x, y)",
        "reassociating",
        gain="one pass: when the maximum so far moves from m to m', what was added up is multiplied "
        "by exp2(m - m')",
        rewrites=(
            _where(sum_over(j, _below_top), roll_one(j, x)),
            _where(sum_over(j, _below_top * y), roll(j, x, y)),
        ),
    ),
    Rule(
        "split",
        "sum(j, x) = sum(o, sum(i, x));  roll(j, x, y) = roll(o, max(i, x), roll(i, x, y))",
        "reassociating",
        "j is o and i, and max(j, x) is split as the sum is",
        "parts run at the same time, or have factors that leave them",
        (
            _where(sum_over(j, x), sum_over(outer, sum_over(inner, cut(x, j))), _parts),
            _where(max_over(j, x), max_over(outer, max_over(inner, cut(x, j))), _parts),
            _where(
                roll(j, x, y),
                roll(outer, max_over(inner, cut(x, j)), roll(inner, cut(x, j), cut(y, j))),
                _parts,
            ),
            _where(
                roll_one(j, x),
                roll(outer, max_over(inner, cut(x, j)), roll_one(inner, cut(x, j))),
                _parts,
            ),
        ),
    ),
    Rule(
        "cut",
        "op(x, y)[j] = op(x[j], y[j]), where [j] splits the axis j",
        "exact",
        gain="what split needs; leaves are cut when they are put in",
        rewrites=(
            _where(cut(x, j), x, x_does_not_depend_on_the_axis=_still(x, free_x)),
            _where(cut(x + y, j), cut(x, j) + cut(y, j)),
            _where(cut(x * y, j), cut(x, j) * cut(y, j)),
            _where(cut(apply1(key, x), j), apply1(key, cut(x, j))),
            _where(cut(apply2(key, x, y), j), apply2(key, cut(x, j), cut(y, j))),
            _where(cut(select(x, y, z), j), select(cut(x, j), cut(y, j), cut(z, j))),
            *(
                Rewrite(
                    (eg.eq(w).to(cut(over(k, x), j)),),
                    w,
                    over(k, cut(x, j)),
                    {"another axis": (eg.ne(j).to(k),)},
                )
                for over in (sum_over, max_over)
            ),
        ),
    ),
    Rule(
        "centred",
        "sum(j, (x - mean) * (x - mean)) = spread(j, x);  sum(j, (x - mean) * y) = tilt(j, x, y)",
        "reassociating",
        "mean is sum(j, x) / n",
        "one pass: when the mean so far moves, what was added up is corrected",
        tuple(
            _where(
                sum_over(j, _difference * other),
                made,
                eg.eq(length).to(size(j)),
                the_mean_is_the_sum_divided_by_the_length=(
                    a * length < -1.0 + 1e-6,
                    a * length > -1.0 - 1e-6,
                ),
            )
            for other, made in ((_difference, spread(j, x)), (y, tilt(j, x, y)))
        ),
    ),
    Rule(
        "distribute",
        "sum(j, (x + y) * z) = sum(j, x * z) + sum(j, y * z)",
        "reassociating",
        "x has a factor that does not depend on j; y does",
        "that factor can leave its sum",
        (
            _where(
                sum_over(j, (x + y) * z),
                sum_over(j, x * z) + sum_over(j, y * z),
                eg.eq(x).to(u * v),
                y_depends_on_the_axis=_moves(y, free_y),
                a_factor_of_x_does_not_depend_on_the_axis=_still(u, free_z),
                x_depends_on_the_axis=_moves(v, free_x),
            ),
        ),
    ),
    Rule(
        "exchange",
        "sum(j, x * sum(k, y)) = sum(k, sum(j, x * y))",
        "reassociating",
        "x does not depend on k",
        "(A B) x = A (B x)",
        (
            _where(
                sum_over(j, x * sum_over(k, y)),
                sum_over(k, sum_over(j, x * y)),
                x_does_not_depend_on_the_inner_axis=_still(x, free_x, k),
            ),
        ),
    ),
]


def active(precision: str) -> list[Rule]:
    """The rules that a precision policy allows: "strict" only the exact ones, "fast" all."""
    return [rule for rule in TABLE if precision == "fast" or rule.kind == "exact"]


def analysis() -> eg.Ruleset:
    """How facts about a term follow from its operands, or from where it stands."""
    of_x, of_y, of_z = (eg.eq(f).to(free(t)) for f, t in ((free_x, x), (free_y, y), (free_z, z)))

    def follows(op: Node, facts: list, axes: eg.Set[Axis]) -> eg.RewriteOrRule:
        return eg.rule(eg.eq(w).to(op), *facts).then(eg.set_(free(w)).to(axes))

    def implies(fact: eg.Fact, *facts: eg.Fact) -> eg.RewriteOrRule:
        return eg.rule(*facts).then(fact)

    both = free_x | free_y
    return eg.ruleset(
        follows(apply1(key, x), [of_x], free_x),
        *(follows(op, [of_x, of_y], both) for op in (x + y, x * y, apply2(key, x, y))),
        follows(select(x, y, z), [of_x, of_y, of_z], both | free_z),
        *(
            follows(op, [of_x], free_x.remove(j))
            for op in (sum_over(j, x), max_over(j, x), roll_one(j, x), spread(j, x))
        ),
        *(
            follows(op, [of_x, of_y], both.remove(j))
            for op in (contract(j, x, y), roll(j, x, y), tilt(j, x, y))
        ),
        eg.rule(eg.eq(w).to(Node.real(key, a))).then(eg.set_(free(w)).to(eg.Set[Axis].empty())),
        implies(exponent(x), eg.eq(w).to(apply1("exp2", x))),
        implies(factor_in(j, x), eg.eq(w).to(sum_over(j, x))),
        implies(factor_in(j, x), factor_in(j, w), eg.eq(w).to(x * y)),
        implies(factor_in(j, x), factor_in(j, w), eg.eq(w).to(x + y)),
        implies(early(w), eg.eq(w).to(x * y), early(x), early(y)),
    )


def rulesets(precision: str, without: frozenset[str] = frozenset()) -> dict[str, eg.Ruleset]:
    """One egglog ruleset for each rule that searches, so that its work can be told apart."""
    return {
        rule.name: eg.ruleset(*(r.rule() for r in rule.rewrites))
        for rule in active(precision)
        if rule.rewrites and rule.name not in without
    }
