"""Every rule of the table, from its own declaration: both sides are equal, and proved equal.

`instances` makes terms of the rules' egglog expressions. An exact rule must give the same bits; a
reassociating one may differ by rounding, and at infinities, NaN and overflow. What must not be
provable is here too: an instance that violates one guard, and traps.
"""

from collections.abc import Collection
from dataclasses import replace
from operator import floordiv

import dodeca as dd
import instances
import numpy as np
import pytest
from dodeca.dialect import DTYPES
from dodeca.passes import rules, terms
from dodeca.passes.comprehend import Comprehension
from dodeca.passes.egraph import Budget, Split, saturate
from dodeca.passes.index import Axis, Expr, axis_order, of_axis, of_term
from dodeca.passes.terms import Term
from instances import (
    FLOATS,
    PAGE,
    ROW,
    ROWS,
    Instance,
    draw,
    instance,
    kinds,
    page,
    pattern,
    prove,
    results,
    rounding,
    run,
    same_bits,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ORDINARY, EDGES = slice(0, ROWS // 3), slice(ROWS // 3, 2 * ROWS // 3)
REWRITES = [(rule, n) for rule in rules.TABLE for n in range(len(rule.rewrites))]
NAMES = [f"{rule.name}-{n}" for rule, n in REWRITES]
GUARDS = [
    (rule, n, g) for rule, n in REWRITES for g in range(len(pattern(rule.rewrites[n]).guards))
]
every_rewrite = pytest.mark.parametrize("rule, n", REWRITES, ids=NAMES)


def default(rewrite: rules.Rewrite, broken: int | None = None) -> Instance:
    shape = pattern(rewrite)
    return instance(shape, "int32" if "integer" in shape.ops else "float32", broken=broken)


# --- rules that search --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule, n, dtype",
    [
        pytest.param(rule, n, dtype, id=f"{rule.name}-{n}-{dtype}")
        for rule, n in REWRITES
        for dtype in instances.dtypes(pattern(rule.rewrites[n]))
    ],
)
def test_both_sides_are_equal(rule: rules.Rule, n: int, dtype: str) -> None:
    exact = rule.kind == "exact" or dtype not in FLOATS
    for found in results(rule.name, n, dtype):
        about = (found.made.left, found.made.right, found.made.values)
        left, right = found.left, found.right
        if "max_over" in found.made.rule.ops:  # of 0 and -0 either may be the maximum
            left, right = (np.where(v == 0, np.zeros_like(v), v) for v in (left, right))
        if exact:
            assert same_bits(left, right), about
            continue
        if found.made.extreme:
            continue
        assert not kinds(left[ORDINARY], right[ORDINARY]), about
        for rows in (ORDINARY, EDGES):
            assert rounding(left[rows], right[rows], 1.0) < 16, about


@every_rewrite
def test_a_rewrite_has_instances(rule: rules.Rule, n: int) -> None:
    assert any(results(rule.name, n, d) for d in instances.dtypes(pattern(rule.rewrites[n])))


@every_rewrite
def test_what_is_masked_out_leaves_the_rest(rule: rules.Rule, n: int) -> None:
    """-inf in one operand, up to all of a block: where one side is finite the other one is too."""
    shape = pattern(rule.rewrites[n])
    if "float32" not in instances.dtypes(shape):
        return
    made = instance(shape, "float32")
    arrays = {name: a[ORDINARY] for name, a in draw([made.left, made.right]).items()}
    arrays = {name: np.tile(a, (3,) + (1,) * (a.ndim - 1)) for name, a in arrays.items()}
    for name, plain in arrays.items():
        if plain.ndim == 1 or plain.dtype == bool:
            continue
        masked = plain.copy()
        masked[:, : plain.shape[1] // 2] = -np.inf
        left, right = made.run(arrays | {name: masked})
        assert np.array_equal(np.isfinite(left), np.isfinite(right)), (name, kinds(left, right))


@every_rewrite
def test_the_law_is_proved_by_its_rule_alone(rule: rules.Rule, n: int) -> None:
    made = default(rule.rewrites[n])
    precisions = [p for p in ("strict", "fast") if prove(made, p)]
    assert "fast" in precisions
    assert any(not prove(made, p, without=(rule.name,)) for p in precisions)


# --- guards -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule, n, g", GUARDS, ids=[f"{r.name}-{n}-{g}" for r, n, g in GUARDS])
def test_a_guard_is_needed(
    rule: rules.Rule, n: int, g: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that violates one guard is not provable; without that guard it would be."""
    counterexample = default(rule.rewrites[n], broken=g)
    assert not prove(counterexample)
    left_out = counterexample.rule.guards[g][0]
    kept = [text for text in rule.when.split("; ") if text != left_out]
    broken = replace(rule, when="; ".join(kept))
    assert broken != rule
    monkeypatch.setattr(rules, "TABLE", [broken if r is rule else r for r in rules.TABLE])
    made = [t.value for t in terms.postorder([counterexample.right]) if t.op == "const"]
    if not np.isinf(made).any():  # a number beyond the dtype is not the node of its infinity
        assert prove(counterexample)


def test_strict_has_exact_rules_only() -> None:
    assert all(rule.kind == "exact" for rule in rules.active("strict"))
    assert rules.active("fast") == rules.TABLE
    for rule, n in REWRITES:
        if rule.kind != "exact":
            assert not prove(default(rule.rewrites[n]), "strict"), rule.name


# --- laws that are applied when a term is built -------------------------------------------------

J, K = Axis("r0", 7), Axis("r1", 5)


def buffer(name: str, *axes: Axis, dtype: str = "float32") -> Term:
    shape = tuple(a.size for a in axes)
    return terms.load(name, tuple(of_axis(a) for a in axes), shape, DTYPES[dtype])


def number(value: float, dtype: str = "float32") -> Term:
    return terms.constant(value, DTYPES[dtype])


def plus(x: Term, y: Term) -> Term:
    return terms.apply("add", x, y)


def times(x: Term, y: Term) -> Term:
    return terms.apply("mul", x, y)


def minus(x: Term, y: Term) -> Term:
    return plus(x, times(y, number(-1, x.dtype.name)))


def exp2(x: Term) -> Term:
    return terms.apply("exp2", x)


def total(x: Term, axis: Axis = J) -> Term:
    return terms.reduction("sum", axis, x)


def most(x: Term, axis: Axis = J) -> Term:
    return terms.reduction("max", axis, x)


def cast(x: Term, *dtypes: str) -> Term:
    for dtype in dtypes:
        x = terms.cast(x, DTYPES[dtype])
    return x


def position(axis: Axis) -> Term:
    return terms.index(of_axis(axis), DTYPES["int32"])


def raw(op: str, *args: Term, dtype: str | None = None) -> Term:
    """A term that no law was applied to."""
    return terms._intern(op, args, None, DTYPES[dtype] if dtype else args[-1].dtype)


X, Y, Z = (buffer(name, ROW, J) for name in "xyz")
STILL, STILL2 = buffer("s", ROW), buffer("t", ROW)
INT = buffer("i", ROW, dtype="int32")
TRUE, FALSE = number(True, "bool"), number(False, "bool")
LESS = terms.apply("less_than", STILL, STILL2)
# What is written, what the constructors make of it, and what that must be.
BUILT: dict[str, list[tuple[Term, Term, Term]]] = {
    "fold": [
        (raw("add", number(1.5), number(2.25)), plus(number(1.5), number(2.25)), number(3.75)),
        (raw("mul", number(1e30), number(1e30)), times(number(1e30), number(1e30)), number(np.inf)),
    ],
    "unit": [
        (raw("mul", X, number(1.0)), times(X, number(1.0)), X),
        (raw("add", INT, number(0, "int32")), plus(INT, number(0, "int32")), INT),
    ],
    "widen": [
        (raw("cast", raw("cast", x, dtype=wide.name), dtype=name), cast(x, wide.name, name), x)
        for name, narrow in DTYPES.items()
        for wide in DTYPES.values()
        if narrow != wide and terms.widens(narrow, wide)
        for x in [buffer("x", ROW, dtype=name)]
    ],
    "quotient": [
        (
            raw("cast", raw("mul", wide[0], raw("recip", wide[1])), dtype=dtype),
            cast(times(wide[0], terms.apply("recip", wide[1])), dtype),
            terms.apply("div", *pair),
        )
        for dtype in ("float16", "bfloat16", "float32")
        for pair in [[buffer(name, ROW, dtype=dtype) for name in "xy"]]
        for wide in [[cast(x, "float64") for x in pair]]
    ],
    "branches": [
        (raw("select", LESS, X, X), terms.select(LESS, X, X), X),
        (raw("select", LESS, TRUE, FALSE), terms.select(LESS, TRUE, FALSE), LESS),
    ],
    "position": [
        (
            raw("less_than", position(ROW), position(J), dtype="bool"),
            terms.apply("less_than", position(ROW), position(J)),
            terms.nonneg(of_axis(J) - of_axis(ROW) + -1),
        ),
        (
            raw("less_than", terms.nonneg(of_axis(J) + -3), TRUE),
            terms.apply("less_than", terms.nonneg(of_axis(J) + -3), TRUE),
            terms.nonneg(of_axis(J) * -1 + 2),
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BUILT)
def test_the_law_is_applied_at_construction(name: str) -> None:
    kind = next(rule.kind for rule in rules.TABLE if rule.name == name)
    assert kind == "exact"
    for written, built, expected in BUILT[name]:
        assert built is expected and built is not written
        arrays = draw([written, built])
        axes = axis_order(written.axes | built.axes)
        assert same_bits(run(written, arrays, axes), run(built, arrays, axes)), written


def test_a_quotient_is_rounded_once() -> None:
    for dtype in ("float16", "float32"):
        x, y = (buffer(name, ROW, J, dtype=dtype) for name in "xy")
        arrays = draw([x, y])
        found = run(terms.apply("div", x, y), arrays, (ROW, J))
        assert same_bits(found, (arrays["x"] / arrays["y"]).astype(found.dtype))


def test_a_view_is_an_index() -> None:
    graph = dd.trace(lambda a: dd.flip(dd.reshape(a.mT, (6,)))[1:], dd.spec((2, 3)))
    *_, end = graph.module.body.operations[0].regions[0].blocks[0].operations
    source = graph.module.body.operations[0].regions[0].blocks[0].arguments[0]
    seen = Comprehension(lambda v: "a" if v == source else None).whole(end.operands[0])
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert seen.op == "load" and seen.attr[0] == "a"
    found = run(seen, {"a": a}, axis_order(seen.axes))
    assert np.array_equal(found, np.flip(a.T.reshape(6))[1:])


def test_a_load_of_what_was_computed_is_that() -> None:
    """fusion: what is stored over d0, read at r0, is the term over r0; and no other place is."""
    line = Axis("d0", 7)
    stored, term = buffer("b", line), exp2(buffer("x", line))
    there = terms.at(term, {line: of_axis(J)})
    equal = [(stored, term), (buffer("b", J), there)]
    assert proved(total(buffer("b", J)), total(there), equal=equal)
    other = terms.load("b", (of_axis(J) * -1 + 6,), (7,), DTYPES["float32"])
    assert not proved(other, buffer("b", J), equal=equal)
    assert not proved(other, there, equal=equal)


def test_parts_of_exponents_cancel() -> None:
    """powers: exp2(x) * exp2(y - x) = exp2(y)."""
    left, right = times(exp2(X), exp2(minus(Y, X))), exp2(Y)
    assert proved(left, right) and not proved(left, right, "strict")
    assert not proved(left, right, without=("powers",))
    arrays = draw([left])
    a, b = run(left, arrays, (ROW, J)), run(right, arrays, (ROW, J))
    assert not kinds(a[ORDINARY], b[ORDINARY]) and rounding(a[ORDINARY], b[ORDINARY], 1.0) < 16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_not_stored_is_not_rounded(dtype: str) -> None:
    """excess: x * y + x in float32, rounded once; in strict precision after each operation."""
    spec = dd.spec((ROW.size, J.size), dtype)
    graph = dd.trace(lambda x, y: x * y + x, spec, spec)
    block = graph.module.body.operations[0].regions[0].blocks[0]
    names = dict(zip(block.arguments, "xy", strict=True))
    stored = block.operations[len(block.operations) - 1].operands[0]
    fast, strict = (
        Comprehension(names.get, None, excess).whole(stored) for excess in (True, False)
    )
    x, y = (buffer(name, *axis_order(fast.axes), dtype=dtype) for name in "xy")
    wide, factor = cast(x, "float32"), cast(y, "float32")
    assert strict is plus(times(x, y), x)
    assert fast is cast(plus(times(wide, factor), wide), dtype)
    arrays = draw([x, y])
    once, often = (run(term, arrays, axis_order(term.axes)) for term in (fast, strict))
    a, b = (arrays[name].astype(np.float32) for name in "xy")
    assert same_bits(once, (a * b + a).astype(once.dtype))
    assert not same_bits(once, often)


PLACE, PLACES = (buffer("p", axis, dtype="int32") for axis in (ROW, J))


def where_equal(x: Term, y: Term, then: Term) -> Term:
    """The sum over r0 of (x = y) * then."""
    either = plus(terms.apply("less_than", x, y), terms.apply("less_than", y, x))
    return total(times(cast(terms.apply("less_than", either, TRUE), "float32"), then))


@pytest.mark.parametrize("value", [X, times(STILL, X), minus(X, most(X))], ids=str)
def test_what_one_place_has_is_picked(value: Term) -> None:
    """pick: a sum of y where j is i, as y at i; a fold inside y keeps its own axis."""
    inside = times(terms.nonneg(of_term(PLACE)), terms.nonneg(of_term(PLACE) * -1 + (J.size - 1)))
    picked = terms.select(inside, terms.at(value, {J: of_term(PLACE)}), number(0.0))
    left = where_equal(PLACE, position(J), value)
    assert proved(left, picked) and not proved(left, picked, without=("pick",))
    assert not proved(left, picked, "strict")
    arrays = {name: a[ORDINARY] for name, a in draw([left]).items()}
    arrays = {name: np.tile(a, (3,) + (1,) * (a.ndim - 1)) for name, a in arrays.items()}
    arrays["p"] = np.arange(-2, ROWS - 2, dtype=np.int32) % 11 - 2
    assert np.array_equal(run(left, arrays, (ROW,)), run(picked, arrays, (ROW,)))


def test_what_moves_is_not_picked() -> None:
    left = where_equal(PLACES, position(J), X)
    picked = terms.at(X, {J: of_term(PLACES)})
    assert not proved(left, picked) and terms.picked(left) is None


def test_what_is_added_at_places_is_scattered() -> None:
    """scatter: only where the place depends on j, and the position does not."""

    def scatters(term: Term, precision: str = "fast") -> bool:
        graph = saturate([term], [], precision, Budget())
        return "scatter" in {node.op for node in graph.classes[graph.class_of[term]]}

    left = where_equal(PLACES, position(ROW), X)
    assert scatters(left) and not scatters(left, "strict")
    assert terms.plain(terms.scattered(left)) is left
    assert not scatters(where_equal(PLACE, position(ROW), X))
    assert not scatters(where_equal(PLACES, position(J), X))


def test_every_rule_has_a_test() -> None:
    elsewhere = {"view", "fusion", "excess", "powers", "pick", "scatter"}  # the tests above
    searching = {rule.name for rule, _ in REWRITES}
    assert {rule.name for rule in rules.TABLE} == {*searching, *BUILT, *elsewhere}
    assert len({rule.name for rule in rules.TABLE}) == len(rules.TABLE)
    assert all(rule.kind in ("exact", "reassociating", "approximate") for rule in rules.TABLE)


def test_a_sum_of_products_is_a_contraction() -> None:
    left = total(times(X, buffer("b", J)))
    graph = saturate([left], [], "fast", Budget())
    assert "contract" in {node.op for node in graph.classes[graph.class_of[left]]}


def test_what_an_empty_reduction_gives() -> None:
    assert terms.identity("sum", DTYPES["float16"]) == 0
    assert terms.identity("max", DTYPES["bfloat16"]) == -np.inf
    assert terms.identity("max", DTYPES["bool"]) is False
    for name in ("int8", "uint8", "int32", "int64"):
        assert terms.identity("max", DTYPES[name]) == np.iinfo(name).min


# --- what must not be provable ------------------------------------------------------------------


def proved(
    left: Term,
    right: Term,
    precision: str = "fast",
    without: Collection[str] = (),
    equal: Collection[tuple[Term, Term]] = (),
    splits: Collection[Split] = (),
) -> bool:
    graph = saturate([left, right], list(equal), precision, Budget(), without, splits=splits)
    return graph.class_of[left] == graph.class_of[right]


def roll(score: Term, weight: Term, axis: Axis = J) -> Term:
    return terms.unrolled(terms.reduction("roll", axis, score, weight))


def so_far(op: str, x: Term, outside: float) -> Term:
    """What a fold has at r0 when it has not finished: of x over the places up to r0."""
    until = Axis("r1", J.size)
    seen = terms.nonneg(of_axis(J) - of_axis(until))
    value = terms.at(x, {J: of_axis(until)})
    return terms.reduction(op, until, terms.select(seen, value, number(outside)))


WIDE = buffer("w", ROW, J, K)
WIDER, OTHER = (buffer(name, ROW, J, dtype="float64") for name in "mn")
INTS = [buffer(name, ROW, J, dtype="int32") for name in "ijk"]
DOUBLES = [cast(x, "float64") for x in INTS]
BATCH, D1, D2, DEPTH = Axis("d0", 4), Axis("d1", 3), Axis("d2", 4), Axis("r0", 6)
BATCHED, MATRICES = buffer("a", BATCH, D1, DEPTH), buffer("b", BATCH, DEPTH, D2)
BATCHED_PRODUCT = total(times(BATCHED, MATRICES), DEPTH)
FIRST, BACK = {BATCH: Expr(0)}, {BATCH: of_axis(BATCH) * -1 + 3}
A0, A1 = (terms.load("a", (of_axis(J) + n,), (8,), DTYPES["float32"]) for n in (0, 1))


def at_datum(name: str) -> Term:
    place = of_term(buffer(name, J, dtype="int32"))
    return terms.load("a", (place,), (8,), DTYPES["float32"])


def quotient_of_integers(x: Term, y: Term) -> Term:
    return cast(times(x, terms.apply("recip", y)), "int32")


Trap = tuple[Term, Term]
ACCUMULATORS: dict[str, Trap] = {
    "a sum below the maximum so far": (
        total(times(exp2(minus(X, so_far("max", X, -np.inf))), Y)),
        roll(X, Y),
    ),
    "a sum below a partial sum": (total(times(exp2(minus(X, so_far("sum", X, 0))), Y)), roll(X, Y)),
    "a sum below the maximum of another score": (
        total(times(exp2(minus(X, most(Z))), Y)),
        roll(X, Y),
    ),
    "a sum below the maximum over another axis": (
        total(times(exp2(minus(X, most(WIDE, K))), Y)),
        roll(X, Y),
    ),
    "a sum over another axis than the maximum's": (
        total(exp2(minus(WIDE, most(WIDE, J))), K),
        total(exp2(minus(WIDE, most(WIDE, K))), K),
    ),
    "a sum above the maximum": (total(exp2(minus(most(X), X))), total(exp2(minus(X, most(X))))),
    "a sum of products with a partial sum": (
        total(times(Y, so_far("sum", X, 0))),
        times(total(Y), total(X)),
    ),
    "a square below the mean so far": (
        total(times(minus(X, times(so_far("sum", X, 0), number(1 / 7))), X)),
        total(times(minus(X, times(total(X), number(1 / 7))), X)),
    ),
    "a square below another mean": (
        total(times(minus(X, times(total(Z), number(1 / 7))), X)),
        total(times(minus(X, times(total(X), number(1 / 7))), X)),
    ),
}
TRAPS: dict[str, Trap] = {
    "a factor that moves does not leave the sum": (total(times(X, Y)), times(X, total(Y))),
    "max of a product with a negative number": (
        most(times(number(-1.5), X)),
        times(number(-1.5), most(X)),
    ),
    "max of a product with 0": (most(times(number(0.0), X)), times(number(0.0), most(X))),
    "max of a product with a buffer": (most(times(STILL, X)), times(STILL, most(X))),
    "max of a sum": (most(plus(X, Y)), plus(most(X), most(Y))),
    "max and sum": (most(total(WIDE, K)), total(most(WIDE), K)),
    "max over an empty axis": (most(STILL, Axis("r0", 0)), STILL),
    "a sum over a still number": (total(STILL), STILL),
    "a / a is not 1": (terms.apply("div", X, X), number(1.0)),
    "a * (1 / a) is not 1": (times(X, terms.apply("recip", X)), number(1.0)),
    "0 * x is not 0": (times(number(0.0), X), number(0.0)),
    "x - x is not 0": (minus(X, X), number(0.0)),
    "x + 0.0 is not x for floats": (plus(X, number(0.0)), X),
    "0.0 is not -0.0": (plus(X, number(0.0)), plus(X, number(-0.0))),
    "1 / 0.0 is not 1 / -0.0": (
        raw("recip", number(0.0)),
        raw("recip", number(-0.0)),
    ),
    "a constant of another dtype": (cast(number(0.5, "float16"), "float32"), number(0.1)),
    "2 ^ log2(x) is not x": (exp2(terms.apply("log2", X)), X),
    "parts of exponents that nearly cancel": (
        times(exp2(WIDER), exp2(plus(OTHER, times(WIDER, number(-1 + 2.0**-21, "float64"))))),
        exp2(OTHER),
    ),
    "the square of a root is not x": (times(*[terms.apply("sqrt", X)] * 2), X),
    "(x + y) + z for floats": (plus(plus(X, Y), Z), plus(X, plus(Y, Z))),
    "(x * y) * z outside a sum": (times(times(X, Y), Z), times(X, times(Y, Z))),
    "x * y + x * z for floats": (plus(times(X, Y), times(X, Z)), times(X, plus(Y, Z))),
    "(x * y) / z for integers": (
        quotient_of_integers(times(DOUBLES[0], DOUBLES[1]), DOUBLES[2]),
        times(INTS[0], quotient_of_integers(DOUBLES[1], DOUBLES[2])),
    ),
    "(x * y) / y for integers": (
        quotient_of_integers(cast(times(*INTS[:2]), "float64"), DOUBLES[1]),
        INTS[0],
    ),
    "a cast through a narrower float": (cast(X, "float16", "float32"), X),
    "a cast through bfloat16": (cast(X, "bfloat16", "float32"), X),
    "a cast of a float through an integer": (cast(X, "int32", "float32"), X),
    "a cast of an integer through a float": (cast(INTS[0], "float32", "int32"), INTS[0]),
    "two casts and one": (cast(X, "float16", "bfloat16"), cast(X, "bfloat16")),
    "a wrapping cast": (cast(INTS[0], "int8", "int32"), INTS[0]),
    "a mean over another length": (
        total(times(minus(X, times(total(X), number(1 / 8))), X)),
        total(times(minus(X, times(total(X), number(1 / 7))), X)),
    ),
    "a batched product with one matrix for all": (
        BATCHED_PRODUCT,
        total(times(BATCHED, terms.at(MATRICES, FIRST)), DEPTH),
    ),
    "a batched product of one matrix for all": (
        BATCHED_PRODUCT,
        total(times(terms.at(BATCHED, FIRST), MATRICES), DEPTH),
    ),
    "a batched product as a product": (BATCHED_PRODUCT, terms.at(BATCHED_PRODUCT, FIRST)),
    "a batched product with another order of batches": (
        BATCHED_PRODUCT,
        total(times(terms.at(BATCHED, BACK), MATRICES), DEPTH),
    ),
    "a sum over the batch": (
        total(BATCHED_PRODUCT, BATCH),
        total(times(total(BATCHED, BATCH), total(MATRICES, BATCH)), DEPTH),
    ),
    "a sum of squares and of a product": (total(times(X, X)), total(times(X, Y))),
    "a sum of squares and a squared sum": (total(times(X, X)), times(total(X), total(X))),
    "two places of a buffer": (A0, A1),
    "two places of a buffer, in sums": (total(times(A0, A0)), total(times(A0, A1))),
    "a place that is read and one that is not": (
        terms.load("a", (floordiv(of_axis(J), 2),), (8,), DTYPES["float32"]),
        A0,
    ),
    "places out of two buffers": (at_datum("p"), at_datum("q")),
    "sums over one axis inside each other": (
        total(times(X, total(Y))),
        total(total(times(X, Y))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ACCUMULATORS, *TRAPS])
def test_what_must_not_be_provable(name: str) -> None:
    left, right = {**ACCUMULATORS, **TRAPS}[name]
    assert left is not right
    assert not proved(left, right)


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_a_fold_is_read_when_it_has_finished(name: str) -> None:
    """A loop that keeps two folds is found only where one needs just the other's finished value."""
    left = ACCUMULATORS[name][0]
    graph = saturate([left], [], "fast", Budget())
    assert not {n.op for n in graph.classes[graph.class_of[left]]} & set(terms.ROLLING)


@pytest.mark.parametrize("name", [*ACCUMULATORS, *TRAPS])
def test_a_trap_is_one(name: str) -> None:
    """The two sides have different values, somewhere."""
    left, right = {**ACCUMULATORS, **TRAPS}[name]
    arrays = draw([left, right], 1)
    arrays |= {name: arrays[name] % 8 for name in ("p", "q") if name in arrays}  # places
    axes = axis_order(left.axes | right.axes)
    assert not same_bits(run(left, arrays, axes), run(right, arrays, axes))


def test_parts_of_an_axis_are_not_mixed_up() -> None:
    """sum(j, y * sum(j, x)), split: the parts of the outer sum are not those of the inner one."""
    outer, inner = Axis("r2", 2), Axis("r3", 3)
    place = {DEPTH: of_axis(outer) * 3 + of_axis(inner)}
    x, y = buffer("x", DEPTH), buffer("y", DEPTH)
    split = terms.at(times(y, x), place)
    for over in (total, most):
        left = total(times(y, over(x, DEPTH)), DEPTH)
        mixed = total(over(total(over(split, inner), inner), outer), outer)
        assert not proved(left, mixed, splits=[(DEPTH, outer, inner)])


def test_a_sum_of_constants_does_not_forget_its_dtype() -> None:
    left = times(times(X, number(0.1)), number(3.0))
    graph = saturate([left], [], "fast", Budget())
    found = {n.template.dtype.name for ns in graph.classes.values() for n in ns if n.op == "const"}
    assert found == {"float32"}


def test_an_index_out_of_a_quotient_is_kept() -> None:
    shifted = terms.load("a", (of_axis(J) + 1,), (7,), DTYPES["float32"])
    assert shifted.attr[1] == (Expr(1, ((J, 1),)),)
    assert not proved(shifted, buffer("a", J))


# --- the page -----------------------------------------------------------------------------------


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python tests/instances.py"


# --- budgets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget, stopped", [
    (Budget(), "saturated"),
    (Budget(iterations=2), "iteration budget of 2"),
    (Budget(nodes=20), "node budget of 20"),
    (Budget(seconds=0), "time budget of 0 s"),
    (Budget(megabytes=-1), "memory budget of -1 MB"),
])  # fmt: skip
def test_a_search_that_meets_a_budget_says_so(budget: Budget, stopped: str) -> None:
    """What was found by then is kept, and is a way to compute the value."""
    score = buffer("x", J, K)
    share = terms.apply("exp2", score - terms.reduction("max", J, score))
    root = terms.reduction("sum", J, share * buffer("y", J))
    found = saturate([root], [], "fast", budget)
    assert found.report["stopped"] == stopped
    assert any(node.op == "sum" for node in found.classes[found.class_of[root]])
    assert found.report["iterations"] <= budget.iterations
