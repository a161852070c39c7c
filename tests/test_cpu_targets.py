"""Code for other CPUs: compiled here, and read as assembly; and the pairs of products of bytes."""

import re

import dodeca as dd
import ml_dtypes
import numpy as np
import pytest
from dodeca.dialect.errors import TargetError
from dodeca.passes.targets import TARGETS
from fuzz_kernels import draw_schedules, subjects_of

OTHERS = [name for name in TARGETS if name.startswith("cpu:")]
A8, B8 = np.zeros((64, 256), np.int8), np.zeros((256, 128), np.int8)


def byte_product(x, y):
    return dd.matmul(x.astype("int32"), y.astype("int32"))


def matmul(x, y):
    return x @ y


def chain(x):
    return x * x + x


def of(dtype):
    return np.zeros((64, 256), dtype), np.zeros((256, 128), dtype)


A16, B16 = A8.astype(np.int16), B8.astype(np.int16)
HALF, BRAIN, SINGLE = of(np.float16), of(ml_dtypes.bfloat16), of(np.float32)
# function, arrays, target: what its instructions must be, and must not be. In fast precision 16-bit
# floats are computed in float32, and rounded where they are stored; in strict after each operation.
CASES = {
    "bytes on AVX2": (byte_product, (A8, B8), "cpu:haswell", r"vpmaddwd.*ymm", r"vpmulld"),
    "words on AVX2": (byte_product, (A16, B16), "cpu:haswell", r"vpmaddwd.*ymm", r"vpmulld"),
    "bytes on VNNI": (byte_product, (A8, B8), "cpu:sapphirerapids", r"vpdpwssd.*zmm", r"vpmulld"),
    "bytes on NEON": (byte_product, (A8, B8), "cpu:neoverse-n1", r"smlal2?\s+v\d+\.4s", r"addp"),
    "float on AVX2": (matmul, SINGLE, "cpu:haswell", r"vfmadd\d+ps.*ymm", r"zmm|vmulps"),
    "float on AVX-512": (matmul, SINGLE, "cpu:sapphirerapids", r"vfmadd\d+ps.*zmm", r"vmulps"),
    "float on NEON": (matmul, SINGLE, "cpu:neoverse-n1", r"fmla\s+v\d+\.4s", r"fmul\s+v"),
    "bfloat16 on AVX-512": (matmul, BRAIN, "cpu:sapphirerapids", r"vfmadd\d+ps.*zmm", r"vmulps"),
    "rounded once": (chain, HALF[:1], "cpu:sapphirerapids", r"vfmadd\d+ps.*zmm", r"v(add|mul)ph"),
    "float16 on AVX2": (chain, HALF[:1], "cpu:haswell", r"vcvtph2ps", r"v(add|mul)ph"),
    "float16 on AVX-512": (chain, HALF[:1], "cpu:sapphirerapids", r"ph\s+%zmm", r"vcvtph2ps"),
    "float16 on NEON": (chain, HALF[:1], "cpu:neoverse-n1", r"\bv\d+\.8h", r"fcvtl"),
    "exp2 on NEON": (dd.exp, SINGLE[:1], "cpu:neoverse-n1", r"fmla\s+v\d+\.4s", r"\bbl\s"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_instructions_are_those_of_the_chip(name):
    function, arrays, target, wanted, unwanted = CASES[name]
    precision = "strict" if name.startswith("float16") else "fast"
    text = dd.compile(function, *arrays, target=target, precision=precision).ir("text")
    assert re.search(wanted, text), text
    assert not re.search(unwanted, text), text


@pytest.mark.parametrize("target", OTHERS)
def test_a_program_for_another_cpu_is_saved_and_not_run(target, tmp_path):
    exe = dd.compile(matmul, *SINGLE, target=target)
    for call in (exe, exe.simulate, exe.profile):
        with pytest.raises(TargetError, match=f"{target}: code for another CPU"):
            call(*SINGLE)
    with pytest.raises(TargetError, match="code for another CPU"):
        dd.compile(matmul, *SINGLE, target=target, search=dd.Search(candidates=1))
    exe.save(tmp_path / "product")
    again = dd.load(tmp_path / "product")
    assert again.target == target
    assert again.ir("text") == exe.ir("text")


# Sums of products of bytes take pairs: odd sizes, sizes below a tile, and the largest products.
SHAPES = [(1, 1, 1), (1, 7, 16), (5, 9, 33), (6, 64, 16), (7, 65, 48), (64, 64, 64), (2, 1, 32)]


KINDS = ("int8", "uint8", "int16")


@pytest.mark.parametrize("kinds", [(x, y) for x in KINDS for y in KINDS])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_bytes_are_exact(shape, kinds):
    m, k, n = shape
    rng = np.random.default_rng(m * k * n)

    def ends(size, kind):
        return rng.choice([np.iinfo(kind).min, np.iinfo(kind).max, 1], size).astype(kind)

    x, y = ends((m, k), kinds[0]), ends((k, n), kinds[1])
    expected = (x.astype(np.int64) @ y.astype(np.int64)).astype(np.int32)  # int32 wraps
    for precision in ("fast", "strict"):
        result = dd.compile(byte_product, x, y, precision=precision)(x, y)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_weights_of_bytes_stay_bytes(rows):
    rng = np.random.default_rng(rows)
    x, w = (rng.integers(-128, 128, size).astype(np.int8) for size in ((rows, 256), (96, 256)))
    weight = dd.asarray(w)
    exe = dd.compile(lambda x: dd.matmul(x.astype("int32"), weight.astype("int32").mT), x)
    np.testing.assert_array_equal(exe(x), x.astype(np.int32) @ w.astype(np.int32).T)
    assert all(array.dtype == np.int8 for array in exe.resident.values())


def beside_another(x, y, z):
    """Two sums in one loop, of which one takes pairs."""
    wide = x.astype("int32")[:, :, None]
    return (wide * y.astype("int32")[None]).sum(1), (wide * z[None]).sum(1)


PRODUCTS = {
    "a product": (byte_product, ((7, 11), "int8"), ((11, 24), "uint8")),
    "beside another": (beside_another, ((7, 11), "int8"), ((11, 24), "int8"), ((11, 24), "int32")),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_bytes_under_random_schedules(name):
    function, *specs = PRODUCTS[name]
    graph = dd.trace(function, *(dd.spec(shape, kind) for shape, kind in specs))
    kernels = subjects_of(graph, "cpu", "fast")
    drawn = draw_schedules(kernels, np.random.default_rng(1), 40)
    assert [kernels[n].judge(schedule) for n, schedule in drawn] == [""] * len(drawn)
