"""Small programs that the tests of several stages share, with inputs that reach their edges."""

from collections.abc import Callable
from typing import Any, NamedTuple

import dodeca as dd
import numpy as np


class Program(NamedTuple):
    """A function of tensors, the specs of its inputs, and how close an answer must be."""

    fn: Callable[..., Any]
    specs: tuple[tuple[tuple[int, ...], str], ...]
    tolerance: float = 2e-5

    def graph(self) -> dd.Graph:
        return dd.trace(self.fn, *(dd.spec(shape, dtype) for shape, dtype in self.specs))

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [draw(rng, shape, dtype) for shape, dtype in self.specs]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = dd.dtype(dtype)
    if kind.is_float:
        return rng.standard_normal(shape).astype(kind.numpy)
    if kind.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0 if kind.kind == "uint" else -9, 10, shape).astype(kind.numpy)


def _f32(*shapes: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((shape, "float32") for shape in shapes)


def _attention(q, k, v):
    scores = q @ k.mT * 0.25
    return dd.softmax(scores, axis=-1) @ v


def _layer_norm_linear(x, gain, bias, w):
    return dd.layer_norm(x, gain, bias) @ w


def _rotated(x, q, k, c, s, keys):
    """Halves that change places: one term is an element of either half."""

    def rotate(x):
        a, b = x[..., :8], x[..., 8:]
        return dd.concat([a * c - b * s, b * c + a * s], axis=-1)

    query = rotate(dd.reshape(x @ q, (2, 2, 16)))
    return dd.concat([query @ keys.mT, query @ dd.reshape(x @ k, (2, 1, 16)).mT], axis=-1)


PROGRAMS: dict[str, Program] = {
    "rotated": Program(_rotated, _f32((1, 64), (64, 64), (64, 32), (8,), (8,), (2, 20, 16))),
    "matmul": Program(lambda a, b: a @ b, _f32((33, 17), (17, 19))),
    "matmul_batched": Program(lambda a, b: a @ b, _f32((3, 10, 12), (3, 12, 9))),
    "matvec": Program(lambda a, b: a @ b, _f32((40, 24), (24,))),
    "dot": Program(lambda a, b: a @ b, _f32((100,), (100,))),
    "gram": Program(lambda a: a @ a.T, _f32((9, 13))),
    "chain": Program(lambda a, b, c: a @ b @ c, _f32((8, 5), (5, 7), (7, 6))),
    "softmax": Program(lambda x: dd.softmax(x, axis=-1), _f32((5, 37))),
    "softmax_rows": Program(lambda x: dd.softmax(x, axis=0), _f32((13, 20))),
    "log_softmax": Program(lambda x: dd.log_softmax(x, axis=-1), _f32((6, 33))),
    "logsumexp": Program(lambda x: dd.logsumexp(x, axis=1), _f32((6, 33))),
    "attention": Program(_attention, _f32((2, 12, 16), (2, 20, 16), (2, 20, 24))),
    "layer_norm": Program(lambda x, g, b: dd.layer_norm(x, g, b), _f32((7, 50), (50,), (50,))),
    "layer_norm_linear": Program(_layer_norm_linear, _f32((7, 24), (24,), (24,), (24, 10))),
    "rms_norm": Program(lambda x, g: dd.rms_norm(x, g), _f32((7, 50), (50,))),
    "gelu_mlp": Program(
        lambda x, w, b, v: dd.gelu(x @ w + b) @ v, _f32((10, 16), (16, 40), (40,), (40, 8))
    ),
    "variance": Program(lambda x: x.var(axis=1), _f32((9, 21))),
    "argmax": Program(lambda x: dd.argmax(x, axis=1), _f32((9, 21)), 0),
    "cumulative_sum": Program(lambda x: dd.cumulative_sum(x, axis=1), _f32((4, 19))),
    "conv2d": Program(
        lambda x, w: dd.conv2d(x, w, stride=2, padding=1), _f32((2, 3, 9, 11), (4, 3, 3, 3))
    ),
    "max_pool": Program(lambda x: dd.max_pool2d(x, 2), _f32((1, 3, 8, 6))),
    "embedding": Program(
        lambda w, i: dd.embedding(w, i) * 2.0, (((11, 6), "float32"), ((4, 3), "int64"))
    ),
    "concat_flip": Program(
        lambda a, b: dd.flip(dd.concat([a, b, a], axis=1), axis=1), _f32((4, 5), (4, 7)), 0
    ),
    "pad_slice": Program(lambda a: dd.pad(a, ((1, 2), (3, 0)))[::2, 1:-1] + 1.0, _f32((6, 9))),
    "transpose_reshape": Program(
        lambda a: dd.reshape(dd.permute_dims(a, (2, 0, 1)), (6, 20)) * 3.0, _f32((4, 5, 6))
    ),
    "where_tril": Program(
        lambda a: dd.where(a > 0, dd.tril(a), -a), _f32((8, 8)), 0
    ),
    "bool_any": Program(lambda a, b: dd.any(dd.less(a, b), axis=0), _f32((6, 5), (6, 5)), 0),
    "int_mix": Program(
        lambda a, b: (a * 3 + b) // 2 - dd.sum(b, axis=0),
        (((5, 6), "int32"), ((5, 6), "int32")),
        0,
    ),
    "half_matmul": Program(
        lambda a, b: a @ b, (((12, 16), "float16"), ((16, 10), "float16")), 2e-3
    ),
    "bfloat_norm": Program(
        lambda x: dd.rms_norm(x) * 2.0, (((4, 32), "bfloat16"),), 2e-2
    ),
    "double_solve": Program(
        lambda a: dd.sqrt(dd.sum(a * a, axis=0)) / 3.0, (((9, 7), "float64"),), 1e-13
    ),
    "trigonometry": Program(
        lambda x: dd.sin(x * 50.0) + dd.cos(x) * dd.tanh(x), _f32((5, 31)), 2e-4
    ),
    "rounding": Program(lambda x: dd.floor(x) + dd.round(x) + x % 0.75, _f32((5, 31)), 1e-6),
    "scalar": Program(lambda x: dd.exp(x) + 1.0, _f32(())),
    "sizes_of_one": Program(lambda x: dd.sum(x, axis=1) + x[:, 0], _f32((1, 1, 1))),
    "empty": Program(lambda x: dd.concat([x, x], axis=0) + 1.0, _f32((0, 4))),
    "empty_sum": Program(lambda x: dd.sum(x, axis=0), _f32((0, 4))),
    "two_results": Program(lambda x: (x + 1.0, dd.sum(x, axis=0)), _f32((4, 6))),
    "passed_through": Program(lambda x, y: {"x": x, "twice": y * 2.0, "y": y}, _f32((4,), (5,))),
    "constant": Program(lambda x: dd.full((3, 2), 7.0), _f32((4,))),
}  # fmt: skip
