"""Tracing: structure, weights, locations, dynamic sizes, interning, modules from text."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any, NamedTuple

import dodeca as dd
import numpy as np
import pytest
from dodeca.dialect.verifier import verify
from dodeca.tensor import _NODES

seq, batch = dd.Dim("seq", 1, 64), dd.Dim("batch", 1, 8)
RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_equal_expressions_are_one_node() -> None:
    x, y = dd.Tensor(normal(5, 5)), dd.Tensor(normal(5, 5))
    assert (x + y) is (x + y) and (x + y) is not (y + x)
    assert (x * 0.0) is not (x * -0.0)
    assert dd.pad(x, 1, float("nan")) is dd.pad(x, 1, float("nan"))
    assert x.T.T is x and x.reshape(25).reshape(5, 5) is x
    gc.collect()
    before = len(_NODES)
    made = [dd.exp(x * float(i)) for i in range(20)]
    assert len(_NODES) > before
    del made
    gc.collect()
    assert len(_NODES) <= before


def test_inputs_come_first_and_then_the_weights() -> None:
    big, named = normal(4, 5), dd.Tensor(normal(5, 6), name="head")
    small = np.ones(4, np.float32)

    def f(x: dd.Tensor) -> dd.Tensor:
        return ((x + small) @ big @ named) + (big @ named).sum()

    graph = dd.trace(f, dd.spec((3, 4)))
    assert list(graph.weights) == ["w0", "head"]
    assert graph.weights["w0"] is big
    header = next(line for line in str(graph).splitlines() if "func.func" in line)
    assert '%arg0: tensor<3x4xf32> {dodeca.name = "x"}, %arg1: tensor<4x5xf32>' in header
    assert '%arg1: tensor<4x5xf32> {dodeca.weight = "w0"}' in header
    assert '%arg2: tensor<5x6xf32> {dodeca.weight = "head"}' in header
    x = normal(3, 4)
    head = named.numpy()
    np.testing.assert_allclose(
        graph.interpret(x), (x + small) @ big @ head + (big @ head).sum(), rtol=1e-4, atol=1e-4
    )


def test_names_of_weights_are_unique() -> None:
    a, b = (dd.Tensor(normal(4, 5), name="w") for _ in range(2))
    graph = dd.trace(lambda x: x @ a.mT + x @ b.mT, dd.spec((5,)))
    assert list(graph.weights) == ["w", "w_1"]
    array = normal(4, 5)
    twice = dd.trace(
        lambda x: x + dd.Tensor(array, name="p") + dd.Tensor(array, name="q"), dd.spec((4, 5))
    )
    assert list(twice.weights) == ["p"]


def test_specs_take_names_from_the_function() -> None:
    graph = dd.trace(lambda left, right: left + right, dd.spec((2,)), dd.spec((2,), name="other"))
    assert [s.name for s in graph.inputs] == ["left", "other"]
    assert [str(s) for s in graph.inputs] == ["float32 (2,)", "float32 (2,)"]
    array = np.ones((2, 3), np.int8)
    assert dd.trace(lambda x: x, array).inputs[0].dtype == dd.int8


class Pair(NamedTuple):
    first: Any
    second: Any


def test_the_structure_of_the_results_is_kept() -> None:
    x = np.arange(3, dtype=np.float32)
    spec = dd.spec((3,))
    assert isinstance(dd.trace(lambda v: v, spec).interpret(x), np.ndarray)
    a, b = dd.trace(lambda v: (v, v + 1), spec).interpret(x)
    np.testing.assert_array_equal(b, a + 1)
    nested = dd.trace(lambda v: {"a": [v, (v * 2,)], "b": Pair(v, v)}, spec)
    assert nested.output_tree == {"a": [0, (1,)], "b": Pair(2, 3)}
    got = nested.interpret(x)
    np.testing.assert_array_equal(got["a"][1][0], x * 2)
    assert isinstance(got["b"], Pair) and isinstance(got["a"], list)


def test_identity_unused_inputs_and_no_inputs() -> None:
    x = np.arange(3, dtype=np.float32)
    identity = dd.trace(lambda v: v, dd.spec((3,)))
    assert '"dodeca.' not in str(identity)
    np.testing.assert_array_equal(identity.interpret(x), x)
    unused = dd.trace(lambda v, w: w, dd.spec((3,)), dd.spec((3,)))
    np.testing.assert_array_equal(unused.interpret(x, x + 1), x + 1)
    np.testing.assert_array_equal(dd.trace(lambda: dd.ones(2)).interpret(), [1, 1])
    array = normal(20)
    np.testing.assert_array_equal(dd.trace(lambda: dd.Tensor(array)).interpret(), array)


def test_inputs_of_another_trace_are_refused() -> None:
    kept: list[dd.Tensor] = []
    dd.trace(lambda v: kept.append(v) or v, dd.spec((3,)))
    with pytest.raises(dd.Error, match="an input of another trace"):
        dd.trace(lambda v: v + kept[0], dd.spec((3,)))


def test_locations_are_lines_of_the_user() -> None:
    def f(x: dd.Tensor) -> dd.Tensor:
        y = x + 1
        return dd.gelu(y) @ dd.ones((3, 3))

    first = f.__code__.co_firstlineno
    text = dd.trace(f, dd.spec((2, 3))).module.operation.get_asm(enable_debug_info=True)
    places = re.findall(r'loc\("([^"]*)":(\d+):(\d+)\)', text)
    assert {name for name, _, _ in places} == {__file__}
    assert {int(line) for _, line, _ in places} == {first + 1, first + 2}
    assert f'"{__file__}":{first + 1}:13' in text  # x + 1 begins in column 13


def test_a_broken_module_names_the_line() -> None:
    graph = dd.trace(lambda x: dd.exp2(x), dd.spec((2,)))
    verify(graph.module)
    text = str(graph).replace(
        '"dodeca.exp2"(%arg0) : (tensor<2xf32>) -> tensor<2xf32>',
        '"dodeca.exp2"(%arg0) : (tensor<2xf32>) -> tensor<3xf32>',
    )
    text = text.replace("-> tensor<2xf32> {", "-> tensor<3xf32> {").replace(
        "return %0 : tensor<2xf32>", "return %0 : tensor<3xf32>"
    )
    with pytest.raises(dd.VerifyError, match="exp2"):
        dd.Graph.from_mlir(text)


# --- dynamic sizes ------------------------------------------------------------------------------


def attention(q: dd.Tensor, k: dd.Tensor, v: dd.Tensor) -> dd.Tensor:
    return dd.softmax(q @ k.mT * 0.5) @ v


def test_dynamic_attention_and_layer_norm() -> None:
    w, b = normal(8), normal(8)

    def f(q: dd.Tensor, k: dd.Tensor) -> dd.Tensor:
        return dd.layer_norm(attention(q, k, k), w, b)

    graph = dd.trace(f, dd.spec((batch, seq, 8)), dd.spec((batch, 5, 8)))
    assert graph.dims == (batch, seq)
    assert "tensor<?x?x8xf32>" in str(graph) and str(graph).count("tensor.dim") == 2
    q, k = normal(2, 3, 8), normal(2, 5, 8)
    fixed = dd.trace(f, q, k)
    np.testing.assert_allclose(graph.interpret(q, k), fixed.interpret(q, k), rtol=1e-6)


FUNCTIONS: list[tuple[str, Any]] = [
    ("mean", lambda x: x.mean(1)),
    ("mean of all", lambda x: x.mean()),
    ("var", lambda x: x.var(1, correction=1)),
    ("logsumexp", lambda x: dd.logsumexp(x, 1)),
    ("argmax", lambda x: dd.argmax(x, 1)),
    ("min", lambda x: x.min((0, 1))),
    ("cumsum", lambda x: dd.cumsum(x, 1)),
    ("sort", lambda x: dd.sort(x, 1)),
    ("flip", lambda x: dd.flip(x, 1)),
    ("last", lambda x: x[:, -1]),
    ("first", lambda x: x[:, 0]),
    ("heads", lambda x: x.reshape(x.shape[0], x.shape[1], 2, 2).permute(0, 2, 1, 3)),
    ("back", lambda x: x.permute(1, 0, 2).reshape(x.shape[1], -1, 4)),
    ("positions", lambda x: x + dd.Tensor(POSITIONS)[: x.shape[1]]),
    ("arange", lambda x: x[..., 0] + dd.arange(x.shape[1])),
    ("zeros", lambda x: dd.zeros_like(x) + dd.ones((x.shape[1], 1))),
    ("causal", lambda x: dd.nn.scaled_dot_product_attention(x, x, x, causal=True)),
    ("outer sum", lambda x: x[:, :, None, 0] + x[:, None, :, 0]),
    ("einsum", lambda x: dd.einsum("bsd,btd->bst", x, x)),
    ("take", lambda x: dd.take(x, np.array([0, -1]), axis=1)),
    ("concat", lambda x: dd.concat([x, x * 2], axis=2)),
    ("tril", lambda x: dd.tril(x @ x.mT)),
    ("where", lambda x: dd.where(x > 0, x, -1.0)),
    ("tanh", lambda x: dd.tanh(x)),
    ("expand", lambda x: dd.expand_dims(x, 1).squeeze(1)),
    ("split", lambda x: dd.split(x, 2, axis=2)[1]),
]
POSITIONS = normal(64, 4)


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[f[0] for f in FUNCTIONS])
def test_dynamic_sizes_give_what_fixed_ones_give(name: str, function: Any) -> None:
    graph = dd.trace(function, dd.spec((batch, seq, 4)))
    assert "?" in str(graph)
    for shape in ((2, 5, 4), (1, 1, 4)):
        x = normal(*shape)
        fixed = dd.trace(function, x).interpret(x)
        got = graph.interpret(x)
        assert got.shape == fixed.shape and got.dtype == fixed.dtype
        np.testing.assert_allclose(got, fixed, rtol=1e-6, atol=1e-6)


def test_dims_are_equal_by_name() -> None:
    assert seq == dd.Dim("seq", 1, 64) and seq != batch and seq != 5 and len({seq, batch}) == 2


# --- modules from text --------------------------------------------------------------------------


def test_a_module_survives_printing(tmp_path: Path) -> None:
    w = dd.Tensor(normal(3, 7), name="w")
    graph = dd.trace(lambda x: (x @ w, x.sum()), dd.spec((2, 3)))
    x = normal(2, 3)
    again = dd.Graph.from_mlir(str(graph), weights=graph.weights)
    for got, expected in zip(again.interpret(x), graph.interpret(x), strict=True):
        np.testing.assert_array_equal(got, expected)
    path = tmp_path / "graph.mlir"
    path.write_text(str(graph))
    assert dd.Graph.from_mlir(path).inputs == (dd.spec((2, 3), name="x"),)
    assert dd.Graph.from_mlir(str(path)).inputs[0].shape == (2, 3)


def test_malformed_text_names_the_place(tmp_path: Path) -> None:
    text = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %y : tensor<4xf32>\n}"
    with pytest.raises(dd.ParseError, match=r"<text>:2:10: .*undeclared"):
        dd.Graph.from_mlir(text)
    path = tmp_path / "bad.mlir"
    path.write_text(text)
    with pytest.raises(dd.ParseError, match=r"bad\.mlir:2:10: "):
        dd.Graph.from_mlir(path)
    with pytest.raises(dd.ParseError, match=r"nothing\.mlir: cannot be read"):
        dd.Graph.from_mlir(tmp_path / "nothing.mlir")
    with pytest.raises(dd.ParseError, match=r"the module has no func\.func"):
        dd.Graph.from_mlir("module {\n}")


# --- compiling ----------------------------------------------------------------------------------


def test_compile_gives_what_the_interpreter_gives() -> None:
    w = normal(8, 20)
    graph = dd.trace(lambda x: {"y": dd.softmax(x @ w)}, dd.spec((3, 8)))
    x = normal(3, 8)
    for made in (dd.compile(graph, threads=1), dd.jit(lambda v: {"y": dd.softmax(v @ w)})):
        np.testing.assert_allclose(made(x)["y"], graph.interpret(x)["y"], rtol=1e-5, atol=1e-6)


def test_compile_specialises_for_sizes() -> None:
    exe = dd.compile(lambda x: x.sum(1), dd.spec((seq, 4)))
    for size in (2, 5, 2):
        x = normal(size, 4)
        np.testing.assert_allclose(exe(x), x.sum(1), rtol=1e-5, atol=1e-6)
    assert len(exe.executables) == 2
    with pytest.raises(dd.ArgumentError, match="the size seq is 65, expected 1 to 64"):
        exe(normal(65, 4))
    with pytest.raises(dd.ArgumentError, match="the size seq is None"):
        exe.specialise()


def test_values_of_expressions_without_inputs() -> None:
    x = dd.Tensor(np.arange(20, dtype=np.float32))
    np.testing.assert_array_equal((x + 1).numpy(), np.arange(20) + 1)
    assert int(x.sum()) == 190 and float(x[3]) == 3.0 and bool((x > -1).all())
    assert [0, 1, 2][dd.asarray(2)] == 2 and dd.ones((2, 3)).numpy().shape == (2, 3)
    np.testing.assert_array_equal(np.asarray(x, np.int32), np.arange(20))
