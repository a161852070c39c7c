"""Programs whose search is measured, written as a user would write them; sizes stand in the name.

    >>> graph = build("attention_12x512x64")       # heads, places, width of a head
    >>> arrays = draw(graph)                       # an array for each input

None of them names a kernel: attention is two products and a softmax, a rotation is a product with
sines and cosines, grouped heads are repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import dodeca as dd
import numpy as np
from dodeca.models.bert import Config, Encoder, Layer
from dodeca.nn import Linear, Module, RMSNorm, join_heads, split_heads

STEP = 8  # by so much each of several distinct layers is wider than the one before it


def build(name: str) -> dd.Graph:
    """The graph of a name such as bert_128x384x12x1536."""
    kind, _, sizes = name.partition("_")
    try:
        return MAKERS[kind](*(int(size) for size in sizes.split("x")))
    except (KeyError, ValueError, TypeError) as error:
        known = ", ".join(MAKERS)
        raise SystemExit(f"{name}: not a program; there are {known} ({error})") from None


def draw(graph: dd.Graph, seed: int = 0) -> list[np.ndarray]:
    """Normally distributed arrays for the inputs of a graph."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(tuple(map(int, spec.shape)), np.float32) for spec in graph.inputs]


# --- one operation ------------------------------------------------------------------------------


def attention(heads: int, length: int, width: int) -> dd.Graph:
    """softmax(q k^T * scale) v, each input (heads, length, width)."""
    scale = 1 / math.sqrt(width)

    def naive(q: dd.Tensor, k: dd.Tensor, v: dd.Tensor) -> dd.Tensor:
        return dd.softmax((q @ k.mT) * scale) @ v

    return dd.trace(naive, *[dd.spec((heads, length, width))] * 3)


def matmul(m: int, k: int, n: int) -> dd.Graph:
    """(m, k) @ (k, n)."""
    return dd.trace(lambda a, b: a @ b, dd.spec((m, k)), dd.spec((k, n)))


def mlp(tokens: int, width: int, inner: int) -> dd.Graph:
    """Two linear layers with a gelu between them."""
    up, down = Linear(width, inner), Linear(inner, width)
    return dd.trace(lambda x: down(dd.gelu(up(x))), dd.spec((tokens, width)))


def softmax(rows: int, places: int) -> dd.Graph:
    """Along the last axis."""
    return dd.trace(lambda x: dd.softmax(x), dd.spec((rows, places)))


def layernorm(rows: int, places: int) -> dd.Graph:
    """Along the last axis, with weight and bias."""
    return dd.trace(dd.nn.LayerNorm(places), dd.spec((rows, places)))


def transpose(rows: int, columns: int) -> dd.Graph:
    """A copy."""
    return dd.trace(lambda x: x.mT, dd.spec((rows, columns)))


# --- layers of models ---------------------------------------------------------------------------


def bert(tokens: int, width: int, heads: int, inner: int) -> dd.Graph:
    """One layer of an encoder: attention with a mask, gelu, two norms."""
    return dd.trace(
        Layer(_config(width, heads, inner)), dd.spec((1, tokens, width)), dd.spec((1, 1, 1, tokens))
    )


def identical(count: int, tokens: int, width: int, heads: int, inner: int) -> dd.Graph:
    """Equal layers of an encoder, one after the other."""
    model = Encoder(_config(width, heads, inner, count))
    return dd.trace(model, dd.spec((1, tokens, width)), dd.spec((1, 1, 1, tokens)))


def _config(width: int, heads: int, inner: int, count: int = 1) -> Config:
    return Config(
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=inner,
        num_hidden_layers=count,
    )


class Distinct(Module):
    """Layers of an encoder, each wider than the one before, a linear layer between two."""

    def __init__(self, count: int, width: int, heads: int):
        widths = [width + STEP * i for i in range(count)]
        self.layers = [Layer(_config(w, heads, 4 * w)) for w in widths]
        self.between = [Linear(w, w + STEP) for w in widths[:-1]]

    def forward(self, x: dd.Tensor, bias: dd.Tensor) -> dd.Tensor:
        """x (1, s, width), bias (1, 1, 1, s) -> (1, s, the last width)."""
        x = self.layers[0](x, bias)
        for widen, layer in zip(self.between, self.layers[1:], strict=True):
            x = layer(widen(x), bias)
        return x


def distinct(count: int, tokens: int, width: int, heads: int) -> dd.Graph:
    """Layers of widths `width`, `width` + 8, ...: no two of their regions are equal."""
    model = Distinct(count, width, heads)
    return dd.trace(model, dd.spec((1, tokens, width)), dd.spec((1, 1, 1, tokens)))


class DecoderLayer(Module):
    """A layer of a Llama: root mean square norm, rotated queries and keys, causal attention with
    fewer heads for keys and values, an MLP with a gate."""

    def __init__(self, width: int, heads: int, groups: int, inner: int):
        size = width // heads
        self.heads, self.groups = heads, groups
        self.before, self.after = RMSNorm(width), RMSNorm(width)
        self.q, self.o = Linear(width, width, bias=False), Linear(width, width, bias=False)
        self.k = Linear(width, groups * size, bias=False)
        self.v = Linear(width, groups * size, bias=False)
        self.gate, self.up = Linear(width, inner, bias=False), Linear(width, inner, bias=False)
        self.down = Linear(inner, width, bias=False)

    def forward(self, x: dd.Tensor) -> dd.Tensor:
        """(b, s, d) -> (b, s, d)."""
        x = x + self.attention(self.before(x))
        inner = self.after(x)
        return x + self.down(dd.silu(self.gate(inner)) * self.up(inner))

    def attention(self, x: dd.Tensor) -> dd.Tensor:
        """(b, s, d) -> (b, s, d): each place looks at itself and those before it."""
        q = rotated(split_heads(self.q(x), self.heads))
        k = rotated(split_heads(self.k(x), self.groups))
        v = split_heads(self.v(x), self.groups)
        k, v = (dd.repeat(t, self.heads // self.groups, axis=1) for t in (k, v))
        place = dd.arange(int(x.shape[1]))
        scores = (q @ k.mT) * (1 / math.sqrt(int(q.shape[-1])))
        scores = dd.where(place <= place[:, None], scores, -math.inf)
        return self.o(join_heads(dd.softmax(scores) @ v))


def rotated(x: dd.Tensor) -> dd.Tensor:
    """(b, h, s, d) -> (b, h, s, d): pairs (i, i + d/2) turned by angles that grow along s."""
    length, size = (int(n) for n in x.shape[-2:])
    speed = dd.asarray((10000.0 ** (-2 * np.arange(size // 2) / size)).astype(np.float32))
    angle = dd.arange(length).astype("float32")[:, None] * speed
    cos, sin = dd.cos(angle), dd.sin(angle)
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return dd.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)


def llama(tokens: int, width: int, heads: int, groups: int, inner: int) -> dd.Graph:
    """One layer of a decoder."""
    return dd.trace(DecoderLayer(width, heads, groups, inner), dd.spec((1, tokens, width)))


MAKERS: dict[str, Callable[..., dd.Graph]] = {
    make.__name__: make
    for make in (
        attention, matmul, mlp, softmax, layernorm, transpose, bert, identical, distinct, llama,
    )
}  # fmt: skip
