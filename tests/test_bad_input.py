"""Bad input ends in one clear message in the user's own terms, or just works."""

import re
from collections.abc import Callable
from pathlib import Path

import dodeca as dd
import numpy as np
import pytest
from dodeca.passes.targets import TARGETS
from dodeca.runtime import Executable
from safetensors.numpy import save_file

X = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def add() -> Executable:
    return dd.compile(lambda x, y: x + y, dd.spec((2, 3)), dd.spec((2, 3)))


WHILE_TRACING: dict[str, tuple[Callable, str]] = {
    "shapes that do not broadcast": (
        lambda: dd.trace(lambda a, b: a + b, dd.spec((2, 3)), dd.spec((4,))),
        "add: shapes (2, 3) and (4,) do not broadcast: 3 and 4 differ",
    ),
    "shapes that do not contract": (
        lambda: dd.trace(lambda a, b: a @ b, dd.spec((2, 3)), dd.spec((4, 5))),
        "matmul: shapes (2, 3) and (4, 5): 3 and 4 differ",
    ),
    "an unknown dtype": (
        lambda: dd.spec((2,), "float8"),
        "unknown dtype 'float8'; dodeca has float32, float16, bfloat16, float64, int8, uint8",
    ),
    "a negative size": (lambda: dd.spec((-1,)), "spec: the shape (-1,) has a negative size"),
    "too few specs": (
        lambda: dd.compile(lambda x: x),
        "0 specs do not fit <lambda>: missing a required argument: 'x'",
    ),
    "no result": (
        lambda: dd.trace(lambda x: None, dd.spec((2,))),
        "the result is None (NoneType); expected a Tensor, or a tuple, list or dict of Tensors",
    ),
    "an empty result": (
        lambda: dd.trace(lambda x: (), dd.spec((2,))),
        "trace: the function returns no Tensor",
    ),
    "an unknown target": (
        lambda: dd.compile(lambda x: x, dd.spec((2,)), target="cuda:sm_81"),
        f"unknown target 'cuda:sm_81'; did you mean 'cuda:sm_89'? (known: {', '.join(TARGETS)})",
    ),
    "a family of targets": (
        lambda: dd.compile(lambda x: x, dd.spec((2,)), target="hip"),
        "hip: AMD's driver (libamdhip64) is not on this machine; to compile for a GPU that is not "
        "here, name it (hip:gfx90a, hip:gfx942, hip:gfx950, hip:gfx1100, hip:gfx1201)",
    ),
    "a search": (
        lambda: dd.compile(lambda x: x, dd.spec((2,)), search=60),
        "search is a dd.Search or None, not 60",
    ),
    "no threads": (
        lambda: dd.compile(lambda x: x, dd.spec((2,)), threads=0),
        "threads: expected a whole number of at least 1, got 0",
    ),
}


@pytest.mark.parametrize("name", WHILE_TRACING)
def test_before_a_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dodeca.runtime.gpu._loads", lambda library: False)  # no driver is here
    act, message = WHILE_TRACING[name]
    with pytest.raises(dd.Error, match=re.escape(message)):
        act()


CALLS: dict[str, tuple[tuple, str]] = {
    "too few": ((X,), "expected 2 (x, y) arguments, got 1"),
    "too many": ((X, X, X), "expected 2 (x, y) arguments, got 3"),
    "another dtype": (
        (X, X.astype(np.float64)),
        "argument 1 ('y'): expected float32 (2, 3), got float64 (2, 3)",
    ),
    "another shape": (
        (X.T, X),
        "argument 0 ('x'): expected float32 (2, 3), got float32 (3, 2)",
    ),
    "no array": ((X, [[1, 2, 3]]), "argument 1 ('y'): expected float32 (2, 3), got list"),
}


@pytest.mark.parametrize("name", CALLS)
def test_in_a_call(name: str, add: Executable) -> None:
    arrays, message = CALLS[name]
    with pytest.raises(dd.Error, match=re.escape(message)):
        add(*arrays)


def test_arrays_that_are_not_contiguous_work(add: Executable) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((3, 2), np.float32).T, rng.random((4, 6), np.float32)[::2, ::2]
    np.testing.assert_array_equal(add(a, b), a + b)


def test_arrays_without_elements_work() -> None:
    twice = dd.compile(lambda x: x * 2, dd.spec((0, 3)))
    assert twice(np.ones((0, 3), np.float32)).shape == (0, 3)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dodeca.runtime.gpu._loads", lambda library: False)
    exe = dd.compile(lambda x: x + 1, dd.spec((2,)), target="cuda:sm_80")
    message = r"cuda:sm_80: NVIDIA's driver \(libcuda\) is not on this machine"
    with pytest.raises(dd.TargetError, match=message):
        exe(np.ones(2, np.float32))


# --- files --------------------------------------------------------------------------------------

HEAD = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
UNARY = "(tensor<4xf32>) -> tensor<4xf32>"
FILES: dict[str, tuple[str, str]] = {
    "malformed": (
        f'{HEAD}  %0 = "dodeca.exp2"(%x : {UNARY}\n}}\n',
        r"bad\.mlir:2:24: expected '\)' to end operand list",
    ),
    "cyclic": (
        f'{HEAD}  %0 = "dodeca.exp2"(%1) : {UNARY}\n'
        f'  %1 = "dodeca.exp2"(%0) : {UNARY}\n  return %1 : tensor<4xf32>\n}}\n',
        r"bad\.mlir:2:8: operand #0 does not dominate this use",
    ),
    "empty": ("", r"bad\.mlir: the module has no func\.func with a body"),
    "invalid": (
        f'{HEAD}  %0 = "dodeca.sum_reduce"(%x) {{axis = 3 : i64}} : {UNARY}\n'
        "  return %0 : tensor<4xf32>\n}\n",
        r"bad\.mlir:2:8: error: sum_reduce: axis 3 is outside tensor<4xf32>, which has rank 1",
    ),
    "foreign": (
        f"{HEAD}  %0 = math.exp %x : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}}\n",
        r"cannot compile math\.exp at .*bad\.mlir:2:8: not an operation of dodeca",
    ),
    "foreign with a block": (
        f"{HEAD}  %0 = tensor.generate {{\n  ^bb0(%i: index):\n"
        "    %c = arith.constant 0.0 : f32\n    tensor.yield %c : f32\n"
        "  } : tensor<4xf32>\n"
        f'  %1 = "dodeca.exp2"(%0) : {UNARY}\n  return %1 : tensor<4xf32>\n}}\n',
        r"cannot compile tensor\.generate at .*bad\.mlir:2:8: not an operation of dodeca",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_mlir_file(name: str, tmp_path: Path) -> None:
    text, message = FILES[name]
    (tmp_path / "bad.mlir").write_text(text)
    with pytest.raises(dd.Error, match=message):
        dd.compile(dd.Graph.from_mlir(tmp_path / "bad.mlir"))


def test_a_declaration_before_the_function_is_no_program() -> None:
    declared = "func.func private @g(tensor<4xf32>) -> tensor<4xf32>\n"
    text = f"{declared}{HEAD}  return %x : tensor<4xf32>\n}}"
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(dd.compile(dd.Graph.from_mlir(text))(x), x)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(dd.Error, match=r"nope\.mlir: cannot be read"):
        dd.Graph.from_mlir(tmp_path / "nope.mlir")


@pytest.mark.parametrize("keep", [0, 5, 60, 400])
def test_a_truncated_safetensors_file(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": np.ones(100, np.float32)}, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(dd.Error, match=r"weights\.safetensors: not a safetensors file"):
        dd.safetensors.load(path)
