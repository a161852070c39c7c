"""What is measured: a case is an operation on arrays, with numpy's float64 result as the judge.

    >>> case = build("softmax_4096x1024")          # any sizes; the usual ones are in CASES
    >>> case.operation, case.inputs["x"].shape
    ('softmax', (4096, 1024))

`inputs` are arguments of every call; `weights` are constants, which a compiler may arrange anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import networks
import numpy as np
from formulas import Formulas, exact_erf

Arrays = dict[str, np.ndarray]
CASES = (
    "matmul_256x256x256",
    "matmul_512x512x512",
    "matmul_1024x1024x1024",
    "matmul_2048x2048x2048",
    "int8matmul_1024x1024x1024",
    "bf16matmul_1024x1024x1024",
    "linear_1x768x3072",
    "mlp_128x384x1536",
    "attention_12x512x64",
    "attention_12x2048x64",
    "decode_32x4096x128",
    "softmax_4096x1024",
    "layernorm_4096x768",
    "crossentropy_1024x32000",
    "gelu_4194304",
    "transpose_4096x4096",
    "conv2d_64x56x56",
    "conv2d_128x28x28",
    "conv2d_256x14x14",
    "conv2d_512x7x7",
    "depthwise_96x112x112",
    "depthwise_144x56x56",
    "minilm_1x128",
    "minilm_8x128",
    "efficientnet_1x224x224",
)
MODELS = ("minilm", "efficientnet")  # operations that are a whole model
RELATIVE = 1e-4  # the largest error of sums in float32, by the reference's largest magnitude


@dataclass(frozen=True)
class Case:
    """One row of the table; `dtype` is the result's."""

    name: str
    operation: str
    inputs: Arrays
    weights: Arrays = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype:
        kinds = {"int8matmul": np.int32, "bf16matmul": ml_dtypes.bfloat16}
        return np.dtype(kinds.get(self.operation, np.float32))


def build(name: str) -> Case:
    """The case of a name such as matmul_256x256x256, its arrays the same in every process.

    SystemExit for what is not a case; MissingWeights where a model's are not installed.
    """
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


def integers(*shape: int, low: int, high: int, dtype: Any, seed: int = 0) -> np.ndarray:
    """Numbers from `low` to below `high`."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def _matmul(m: int, k: int, n: int) -> tuple[Arrays, Arrays]:
    return {"a": normal(m, k), "b": normal(k, n, seed=1, scale=k**-0.5)}, {}


def _bf16matmul(m: int, k: int, n: int) -> tuple[Arrays, Arrays]:
    inputs, _ = _matmul(m, k, n)
    return {name: a.astype(ml_dtypes.bfloat16) for name, a in inputs.items()}, {}


def _int8matmul(m: int, k: int, n: int) -> tuple[Arrays, Arrays]:
    full = {"low": -128, "high": 128, "dtype": np.int8}
    return {"a": integers(m, k, **full), "b": integers(k, n, **full, seed=1)}, {}


def _linear(m: int, k: int, n: int) -> tuple[Arrays, Arrays]:
    weights = {"w": normal(n, k, seed=1, scale=k**-0.5), "b": normal(n, seed=2)}
    return {"x": normal(m, k)}, weights


def _mlp(m: int, k: int, n: int) -> tuple[Arrays, Arrays]:
    up = {"w1": normal(n, k, seed=1, scale=k**-0.5), "b1": normal(n, seed=2)}
    down = {"w2": normal(k, n, seed=3, scale=n**-0.5), "b2": normal(k, seed=4)}
    return {"x": normal(m, k)}, up | down


def _attention(heads: int, length: int, width: int) -> tuple[Arrays, Arrays]:
    return {name: normal(heads, length, width, seed=i) for i, name in enumerate("qkv")}, {}


def _decode(heads: int, length: int, width: int) -> tuple[Arrays, Arrays]:
    inputs, _ = _attention(heads, length, width)
    return inputs | {"q": inputs["q"][:, :1].copy()}, {}


def _crossentropy(rows: int, classes: int) -> tuple[Arrays, Arrays]:
    labels = integers(rows, low=0, high=classes, dtype=np.int64, seed=1)
    return {"x": normal(rows, classes, scale=3), "labels": labels}, {}


def _conv2d(channels: int, rows: int, columns: int) -> tuple[Arrays, Arrays]:
    scale = (9 * channels) ** -0.5
    weights = {"w": normal(channels, channels, 3, 3, seed=1, scale=scale)}
    return {"x": normal(1, channels, rows, columns)}, weights


def _depthwise(channels: int, rows: int, columns: int) -> tuple[Arrays, Arrays]:
    weights = {"w": normal(channels, 1, 3, 3, seed=1, scale=1 / 3)}
    return {"x": normal(1, channels, rows, columns)}, weights


def _minilm(batch: int, length: int) -> tuple[Arrays, Arrays]:
    ids = integers(batch, length, low=1000, high=30000, dtype=np.int64, seed=5)
    return {"ids": ids, "mask": np.ones((batch, length), np.int64)}, networks.minilm_state()


def _efficientnet(batch: int, rows: int, columns: int) -> tuple[Arrays, Arrays]:
    return {"x": normal(batch, 3, rows, columns)}, networks.efficientnet_state()


MAKERS: dict[str, Callable[..., tuple[Arrays, Arrays]]] = {
    "matmul": _matmul,
    "int8matmul": _int8matmul,
    "bf16matmul": _bf16matmul,
    "linear": _linear,
    "mlp": _mlp,
    "attention": _attention,
    "decode": _decode,
    "softmax": lambda m, n: ({"x": normal(m, n, scale=3)}, {}),
    "layernorm": lambda m, n: (
        {"x": normal(m, n)},
        {"w": normal(n, seed=1, scale=0.1) + np.float32(1), "b": normal(n, seed=2)},
    ),
    "crossentropy": _crossentropy,
    "gelu": lambda n: ({"x": normal(n)}, {}),
    "transpose": lambda m, n: ({"x": normal(m, n)}, {}),
    "conv2d": _conv2d,
    "depthwise": _depthwise,
    "minilm": _minilm,
    "efficientnet": _efficientnet,
}

# Over the functions of any library (formulas.py); v has the arrays by name.
OPERATIONS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "matmul": lambda f, v: v["a"] @ v["b"],
    "int8matmul": lambda f, v: f.wide_product(v["a"], v["b"]),
    "bf16matmul": lambda f, v: f.rounded_product(v["a"], v["b"]),
    "linear": lambda f, v: f.linear(v["x"], v["w"], v["b"]),
    "mlp": lambda f, v: f.linear(f.gelu(f.linear(v["x"], v["w1"], v["b1"])), v["w2"], v["b2"]),
    "attention": lambda f, v: f.attention(v["q"], v["k"], v["v"]),
    "decode": lambda f, v: f.attention(v["q"], v["k"], v["v"]),
    "softmax": lambda f, v: f.softmax(v["x"]),
    "layernorm": lambda f, v: f.layer_norm(v["x"], v["w"], v["b"], 1e-5),
    "crossentropy": lambda f, v: f.cross_entropy(v["x"], v["labels"]),
    "gelu": lambda f, v: f.gelu(v["x"] * 1.25 + 0.5) * 0.75,
    "transpose": lambda f, v: f.transpose(v["x"]),
    "conv2d": lambda f, v: f.conv(v["x"], v["w"], 1, ((1, 1), (1, 1)), 1),
    "depthwise": lambda f, v: f.conv(v["x"], v["w"], 1, ((1, 1), (1, 1)), len(v["w"])),
    "minilm": lambda f, v: networks.minilm(f, v["ids"], v["mask"], v),
    "efficientnet": lambda f, v: networks.efficientnet(f, v["x"], v),
}


# --- the judge ----------------------------------------------------------------------------------


def reference(case: Case) -> np.ndarray:
    """The result of a case in float64; an integer one exactly."""
    arrays = {
        name: a if np.issubdtype(a.dtype, np.integer) else a.astype(np.float64)
        for name, a in (case.inputs | case.weights).items()
    }
    return np.asarray(OPERATIONS[case.operation](Formulas(np, exact_erf, np.float64), arrays))


def tolerance(dtype: np.dtype) -> float:
    """The error that a result of this dtype may have, by the reference's largest magnitude.

    Nothing for integers. For floats, what sums in float32 may lose; and for narrower ones a unit in
    the last place, for the one rounding of the result to a neighbour (not all libraries take the
    nearest).
    """
    if np.issubdtype(dtype, np.integer):
        return 0.0
    return RELATIVE + (float(ml_dtypes.finfo(dtype).eps) if dtype.itemsize < 4 else 0.0)


def compare(
    result: np.ndarray, expected: np.ndarray, given: str, wanted: np.dtype
) -> dict[str, Any]:
    """How far a result is off; `wrong` if its shape, dtype or numbers are not what was expected."""
    if result.shape != expected.shape:
        return {"wrong": f"shape {result.shape}, expected {expected.shape}"}
    if given != wanted.name:
        return {"wrong": f"dtype {given}, expected {wanted.name}"}
    a, b = result.astype(np.float64), expected.astype(np.float64)
    difference = float(np.abs(a - b).max())
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    facts: dict[str, Any] = {"difference": difference}
    facts["cosine"] = float((a * b).sum()) / norms if norms else 1.0
    if not difference <= tolerance(wanted) * float(np.abs(b).max()):  # a NaN is wrong too
        facts["wrong"] = f"wrong by {difference:.1e}"
    return facts
