"""Every rule of the table, from an instance of its law: both sides are proved equal, and are equal.

The sides are run by the interpreter on adversarial values. An exact rule must give the same bits; a
reassociating one may differ by rounding, and only where the numbers are finite.
"""

from collections.abc import Callable

import numpy as np
import pytest
from dodeca.dialect import DTYPES, context, evaluate
from dodeca.passes import rules, terms
from dodeca.passes.decompose import Decomposer
from dodeca.passes.egraph import Budget, saturate
from dodeca.passes.index import Axis, Expr, of_axis
from dodeca.passes.terms import Term
from mlir import ir
from mlir.dialects import func

ROW, J = Axis("d0", 3), Axis("r0", 7)
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-40, 0.1]


def buffer(name: str, *axes: Axis, dtype: str = "float32") -> Term:
    shape = tuple(a.size for a in axes)
    return terms.load(name, tuple(of_axis(a) for a in axes), shape, DTYPES[dtype])


def number(value: float, dtype: str = "float32") -> Term:
    return terms.constant(value, DTYPES[dtype])


def plus(x: Term, y: Term) -> Term:
    return terms.apply("add", x, y)


def times(x: Term, y: Term) -> Term:
    return terms.apply("mul", x, y)


def total(x: Term) -> Term:
    return terms.reduction("sum", J, x)


def most(x: Term) -> Term:
    return terms.reduction("max", J, x)


def still(dtype: str = "float32") -> Term:
    return buffer("a", ROW, dtype=dtype)


def moving(dtype: str = "float32") -> Term:
    return buffer("b", ROW, J, dtype=dtype)


def quotient(dtype: str) -> Term:
    wide = [terms.cast(x, DTYPES["float64"]) for x in (still(dtype), buffer("c", ROW, dtype=dtype))]
    product = terms.apply("mul", wide[0], terms.apply("recip", wide[1]))
    return terms.cast(product, DTYPES[dtype])


# Rules that search: the two sides, which the e-graph must prove equal.
SEARCHED: dict[str, Callable[[], tuple[Term, Term]]] = {
    "hoist_sum": lambda: (total(times(still(), moving())), times(still(), total(moving()))),
    "hoist_max": lambda: (
        most(times(number(1.5), moving())),
        times(number(1.5), most(moving())),
    ),
    "max_of_still": lambda: (most(still()), still()),
    "factor": lambda: (
        plus(times(still("int32"), moving("int32")), times(still("int32"), number(5, "int32"))),
        times(still("int32"), plus(moving("int32"), number(5, "int32"))),
    ),
}
# Laws that are applied when a term is built: the built term, and what it must be.
BUILT: dict[str, Callable[[], tuple[Term, Term]]] = {
    "fold": lambda: (plus(number(1.5), number(2.25)), number(3.75)),
    "unit": lambda: (
        plus(times(still("int32"), number(1, "int32")), number(0, "int32")),
        still("int32"),
    ),
    "widen": lambda: (
        terms.cast(terms.cast(still("float16"), DTYPES["float32"]), DTYPES["float16"]),
        still("float16"),
    ),
    "quotient": lambda: (
        quotient("float32"),
        terms.apply("div", still(), buffer("c", ROW)),
    ),
    "same_branches": lambda: (
        terms.select(terms.apply("less_than", still(), buffer("c", ROW)), moving(), moving()),
        moving(),
    ),
}
ELSEWHERE = {"view": "test_passes_comprehend", "fusion": "test_passes_fuse", "contraction": "below"}


def run(term: Term, arrays: dict[str, np.ndarray], axes: tuple[Axis, ...] = (ROW, J)) -> np.ndarray:
    """The interpreter's value of a term over the axes it has."""
    axes = tuple(a for a in axes if a in term.axes)
    loads = {t.attr[0]: t for t in terms.postorder([term]) if t.op == "load"}
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        kinds = [
            f"tensor<{''.join(f'{n}x' for n in t.attr[2])}{t.dtype.mlir}>" for t in loads.values()
        ]
        with ir.InsertionPoint(module.body):

            @func.FuncOp.from_py_func(*map(ir.Type.parse, kinds), name="main")
            def main(*arguments):
                return Decomposer(dict(zip(loads, arguments, strict=True))).tensor(term, axes)

    return evaluate(module, *(arrays[name] for name in loads))[0]


def draw(term: Term, seed: int) -> dict[str, np.ndarray]:
    """Arrays for the buffers of a term, full of special values."""
    rng = np.random.default_rng(seed)
    found = {}
    for t in terms.postorder([term]):
        if t.op == "load":
            shape = t.attr[2]
            if t.dtype.is_float:
                values = rng.choice(SPECIAL, shape) if seed % 2 else rng.standard_normal(shape)
                found[t.attr[0]] = np.asarray(values).astype(t.dtype.numpy)
            else:
                found[t.attr[0]] = rng.integers(-(2**31), 2**31, shape).astype(t.dtype.numpy)
    return found


def proved(left: Term, right: Term, precision: str = "fast") -> bool:
    graph = saturate([left, right], [], precision, Budget())
    return graph.class_of[left] == graph.class_of[right]


def test_every_rule_has_an_instance() -> None:
    names = {rule.name for rule in rules.TABLE}
    assert names == {*SEARCHED, *BUILT, *ELSEWHERE}


@pytest.mark.parametrize("name", SEARCHED)
def test_the_law_is_proved(name: str) -> None:
    left, right = SEARCHED[name]()
    assert left is not right
    assert proved(left, right)


@pytest.mark.parametrize("name", BUILT)
def test_the_law_is_applied_at_construction(name: str) -> None:
    built, expected = BUILT[name]()
    assert built is expected


@pytest.mark.parametrize("name", [*SEARCHED, *BUILT])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_both_sides_are_equal(name: str, seed: int) -> None:
    left, right = {**SEARCHED, **BUILT}[name]()
    if name == "max_of_still":
        right = still()
    arrays = draw(left, seed) | draw(right, seed)
    a, b = run(left, arrays), run(right, arrays)
    rule = next(r for r in rules.TABLE if r.name == name)
    if rule.kind == "exact":
        np.testing.assert_array_equal(a, b)
        return
    finite = np.isfinite(a) & np.isfinite(b)
    np.testing.assert_allclose(a[finite], b[finite], rtol=1e-5, atol=1e-5)


def test_a_sum_of_products_is_a_contraction() -> None:
    left = total(times(buffer("a", ROW, J), buffer("b", J)))
    graph = saturate([left], [], "fast", Budget())
    assert "contract" in {node.op for node in graph.classes[graph.class_of[left]]}


def test_what_an_empty_reduction_gives() -> None:
    assert terms.identity("sum", DTYPES["float16"]) == 0
    assert terms.identity("max", DTYPES["bfloat16"]) == -np.inf
    assert terms.identity("max", DTYPES["bool"]) is False
    for name in ("int8", "uint8", "int32", "int64"):
        assert terms.identity("max", DTYPES[name]) == np.iinfo(name).min


def test_strict_has_exact_rules_only() -> None:
    assert all(rule.kind == "exact" for rule in rules.active("strict"))
    left, right = SEARCHED["hoist_sum"]()
    assert not proved(left, right, "strict")
    left, right = SEARCHED["hoist_max"]()
    assert proved(left, right, "strict")


# What must not be provable.
def _not_equal() -> dict[str, tuple[Term, Term]]:
    x, y = moving(), buffer("c", ROW, J)
    f16 = terms.cast(terms.cast(x, DTYPES["float16"]), DTYPES["float32"])
    ints = [buffer(n, ROW, J, dtype="int32") for n in "abc"]
    as_floats = [terms.cast(v, DTYPES["float64"]) for v in ints]
    inverse = terms.apply("recip", as_floats[2])
    return {
        "a factor that moves does not leave the sum": (total(times(x, y)), times(x, total(y))),
        "max of a product with a negative number": (
            most(times(number(-1.5), x)),
            times(number(-1.5), most(x)),
        ),
        "max of a product with a buffer": (most(times(still(), x)), times(still(), most(x))),
        "max over an empty axis": (
            terms.reduction("max", Axis("r0", 0), still()),
            still(),
        ),
        "a / a is not 1": (terms.apply("div", x, x), number(1.0)),
        "0 * x is not 0": (times(number(0.0), x), number(0.0)),
        "x + 0.0 is not x for floats": (plus(x, number(0.0)), x),
        "a cast through a narrower float": (f16, x),
        "x*y + x*z for floats": (
            plus(times(x, y), times(x, number(2.0))),
            times(x, plus(y, number(2.0))),
        ),
        "(x * y) / z for integers": (
            terms.cast(times(times(*as_floats[:2]), inverse), DTYPES["int32"]),
            times(ints[0], terms.cast(times(as_floats[1], inverse), DTYPES["int32"])),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", _not_equal())
def test_what_must_not_be_provable(name: str) -> None:
    left, right = _not_equal()[name]
    assert left is not right
    assert not proved(left, right)


def test_a_sum_of_squares_is_no_product_of_two_tensors() -> None:
    x = buffer("a", ROW, J)
    left = total(times(x, x))
    right = total(times(x, buffer("b", ROW, J)))
    assert not proved(left, right)


def test_an_index_out_of_a_quotient_is_kept() -> None:
    shifted = terms.load("a", (of_axis(J) + 1,), (7,), DTYPES["float32"])
    assert shifted.attr[1] == (Expr(1, ((J, 1),)),)
    assert not proved(shifted, buffer("a", J))
