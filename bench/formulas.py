"""The functions that the cases are made of, as formulas over a module like numpy.

    >>> functions = Formulas(np, exact_erf, np.float64)     # the reference's
    >>> OPERATIONS["softmax"](functions, {"x": x})

A library has an object with functions of these names, made of what its users would call; what it
has no function for it may take from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Padding = tuple[tuple[int, int], tuple[int, int]]  # before and after, of rows and of columns


class Formulas:
    """The functions; `dense` makes a view an array with elements in order."""

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

    def swap(self, x: Any, a: int, b: int) -> Any:
        """x with two axes exchanged."""
        return self.xp.swapaxes(x, a, b)

    def transpose(self, x: Any) -> Any:
        return self.dense(x.mT)

    def gelu(self, x: Any) -> Any:
        return x * (self.erf(x * 0.5**0.5) + 1) * 0.5

    def relu6(self, x: Any) -> Any:
        return self.xp.clip(x, 0, 6)

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b

    def softmax(self, x: Any) -> Any:
        powers = self.xp.exp(x - x.max(-1, keepdims=True))
        powers /= powers.sum(-1, keepdims=True)
        return powers

    def mix(self, q: Any, k: Any, v: Any, bias: Any) -> Any:
        """Attention with a bias on the scores."""
        return self.softmax(q @ self.swap(k, -1, -2) * q.shape[-1] ** -0.5 + bias) @ v

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        """Attention, written out."""
        return self.softmax(q @ self.swap(k, -1, -2) * q.shape[-1] ** -0.5) @ v

    def layer_norm(self, x: Any, w: Any, b: Any, eps: float) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / self.xp.sqrt(variance + eps) * w + b

    def batch_norm(self, x: Any, mean: Any, variance: Any, w: Any, b: Any, eps: float) -> Any:
        """Of an image (n, c, rows, columns), by known means and variances (c,)."""
        scale = w / self.xp.sqrt(variance + eps)
        return x * scale[:, None, None] + (b - mean * scale)[:, None, None]

    def conv(self, x: Any, w: Any, stride: int, padding: Padding, groups: int) -> Any:
        """One product for each place of the window; there is one group, or one a channel."""
        x = self.xp.pad(x, ((0, 0), (0, 0), *padding))
        rows, columns = ((x.shape[2 + i] - w.shape[2 + i]) // stride + 1 for i in range(2))
        total: Any = 0
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                lines = slice(i, i + (rows - 1) * stride + 1, stride)
                part = x[:, :, lines, j : j + (columns - 1) * stride + 1 : stride]
                if groups > 1:
                    total = total + w[:, 0, i, j][:, None, None] * part
                else:
                    flat = w[:, :, i, j] @ part.reshape(*x.shape[:2], rows * columns)
                    total = total + flat.reshape(len(x), len(w), rows, columns)
        return total

    def cross_entropy(self, x: Any, labels: Any) -> Any:
        """The mean over the rows of logits (n, classes), labels (n,)."""
        top = x.max(-1, keepdims=True)
        total = self.xp.log(self.xp.exp(x - top).sum(-1)) + top[:, 0]
        return (total - self.xp.take_along_axis(x, labels[:, None], -1)[:, 0]).mean()

    def wide_product(self, a: Any, b: Any) -> Any:
        """The int32 product of int8 matrices."""
        return a.astype(np.int32) @ b.astype(np.int32)

    def rounded_product(self, a: Any, b: Any) -> Any:
        """The product of bfloat16 matrices, summed in float32 and rounded once."""
        return (self.to_float(a) @ self.to_float(b)).astype(a.dtype)


def exact_erf(x: np.ndarray) -> np.ndarray:
    """Slow: one number at a time."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype)
