"""Modules, checkpoints, and BERT against the same model in numpy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import dodeca as dd
import ml_dtypes
import numpy as np
import pytest
from dodeca import nn
from dodeca.models.bert import Bert, Config
from safetensors.numpy import save_file

RNG = np.random.default_rng(9)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run(function: Any, *arrays: np.ndarray) -> Any:
    return dd.trace(function, *arrays).interpret(*arrays)


def values(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.numpy().astype(np.float64) for name, p in module.parameters().items()}


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_linear_has_the_layout_of_torch() -> None:
    layer, x = nn.Linear(5, 7), normal(2, 3, 5)
    p = values(layer)
    assert p["weight"].shape == (7, 5) and layer.weight.dtype == dd.float32
    np.testing.assert_allclose(run(layer, x), x @ p["weight"].T + p["bias"], rtol=1e-5, atol=1e-6)
    assert "bias" not in nn.Linear(5, 7, bias=False).parameters()


def test_parameters_have_dotted_names() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.table = nn.Embedding(10, 4)
            self.blocks = [nn.Linear(4, 4), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 20))]
            self.scale = dd.asarray(normal(20))
            self.eps = 1e-5

        def forward(self, ids: dd.Tensor) -> dd.Tensor:
            x = self.table(ids)
            for block in self.blocks:
                x = block(x)
            return x * self.scale

    model = Model()
    names = [
        "table.weight",
        "blocks.0.weight",
        "blocks.0.bias",
        "blocks.1.0.weight",
        "blocks.1.0.bias",
    ]
    assert list(model.parameters()) == [*names, "blocks.1.1.weight", "blocks.1.1.bias", "scale"]
    graph = dd.trace(model, dd.spec((3,), "int64"))
    assert list(graph.weights) == ["table.weight", "blocks.1.1.weight", "blocks.1.1.bias", "scale"]
    assert graph.inputs[0].name == "ids"


def test_load_state() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 5))
    state = {name: np.full(p.shape, 2.0, np.float32) for name, p in model.parameters().items()}
    model.load_state(state)
    assert all((v == 2).all() for v in values(model).values())
    np.testing.assert_allclose(run(model, np.ones((1, 5), np.float32)), np.full((1, 5), 98.0))
    wrong = dict(state)
    wrong["2.weight"] = wrong.pop("0.weight")
    with pytest.raises(dd.Error, match=r"load_state: missing 0\.weight; unexpected 2\.weight"):
        model.load_state(wrong)
    model.load_state(wrong, strict=False)
    with pytest.raises(
        dd.ShapeError, match=r"load_state: 0\.weight has shape \(5, 4\), expected \(4, 5\)"
    ):
        model.load_state({**state, "0.weight": normal(5, 4)})
    half = {name: v.astype(ml_dtypes.bfloat16) for name, v in state.items()}
    model.load_state(half)
    assert model.parameters()["0.weight"].dtype == dd.bfloat16
    with pytest.raises(dd.Error, match="Module defines no forward"):
        nn.Module()(1)


def test_layers_against_numpy() -> None:
    x = normal(2, 3, 8)
    norm = nn.LayerNorm(8)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(run(norm, x), expected, rtol=1e-5, atol=1e-6)
    root = nn.RMSNorm((3, 8))
    expected = wide / np.sqrt((wide**2).mean((-1, -2), keepdims=True) + 1e-6)
    np.testing.assert_allclose(run(root, x), expected, rtol=1e-5, atol=1e-6)
    conv = nn.Conv2d(2, 4, (3, 1), stride=2, padding=1, groups=2)
    assert run(conv, normal(1, 2, 8, 9)).shape == (1, 4, 4, 6)
    table = nn.Embedding(10, 4)
    ids = np.array([[1, 2], [9, -1]])
    np.testing.assert_array_equal(run(table, ids), table.weight.numpy()[ids])


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention(causal: bool) -> None:
    layer, x, context = nn.MultiHeadAttention(8, 2), normal(2, 5, 8), normal(2, 3, 8)
    p = values(layer)
    source = x if causal else context

    def heads(name: str, y: np.ndarray) -> np.ndarray:
        projected = y @ p[f"{name}.weight"].T + p[f"{name}.bias"]
        return projected.reshape(2, -1, 2, 4).transpose(0, 2, 1, 3)

    scores = heads("q_proj", x) @ heads("k_proj", source).swapaxes(-1, -2) / 2
    if causal:
        scores = np.where(np.tril(np.ones((5, 5), bool)), scores, -np.inf)
    mixed = (softmax(scores) @ heads("v_proj", source)).transpose(0, 2, 1, 3).reshape(2, 5, 8)
    expected = mixed @ p["out_proj.weight"].T + p["out_proj.bias"]
    if causal:
        got = run(lambda v: layer(v, causal=True), x)
    else:
        got = run(lambda v, c: layer(v, context=c), x, context)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_attention_masks() -> None:
    q, k, v = normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 6)
    keep = RNG.random((2, 1, 5)) > 0.3
    keep[..., 0] = True
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / 2
    attend = nn.scaled_dot_product_attention
    expected = softmax(np.where(keep, scores, -np.inf)) @ v
    np.testing.assert_allclose(run(attend, q, k, v, keep), expected, rtol=1e-5, atol=1e-6)
    added = np.where(keep, 0, -1e9).astype(np.float32)
    np.testing.assert_allclose(run(attend, q, k, v, added), expected, rtol=1e-5, atol=1e-6)


# --- safetensors --------------------------------------------------------------------------------


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {
        "a.weight": normal(5, 6),
        "half": normal(20).astype(ml_dtypes.bfloat16),
        "bytes": np.arange(33, dtype=np.uint8),
        "odd": normal(20).astype(np.float16),
        "mask": RNG.random(40) > 0.5,
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(7, np.int64),
    }
    save_file(arrays, path, metadata={"format": "pt"})
    loaded = dd.safetensors.load(path)
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert loaded[name].numpy().dtype == array.dtype
        np.testing.assert_array_equal(loaded[name].numpy(), array)
    assert loaded["a.weight"].name == "a.weight"
    graph = dd.trace(lambda x: x @ loaded["a.weight"], dd.spec((5,)))
    np.testing.assert_allclose(graph.interpret(normal(5) * 0), np.zeros(6))
    broken = tmp_path / "broken.safetensors"
    for content in (path.read_bytes()[:-7], b"garbage" * 9, b"", b"\xff" * 8):
        broken.write_bytes(content)
        with pytest.raises(dd.ParseError, match=r"broken\.safetensors: not a safetensors file"):
            dd.safetensors.load(broken)
    with pytest.raises(dd.ParseError, match=r"absent\.safetensors"):
        dd.safetensors.load(tmp_path / "absent.safetensors")
    save_file({"x": np.zeros(3, np.uint16)}, broken)
    with pytest.raises(dd.DtypeError, match=r"broken\.safetensors: x is U16"):
        dd.safetensors.load(broken)


# --- BERT ---------------------------------------------------------------------------------------

SMALL = Config(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=24,
    max_position_embeddings=16,
)


def bert_in_numpy(p: dict[str, np.ndarray], ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + SMALL.layer_norm_eps)
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], 3, 4).transpose(0, 2, 1, 3)

    e = "embeddings"
    x = p[f"{e}.word_embeddings.weight"][ids] + p[f"{e}.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + p[f"{e}.token_type_embeddings.weight"][0], f"{e}.LayerNorm")
    for i in range(SMALL.num_hidden_layers):
        name = f"encoder.layer.{i}"
        q, k, v = (
            heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(-1, -2) / 2 + (1 - mask)[:, None, None, :] * -1e9
        mixed = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(
            linear(mixed, f"{name}.attention.output.dense") + x,
            f"{name}.attention.output.LayerNorm",
        )
        h = linear(x, f"{name}.intermediate.dense")
        h = h * 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
        x = norm(linear(h, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")
    return x


def test_bert_against_numpy() -> None:
    nn.seed(4)
    model = Bert(SMALL)
    ids = RNG.integers(0, 50, (2, 7))
    mask = np.array([[1] * 7, [1, 1, 1, 1, 0, 0, 0]])
    expected = bert_in_numpy(values(model), ids, mask)
    np.testing.assert_allclose(run(model, ids, mask), expected, rtol=1e-4, atol=1e-4)
    shape = (dd.Dim("batch", 1, 4), dd.Dim("length", 1, 16))
    graph = dd.trace(model, dd.spec(shape, "int64"), dd.spec(shape, "int64"))
    np.testing.assert_allclose(graph.interpret(ids, mask), expected, rtol=1e-4, atol=1e-4)
    pooled = (expected * mask[..., None]).sum(1) / mask.sum(1)[:, None]
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    got = run(model.sentence_embedding, ids, mask)
    np.testing.assert_allclose(got, pooled, rtol=1e-4, atol=1e-5)
    with pytest.raises(dd.ShapeError, match="17 tokens, but positions only for 16"):
        dd.trace(model, dd.spec((1, 17), "int64"), dd.spec((1, 17), "int64"))


def test_bert_from_a_folder(tmp_path: Path) -> None:
    model = Bert(SMALL)
    state = {f"bert.{name}": p.numpy() for name, p in model.parameters().items()}
    extra = {"bert.pooler.dense.bias": normal(12), "bert.embeddings.position_ids": np.arange(16)}
    save_file({**state, **extra}, tmp_path / "model.safetensors")
    fields = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    (tmp_path / "config.json").write_text(json.dumps({**fields, "model_type": "bert"}))
    again = Bert.from_folder(tmp_path)
    ids, mask = np.array([[3, 4, 5]]), np.ones((1, 3), np.int64)
    np.testing.assert_array_equal(run(again, ids, mask), run(model, ids, mask))
    del state["bert.encoder.layer.1.output.dense.bias"]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(dd.Error, match=r"missing encoder\.layer\.1\.output\.dense\.bias"):
        Bert.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**fields, "hidden_act": "relu"}))
    with pytest.raises(dd.Error, match="relu"):
        Bert.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(dd.ParseError, match=r"config\.json"):
        Bert.from_folder(tmp_path)
