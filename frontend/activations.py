"""Activations, softmax and normalisation, written as their formulas.

Exponentials here are `exp2(x * log2(e))`, and sums are divided by multiplying with a reciprocal:
both cost a last place, and keep the graph as plain as the formula. 16-bit floats are computed in
float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

from . import movement, reductions
from .arithmetic import rsqrt, unary
from .comparison import abs, where
from .dialect.errors import Error, ShapeError
from .promotion import as_tensor, floating, in_float32, promote, widen
from .shapes import normal_axes, normal_axis, show
from .tensor import Tensor
from .transcendental import LOG2_E, erf, exp2, exp_fast, log, log1p


def relu(x: Any) -> Tensor:
    """x where it is not below 0, else 0; NaN stays NaN."""
    tensor = as_tensor("relu", x)
    return where(tensor < 0, 0, tensor)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Tensor:
    """x where it is not below 0, else x * negative_slope."""
    tensor = floating("leaky_relu", x)
    return where(tensor < 0, tensor * negative_slope, tensor)


@in_float32
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); 0 where exp(-x) overflows, 1 at inf."""
    return unary("recip", exp2(x * -LOG2_E) + 1.0)


@in_float32
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x); NaN at -inf, like torch's."""
    return x * sigmoid(x)


@in_float32
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution's cumulative function, by erf; NaN at -inf, like torch's.

    `approximate="tanh"` is 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))), written with the
    identity 0.5 (1 + tanh(u)) = sigmoid(2 u).
    """
    if approximate == "none":
        return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)
    if approximate != "tanh":
        raise Error(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    slope = 2 * math.sqrt(2 / math.pi)
    return x * sigmoid(x * (x * x * (0.044715 * slope) + slope))


@in_float32
def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return where(x < 0, 0.0, x) + log1p(exp_fast(-abs(x)))


@in_float32
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x - max) over its sum along an axis; NaN where all of a row is -inf."""
    e, at = _exponentials("softmax", x, axis)
    total = reductions.fold("sum_reduce", e, [at])
    return e * movement.along(unary("recip", total), x.shape, [at])


@in_float32
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of the softmax: x - max - log(sum(exp(x - max)))."""
    at = normal_axis("log_softmax", axis, x.ndim)
    e, _ = _exponentials("log_softmax", x, axis)
    top = reductions.fold("max_reduce", x, [at])
    total = log(reductions.fold("sum_reduce", e, [at]))
    return x - movement.along(top, x.shape, [at]) - movement.along(total, x.shape, [at])


def _exponentials(name: str, x: Tensor, axis: int) -> tuple[Tensor, int]:
    at = normal_axis(name, axis, x.ndim)
    top = reductions.fold("max_reduce", x, [at])
    return exp_fast(x - movement.along(top, x.shape, [at])), at


def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, axis: Any = -1
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the axis or axes; computed in float32 for
    16-bit floats. `weight` and `bias` have the shape of those axes."""
    tensor = floating("layer_norm", x)
    wide = widen(tensor)
    axes = normal_axes("layer_norm", axis, wide.ndim)
    centred = wide - movement.along(reductions.average(wide, axes), wide.shape, axes)
    spread = reductions.average(centred * centred, axes)
    scaled = centred * movement.along(rsqrt(spread + eps), wide.shape, axes)
    return _affine("layer_norm", scaled, axes, weight, bias).astype(tensor.dtype)


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-6, axis: Any = -1) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight over the axis or axes; computed in float32 for 16-bit
    floats."""
    tensor = floating("rms_norm", x)
    wide = widen(tensor)
    axes = normal_axes("rms_norm", axis, wide.ndim)
    spread = reductions.average(wide * wide, axes)
    scaled = wide * movement.along(rsqrt(spread + eps), wide.shape, axes)
    return _affine("rms_norm", scaled, axes, weight, None).astype(tensor.dtype)


def _affine(name: str, x: Tensor, axes: tuple[int, ...], weight: Any, bias: Any) -> Tensor:
    """x * weight + bias, where both have the shape of these axes of x."""
    expected = tuple(x.shape[axis] for axis in axes)
    others = [axis for axis in range(x.ndim) if axis not in axes]
    for label, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        _, given = promote(name, x, parameter)
        if given.shape != expected:
            raise ShapeError(
                f"{name}: the {label} has shape {show(given.shape)}, expected {show(expected)}"
            )
        wide = movement.along(given.astype(x.dtype), x.shape, others)
        x = x * wide if label == "weight" else x + wide
    return x
