"""Random graphs for the fuzz over schedules: what tensor programs are made of, in ragged sizes.

    graph = draw_graph(np.random.default_rng(7))     # a dd.Graph, the same for the same generator

A family draws its shapes and gives a function and the specs of its inputs. Sizes are small enough
for the interpreter, and some are large enough for tiles and blocks of all kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dodeca as dd
import numpy as np
from test_passes_fuzz import Maker

SIZES = (1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 48, 65, 100)
FLOATS = ("float32", "float32", "float32", "float32", "float16", "bfloat16", "float64")
WORK = 400_000  # elements of the largest product

Drawn = tuple[Callable[..., Any], list[dd.Spec]]


class Draw:
    """Choices of a family."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.dtype = str(self.pick(FLOATS))

    def pick(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def sizes(self, count: int, least: int = 1) -> list[int]:
        """Sizes, of which the product is not too large; now and then one is much longer."""
        found = [max(least, self.pick(SIZES)) for _ in range(count)]
        if self.rng.random() < 0.3:
            found[int(self.rng.integers(count))] = int(self.rng.integers(100, 700))
        while np.prod(found) > WORK:
            n = int(np.argmax(found))
            found[n] = found[n] // 2 + 1
        return found

    def spec(self, *shape: int, dtype: str = "") -> dd.Spec:
        return dd.spec(shape, dtype or self.dtype)

    def after(self) -> Callable[[dd.Tensor], dd.Tensor]:
        """What may follow a result."""
        return self.pick(
            [
                lambda x: x,
                dd.relu,
                dd.gelu,
                lambda x: x * 0.25 + 1.0,
                lambda x: dd.sum(x, axis=-1),
                lambda x: dd.max(x, axis=0),
                lambda x: x.mT,
            ]
        )


def anything(d: Draw) -> Drawn:
    seed = int(d.rng.integers(1 << 30))
    shapes = Maker(seed).shapes
    return lambda *inputs: Maker(seed).draw(*inputs), [dd.spec(shape) for shape in shapes]


def product(d: Draw) -> Drawn:
    """Matrix products, with either operand transposed, and batches."""
    m, n, k = d.sizes(3)
    batch = [d.pick((1, 2, 3, 7))] if d.rng.random() < 0.3 else []
    if batch:
        m, n = min(m, 64), min(n, 64)
    kind, after = int(d.rng.integers(4)), d.after()
    left = [*batch, k, m] if kind in (1, 3) else [*batch, m, k]
    right = [*batch, n, k] if kind in (2, 3) else [*batch, k, n]

    def run(a: dd.Tensor, b: dd.Tensor, bias: dd.Tensor) -> dd.Tensor:
        a, b = a.mT if kind in (1, 3) else a, b.mT if kind in (2, 3) else b
        return after(a @ b + bias)

    return run, [d.spec(*left), d.spec(*right), d.spec(n)]


def projections(d: Draw) -> Drawn:
    """Several products of one operand: kernels with several results."""
    m, n, k = d.sizes(3)
    count = int(d.rng.integers(2, 4))
    return lambda x, *ws: tuple(x @ w for w in ws), [d.spec(m, k), *[d.spec(k, n)] * count]


def attention(d: Draw) -> Drawn:
    heads = d.pick((1, 2, 3))
    rows, places, depth = d.sizes(3, 2)
    width = d.pick((1, 4, 9, 16, 33, 64))
    rows, places = min(rows, 150), min(places, 300)
    depth = min(depth, 33)
    causal, both = d.rng.random() < 0.3, d.rng.random() < 0.3
    offset = int(d.rng.integers(-2, 9))

    def run(q: dd.Tensor, k: dd.Tensor, v: dd.Tensor) -> Any:
        scores = q @ k.mT * 0.25
        if causal:
            seen = dd.arange(rows)[:, None] + offset >= dd.arange(places)[None, :]
            scores = dd.where(seen, scores, -dd.inf)
        result = dd.softmax(scores, axis=-1) @ v
        return (result, dd.logsumexp(scores, axis=-1)) if both else result

    shapes = [heads, rows, depth], [heads, places, depth], [heads, places, width]
    return run, [d.spec(*shape) for shape in shapes]


def statistics(d: Draw) -> Drawn:
    """Reductions that depend on reductions, along either axis."""
    shape, axis = d.sizes(2, 2), int(d.rng.integers(2))
    run = d.pick(
        [
            lambda x, w: dd.softmax(x, axis=axis),
            lambda x, w: dd.log_softmax(x, axis=axis) * w,
            lambda x, w: dd.logsumexp(x, axis=axis),
            lambda x, w: dd.layer_norm(x, w, w),
            lambda x, w: dd.rms_norm(x, w),
            lambda x, w: dd.var(x, axis=axis),
            lambda x, w: (dd.mean(x, axis=axis), dd.var(x, axis=axis)),
            lambda x, w: (dd.sum(x, axis=axis), dd.max(x, axis=axis), dd.min(x, axis=axis)),
            lambda x, w: dd.layer_norm(x, w, w) @ x.mT,
            lambda x, w: dd.sum((x - dd.mean(x, axis=axis, keepdims=True)) * w, axis=axis),
            lambda x, w: dd.argmax(x, axis=axis),
            lambda x, w: dd.cumulative_sum(x[:, :20] * w[:20], axis=axis),
        ]
    )
    return run, [d.spec(*shape), d.spec(shape[1])]


def gathered(d: Draw) -> Drawn:
    count, rows, width = d.sizes(3)
    run = d.pick(
        [
            lambda i, w, x: dd.embedding(w, i) * 2.0,
            lambda i, w, x: dd.take(w, i, axis=0) + x,
            lambda i, w, x: dd.sum(dd.take(w, i, axis=0), axis=0),
            lambda i, w, x: dd.take(w, i, axis=0) @ x.mT,
            lambda i, w, x: dd.take(w.mT, i, axis=1),
            lambda i, w, x: dd.one_hot(i, rows, w.dtype) @ w,
        ]
    )
    return run, [d.spec(count, dtype="int64"), d.spec(rows, width), d.spec(count, width)]


def scattered(d: Draw) -> Drawn:
    count, rows, width = d.sizes(3)
    after = d.pick([lambda x: x, lambda x: x, lambda x: x * 2.0])
    heads = d.pick((0, 0, 2, 4))
    shape = [heads, count, width] if heads else [count, width]

    def run(i: dd.Tensor, g: dd.Tensor) -> dd.Tensor:
        return after(dd.one_hot(i, rows, g.dtype).mT @ g)

    return run, [d.spec(count, dtype="int64"), d.spec(*shape)]


def whole_numbers(d: Draw) -> Drawn:
    shape, kind = d.sizes(2), d.pick(("int32", "int32", "int64", "int8", "uint8"))
    axis = int(d.rng.integers(2))
    run = d.pick(
        [
            lambda a, b: (a * 3 + b) * b,
            lambda a, b: (dd.sum(a * b, axis=axis), dd.max(a + b, axis=axis)),
            lambda a, b: a @ b.mT,
            lambda a, b: dd.any(a < b, axis=axis),
            lambda a, b: dd.where(a < b, a, b) % 7,
            lambda a, b: dd.argmax(a, axis=axis),
            lambda a, b: dd.astype(a, "float32") * 0.5 + dd.astype(b, "float32"),
            lambda a, b: a // 3 + b % (a * a + 1),
        ]
    )
    return run, [d.spec(*shape, dtype=kind)] * 2


def elements(d: Draw) -> Drawn:
    """No reductions: transposed and repeated operands, casts, rounding, positions."""
    m, n = d.sizes(2)
    offset = int(d.rng.integers(-3, 4))
    run = d.pick(
        [
            lambda x, y, z: x + y.mT * z,
            lambda x, y, z: dd.where(x > y.mT, x * z, -x),
            lambda x, y, z: dd.floor(x) + dd.round(y.mT) + x % 0.75,
            lambda x, y, z: dd.fmod(x, y.mT + z),
            lambda x, y, z: dd.sin(x * 3.0) + dd.cos(z) * dd.tanh(y.mT),
            lambda x, y, z: dd.astype(dd.astype(x * 9.0, "int8"), "float32") + 0.5,
            lambda x, y, z: (dd.astype(x * 3.0, "int32"), x < y.mT),
            lambda x, y, z: dd.tril(x, offset) + dd.triu(y.mT, offset),
            lambda x, y, z: dd.where(dd.isfinite(x), x, z) + dd.astype(dd.isnan(y.mT), x.dtype),
            lambda x, y, z: x[::-1, ::-1] / (z * z + 1.0),
            lambda x, y, z: dd.concat([x, y.mT], axis=0)[1:, ::2] - 1.0,
            lambda x, y, z: dd.pad(x, [(1, 2), (0, 3)]) * 2.0,
            lambda x, y, z: dd.reshape(x * z, (-1,)),
            lambda x, y, z: dd.astype(dd.arange(m)[:, None] * 3 + dd.arange(n) // 2, x.dtype) + x,
            lambda x, y, z: dd.log2(dd.abs(x)) + dd.sqrt(dd.abs(y.mT)),
        ]
    )
    return run, [d.spec(m, n), d.spec(n, m), d.spec(n)]


def windows(d: Draw) -> Drawn:
    """Convolutions and pools, and what lies around an edge."""
    channels, more = int(d.rng.integers(1, 6)), int(d.rng.integers(1, 9))
    height, width = int(d.rng.integers(4, 20)), int(d.rng.integers(4, 20))
    size, stride = int(d.rng.integers(1, 4)), int(d.rng.integers(1, 3))
    padding = int(d.rng.integers(0, 2))
    run = d.pick(
        [
            lambda x, w: dd.conv2d(x, w, stride=stride, padding=padding),
            lambda x, w: dd.relu(dd.conv2d(x, w, padding=padding)) * 0.5,
            lambda x, w: dd.max_pool2d(x, 2),
            lambda x, w: dd.avg_pool2d(x, 2) + 1.0,
            lambda x, w: dd.pad(x, [(0, 0), (0, 1), (2, 0), (1, 3)]) * 3.0,
            lambda x, w: dd.reshape(dd.permute_dims(x, (0, 2, 3, 1)), (-1, channels)) * 2.0,
            lambda x, w: dd.roll(dd.flip(x, axis=3), 2, axis=2),
            lambda x, w: dd.concat([x, x[:, :, ::-1], x], axis=1),
        ]
    )
    return run, [d.spec(2, channels, height, width), d.spec(more, channels, size, size)]


FAMILIES = (
    anything, anything, product, product, product, projections, attention, attention, attention,
    attention, statistics, statistics, statistics, statistics, elements, elements, gathered,
    scattered, scattered, whole_numbers, windows,
)  # fmt: skip


def draw_graph(rng: np.random.Generator) -> dd.Graph:
    """A graph of a random family."""
    draw = Draw(rng)
    function, specs = draw.pick(FAMILIES)(draw)
    return dd.trace(function, *specs)
