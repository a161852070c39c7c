"""What a check of a device runs: small programs against the interpreter, and large ones for time.

    >>> case = CHECKS[0]
    >>> case.name, case.specs
    ('matmul f32', (((65, 34), 'float32'), ((34, 70), 'float32')))
    >>> case.arrays()[0].shape
    (65, 34)

A case's program is a function of the package `dodeca`, which is handed to it: the runtime itself
knows no frontend. `rival` names what other libraries have in its place (`device_rivals.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..dialect.dtypes import DTYPES

Specs = tuple[tuple[tuple[int, ...], str], ...]
Function = Callable[..., Any]
_BLOCK = 1 << 20  # random numbers that are drawn; larger arrays repeat them


@dataclass(frozen=True)
class Case:
    """A program and its inputs; `work` is operations or bytes of a call, for a rate."""

    name: str
    build: Callable[[Any], Function]  # of the package, the program
    specs: Specs
    tolerance: float = 1e-5  # of the largest magnitude; integers must be the same
    indices: dict[int, int] = field(default_factory=dict)  # inputs that are indices below a number
    work: float = 0.0
    unit: str = "TFLOP/s"
    rival: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # for the rival

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """Inputs: normal numbers, and small integers."""
        rng = np.random.default_rng(seed)
        return [
            _drawn(rng, shape, dtype, self.indices.get(position))
            for position, (shape, dtype) in enumerate(self.specs)
        ]


def _drawn(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, below: int | None
) -> np.ndarray:
    count, row = math.prod(shape), DTYPES[dtype]
    some = min(count, _BLOCK)
    if row.is_float:
        block = rng.standard_normal(some, np.float32).astype(row.numpy)
    else:
        low, high = (0, below) if below else (-100, 101)
        block = rng.integers(low, high, some).astype(row.numpy)
    return np.resize(block, shape)


# --- programs -----------------------------------------------------------------------------------


def _matmul(dd: Any) -> Function:
    return lambda a, b: a @ b


def _wide_matmul(dd: Any) -> Function:
    return lambda a, b: a.astype("int32") @ b.astype("int32")


def _attention(causal: bool) -> Callable[[Any], Function]:
    def build(dd: Any) -> Function:
        return lambda q, k, v: dd.nn.scaled_dot_product_attention(q, k, v, causal=causal)

    return build


def _softmax(dd: Any) -> Function:
    return lambda x: dd.softmax(x, axis=-1)


def _layer_norm(dd: Any) -> Function:
    return dd.layer_norm


def _cross_entropy(dd: Any) -> Function:
    def mean_loss(x: Any, labels: Any) -> Any:
        rows = dd.take_along_axis(x, labels[:, None], axis=-1)[:, 0]
        return dd.mean(dd.logsumexp(x, axis=-1) - rows)

    return mean_loss


def _elementwise(dd: Any) -> Function:
    return lambda x, y: dd.gelu(x) * y + x


def _transpose(dd: Any) -> Function:
    return lambda x: x.T


def _gather(dd: Any) -> Function:
    return lambda table, rows: dd.take(table, rows, axis=0)


def _scatter_add(dd: Any) -> Function:
    return lambda rows, x: dd.one_hot(rows, 20).mT @ x


def _conv2d(dd: Any) -> Function:
    return lambda x, w, b: dd.conv2d(x, w, b, padding=1)


def _several(dd: Any) -> Function:
    """Kernels that wait for each other: what a plan and its graph are for."""

    def layers(x: Any, w: Any, gain: Any, bias: Any) -> Any:
        for _ in range(2):
            x = dd.layer_norm(x + dd.relu(x @ w), gain, bias)
        return x - dd.max(x), dd.sum(x, axis=0)

    return layers


def _f(dtype: str, *shapes: tuple[int, ...]) -> Specs:
    return tuple((shape, dtype) for shape in shapes)


def _decode(dd: Any) -> Function:
    """A layer of a Llama for one token: (1, width), and caches of keys and values.

    `sin` is negative in its first half, so that a rotation is two products and a sum.
    """

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        return x * cos + dd.roll(x, int(x.shape[-1]) // 2, axis=-1) * sin

    def layer(x, keys, values, cos, sin, before, after, q, k, v, o, gate, up, down):
        groups, length, size = (int(n) for n in keys.shape)
        many = int(q.shape[1]) // (groups * size)
        inner = dd.rms_norm(x, before)
        query = rotated((inner @ q).reshape((groups, many, size)), cos, sin)
        key = rotated((inner @ k).reshape((groups, 1, size)), cos, sin)
        value = (inner @ v).reshape((groups, 1, size))
        last = (dd.arange(length) == length - 1)[:, None]  # the place of this token
        keys, values = dd.where(last, key, keys), dd.where(last, value, values)
        mixed = dd.softmax(query @ keys.mT * (1 / math.sqrt(size)), axis=-1) @ values
        x = x + mixed.reshape((1, groups * many * size)) @ o
        inner = dd.rms_norm(x, after)
        return x + (dd.silu(inner @ gate) * (inner @ up)) @ down, key, value

    return layer


def _llama(
    dtype: str, width: int, heads: int, groups: int, inner: int, length: int, tolerance: float
) -> Case:
    size = width // heads
    narrow = groups * size
    shapes = (
        (1, width), (groups, length, size), (groups, length, size), (size,), (size,),
        (width,), (width,), (width, width), (width, narrow), (width, narrow), (width, width),
        (width, inner), (width, inner), (inner, width),
    )  # fmt: skip
    specs = _f(dtype, *shapes)
    work = float(sum(math.prod(shape) for shape in shapes) * DTYPES[dtype].bytes)
    return Case(f"llama decode {dtype} {length}", _decode, specs, tolerance, work=work,
                unit="GB/s", rival="decode")  # fmt: skip


_HEADS = ((2, 20, 16), (2, 24, 16), (2, 24, 16))
_SQUARE = ((2, 20, 16),) * 3
CHECKS: tuple[Case, ...] = (
    Case("matmul f32", _matmul, _f("float32", (65, 34), (34, 70))),
    Case("matmul f16", _matmul, _f("float16", (65, 34), (34, 70)), 2e-3),
    Case("matmul bf16", _matmul, _f("bfloat16", (65, 34), (34, 70)), 2e-2),
    Case("matmul int8", _wide_matmul, _f("int8", (65, 34), (34, 70)), 0.0),
    Case("attention f32", _attention(False), _f("float32", *_HEADS)),
    Case("attention causal f16", _attention(True), _f("float16", *_SQUARE), 5e-3),
    Case("softmax f32", _softmax, _f("float32", (17, 150))),
    Case("layer norm f32", _layer_norm, _f("float32", (17, 150), (150,), (150,))),
    Case(
        "cross entropy f32", _cross_entropy, (((19, 50), "float32"), ((19,), "int64")),
        indices={1: 50},
    ),
    Case("elementwise f32", _elementwise, _f("float32", (40, 33), (40, 33))),
    Case("elementwise bf16", _elementwise, _f("bfloat16", (40, 33), (40, 33)), 2e-2),
    Case("transpose f32", _transpose, _f("float32", (70, 33)), 0.0),
    Case(
        "gather f32", _gather, (((20, 12), "float32"), ((30,), "int64")), 0.0, indices={1: 20}
    ),
    Case(
        "scatter add f32", _scatter_add, (((30,), "int64"), ((30, 12), "float32")),
        indices={0: 20},
    ),
    Case("conv2d f32", _conv2d, _f("float32", (2, 6, 9, 11), (8, 6, 3, 3), (8,))),
    Case("several kernels f32", _several, _f("float32", (24, 32), (32, 32), (32,), (32,)), 5e-5),
    _llama("float32", 64, 4, 2, 96, 20, 5e-5),
)  # fmt: skip


# --- for time -----------------------------------------------------------------------------------


def _gemm(n: int) -> Case:
    return Case(
        f"gemm bf16 {n}", _matmul, _f("bfloat16", (n, n), (n, n)), work=2.0 * n**3, rival="matmul"
    )


def _flash(size: int, length: int, causal: bool) -> Case:
    """16 heads; a causal one has half of the work."""
    heads = 16
    work = 4.0 * heads * length * length * size / (2 if causal else 1)
    words = f"attention f16 d{size} {length >> 10}k{' causal' if causal else ''}"
    specs = _f("float16", *((1, heads, length, size),) * 3)
    return Case(words, _attention(causal), specs, work=work, rival="attention",
                options={"causal": causal})  # fmt: skip


def _moved(
    name: str, build: Callable[[Any], Function], specs: Specs, arrays: int, rival: str
) -> Case:
    """A case that memory bounds: arrays of the first input's size that it must read and write."""
    (shape, dtype) = specs[0]
    work = float(arrays * math.prod(shape) * DTYPES[dtype].bytes)
    return Case(name, build, specs, work=work, unit="GB/s", rival=rival)


SPEEDS: tuple[Case, ...] = (
    _moved("elementwise f16 64M", _elementwise, _f("float16", *((8192, 8192),) * 2), 3, "gelu"),
    _moved("transpose f16 8192", _transpose, _f("float16", (8192, 8192)), 2, "transpose"),
    _moved("softmax f16 16384x4096", _softmax, _f("float16", (16384, 4096)), 2, "softmax"),
    _moved("layer norm f16 16384x4096", _layer_norm,
           _f("float16", (16384, 4096), (4096,), (4096,)), 2, "layer_norm"),
    _gemm(1024),
    _llama("bfloat16", 4096, 32, 8, 14336, 4096, 0.0),
    _gemm(4096),
    *(_flash(size, 2048, causal) for size in (64, 128) for causal in (False, True)),
    _gemm(8192),
    *(_flash(size, 8192, causal) for size in (64, 128) for causal in (False, True)),
    *(_flash(size, 16384, causal) for size in (64, 128) for causal in (False, True)),
)  # fmt: skip
