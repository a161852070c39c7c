"""Every primitive and cast, for every dtype it takes, on every family of targets.

In strict precision the compiled answer is the interpreter's to the bit; `exp2`, `log2` and `sin`
may differ by their stated error.
"""

from collections.abc import Callable

import numpy as np
import pytest
from dodeca.dialect import DTYPES, PRIMITIVES, DType, ops
from dodeca.dialect.interpreter import evaluate
from dodeca.pipeline import compile_module
from dodeca.runtime.executable import Executable
from ulp import ULP

TARGETS = ("cpu", "cuda:sm_80", "hip:gfx942", "hip:gfx1100")
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504, 1e30, -1e30, 0.5, 1.0, -1.0]


def draw(kind: DType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random values, edges of the dtype among them."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    if kind.is_float:
        values = np.concatenate([rng.standard_normal(max(0, size - len(EDGES))) * 3, EDGES])
    elif kind.kind == "bool":
        values = rng.integers(0, 2, size)
    else:
        info = np.iinfo(kind.numpy)
        values = rng.integers(info.min, info.max, size, dtype=kind.numpy, endpoint=True)
        values[:4] = [0, 1, info.min, info.max]
    with np.errstate(all="ignore"):
        return rng.permutation(values[:size].astype(kind.numpy)).reshape(shape)


def check(build: Callable, body: Callable, arrays: list[np.ndarray], kinds: list[DType]) -> None:
    types = [
        f"{''.join(f'{n}x' for n in a.shape)}{k.mlir}" for a, k in zip(arrays, kinds, strict=True)
    ]
    module = build(body, *types)
    (expected,) = evaluate(module, *arrays)
    loose = next((u for (op, k), u in ULP.items() if k == kinds[0].name and op in str(module)), 0.0)
    for target in TARGETS:
        exe = Executable(compile_module(module, target=target, precision="strict"), {})
        found = exe(*arrays) if target == "cpu" else exe.simulate(*arrays)
        assert isinstance(found, np.ndarray)
        assert found.dtype == expected.dtype
        with np.errstate(all="ignore"):
            a, b = found.astype(np.longdouble), expected.astype(np.longdouble)
            if not loose:
                np.testing.assert_array_equal(a, b, err_msg=target)
                signs = [np.signbit(x) & ~np.isnan(x) for x in (a, b)]
                np.testing.assert_array_equal(*signs, err_msg=target)
                continue
            step = np.abs(np.spacing(expected).astype(np.longdouble))
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            # numpy's own error is at most one unit more
            assert np.all(same | (np.abs(a - b) <= (loose + 1.0) * step)), target


ELEMENTWISE = [
    (row.name, kind.name)
    for row in PRIMITIVES.values()
    for kind in DTYPES.values()
    if row.form in ("unary", "binary") and kind.kind in row.kinds
]


@pytest.mark.parametrize(("name", "dtype"), ELEMENTWISE)
def test_elementwise(build: Callable, name: str, dtype: str) -> None:
    kind = DTYPES[dtype]
    arrays = [draw(kind, (43,), seed) for seed in range(PRIMITIVES[name].arity or 0)]
    check(build, lambda *xs: ops.elementwise(name, *xs), arrays, [kind] * len(arrays))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sum_reduce", "max_reduce"])
def test_reductions(build: Callable, name: str, dtype: str, axis: int) -> None:
    kind = DTYPES[dtype]
    check(build, lambda x: ops.reduce(name, x, axis), [draw(kind, (9, 11), 3)], [kind])


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_casts(build: Callable, source: str, target: str) -> None:
    kind = DTYPES[source]
    check(build, lambda x: ops.cast(x, target), [draw(kind, (43,), 5)], [kind])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (a.name, b.name)
        for a in DTYPES.values()
        for b in DTYPES.values()
        if a.bits == b.bits and a is not b and "bool" not in (a.kind, b.kind)
    ],
)
def test_bitcasts(build: Callable, source: str, target: str) -> None:
    kind = DTYPES[source]
    check(build, lambda x: ops.bitcast(x, target), [draw(kind, (43,), 7)], [kind])
