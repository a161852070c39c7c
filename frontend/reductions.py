"""Reductions: sums, maxima and what follows from them, over some axes or all.

`axis` is an integer, several, or None for all; `keepdims` leaves axes of size 1 in place. Sums and
products of integers and bools are int64. 16-bit floats are summed in float32 and rounded once. A
mean multiplies by 1/n, which may differ from a division in the last place.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from . import movement
from .arithmetic import sqrt, unary
from .comparison import equal, isnan, logical_not, maximum, where
from .creation import iota, ones
from .dialect.errors import ShapeError
from .maps import dims, literal, symbol, view
from .promotion import as_tensor, floating, widen
from .shapes import Dim, Size, elements, normal_axes, normal_axis, number, show
from .tensor import Tensor, node, require
from .transcendental import exp_fast, log

_WHOLE = 512  # a cumulative sum along more elements than this goes block by block
_BLOCK = 64


def fold(primitive: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """`sum_reduce` or `max_reduce` over these axes, the last one first."""
    for axis in sorted(axes, reverse=True):
        x = node(primitive, (x,), axis, x.shape[:axis] + x.shape[axis + 1 :], x.dtype)
    return x


def _kept(reduced: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    return movement.expand_dims(reduced, tuple(axes)) if keepdims and axes else reduced


def sum(x: Any, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Tensor:
    """The sum over axes; 0 over none. `dtype` is what x is cast to before."""
    tensor = as_tensor("sum", x)
    if dtype is not None:
        tensor = tensor.astype(dtype)
    elif not tensor.dtype.is_float:
        tensor = tensor.astype("int64")
    axes = normal_axes("sum", axis, tensor.ndim)
    wide = widen(tensor)
    return _kept(fold("sum_reduce", wide, axes), axes, keepdims).astype(tensor.dtype)


def prod(x: Any, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Tensor:
    """The product over axes, halving them in turn; 1 over none. Sizes must be numbers."""
    tensor = as_tensor("prod", x)
    if dtype is not None:
        tensor = tensor.astype(dtype)
    elif not tensor.dtype.is_float:
        tensor = tensor.astype("int64")
    axes = normal_axes("prod", axis, tensor.ndim)
    wide = widen(tensor)
    for at in reversed(axes):
        wide = _product(wide, at)
    return _kept(wide, axes, keepdims).astype(tensor.dtype)


def _product(x: Tensor, axis: int) -> Tensor:
    """The product along one axis: the first half times the second, which a 1 fills up."""
    while True:
        size = number("prod", x.shape[axis])
        half = builtins.max(-(-size // 2), 1)
        d = dims(x.ndim)
        rest = [e + half if i == axis else e for i, e in enumerate(d)]
        shape = (*x.shape[:axis], half, *x.shape[axis + 1 :])
        if size <= 1:
            whole = view([x], [d], shape, fill=1)  # reads nothing but the fill where x is empty
            places = iter(dims(x.ndim - 1))
            drop = [literal(0) if i == axis else next(places) for i in range(x.ndim)]
            return view([whole], [drop], x.shape[:axis] + x.shape[axis + 1 :])
        x = view([x], [d], shape) * view([x], [rest], shape, fill=1)


def _check_not_empty(name: str, x: Tensor, axes: Sequence[int]) -> None:
    for axis in axes:
        if x.shape[axis] == 0:
            raise ShapeError(f"{name}: axis {axis} of shape {show(x.shape)} is empty")


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The maximum over axes; NaN if there is one. ShapeError over an empty axis."""
    tensor = as_tensor("max", x)
    axes = normal_axes("max", axis, tensor.ndim)
    _check_not_empty("max", tensor, axes)
    return _kept(fold("max_reduce", tensor, axes), axes, keepdims)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The minimum over axes; NaN if there is one. ShapeError over an empty axis."""
    tensor = as_tensor("min", x)
    axes = normal_axes("min", axis, tensor.ndim)
    _check_not_empty("min", tensor, axes)
    return _kept(_opposite(fold("max_reduce", _opposite(tensor), axes)), axes, keepdims)


def _opposite(x: Tensor) -> Tensor:
    """The order turned round: -x, not x, and -1 - x for integers, which cannot overflow."""
    if x.dtype.kind == "bool":
        return logical_not(x)
    if x.dtype.is_float:
        return -x
    return -x + (255 if x.dtype.kind == "uint" else -1)


def any(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Whether one is true; false over none."""
    tensor = as_tensor("any", x).astype("bool")
    axes = normal_axes("any", axis, tensor.ndim)
    return _kept(fold("max_reduce", tensor, axes), axes, keepdims)


def all(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Whether all are true; true over none."""
    tensor = as_tensor("all", x).astype("bool")
    axes = normal_axes("all", axis, tensor.ndim)
    found = logical_not(fold("max_reduce", logical_not(tensor), axes))
    return _kept(found, axes, keepdims)


# --- means --------------------------------------------------------------------------------------


def average(x: Tensor, axes: Sequence[int], correction: float = 0) -> Tensor:
    """The sum of a float tensor over axes, over their number of elements less `correction`."""
    return _over_count(fold("sum_reduce", x, axes), [x.shape[axis] for axis in axes], correction)


def _over_count(total: Tensor, sizes: Sequence[Size], correction: float) -> Tensor:
    """total / (the product of the sizes - correction); inf or NaN if that is not above 0."""
    if not builtins.any(isinstance(size, Dim) for size in sizes):
        left = elements("mean", sizes) - correction
        return total * (1 / left if left > 0 else inf)
    count = element_count(sizes).astype(total.dtype)
    left = maximum(count - correction, 0.0) if correction else count
    return total * unary("recip", left)


def element_count(sizes: Sequence[Size]) -> Tensor:
    """The product of the sizes as an int64 scalar; a Dim is counted by a sum of ones."""
    count: Tensor | None = None
    static = 1
    for size in sizes:
        if isinstance(size, Dim):
            counted = fold("sum_reduce", ones((size,), "int64"), [0])
            count = counted if count is None else count * counted
        else:
            static *= size
    if count is None:
        return ones((), "int64") * static
    return count if static == 1 else count * static


def _wide_float(name: str, x: Any) -> tuple[Tensor, Any]:
    """x as float32 or float64, and the dtype of the result."""
    tensor = floating(name, x)
    return widen(tensor), tensor.dtype


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The mean over axes; NaN over none. Integers are summed in int64 and give float32."""
    tensor = as_tensor("mean", x)
    axes = normal_axes("mean", axis, tensor.ndim)
    if not tensor.dtype.is_float:
        total = fold("sum_reduce", tensor.astype("int64"), axes).astype("float64")
        found = _over_count(total, [tensor.shape[axis] for axis in axes], 0)
        return _kept(found, axes, keepdims).astype("float32")
    wide, kind = _wide_float("mean", tensor)
    return _kept(average(wide, axes), axes, keepdims).astype(kind)


def var(x: Any, axis: Any = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The variance over axes in two passes: the squared distances from the mean, summed, over the
    number of elements less `correction` (inf or NaN where that is not above 0)."""
    wide, kind = _wide_float("var", x)
    axes = normal_axes("var", axis, wide.ndim)
    centred = wide - movement.along(average(wide, axes), wide.shape, axes)
    found = average(centred * centred, axes, correction)
    return _kept(found, axes, keepdims).astype(kind)


def std(x: Any, axis: Any = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The square root of the variance."""
    wide, kind = _wide_float("std", x)
    return sqrt(var(wide, axis, correction, keepdims)).astype(kind)


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""
    wide, kind = _wide_float("logsumexp", x)
    axes = normal_axes("logsumexp", axis, wide.ndim)
    top = fold("max_reduce", wide, axes)
    total = fold("sum_reduce", exp_fast(wide - movement.along(top, wide.shape, axes)), axes)
    finite = (-inf < top) & (top < inf)
    return _kept(where(finite, log(total) + top, top), axes, keepdims).astype(kind)


# --- positions ----------------------------------------------------------------------------------


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The int64 position of the maximum (of the first NaN, if there is one); the first one wins."""
    return _first_extreme("argmax", as_tensor("argmax", x), axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The int64 position of the minimum (of the first NaN, if there is one); the first one wins."""
    return _first_extreme("argmin", _opposite(as_tensor("argmin", x)), axis, keepdims)


def _first_extreme(name: str, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    """Among the positions of the maximum the least, as the maximum of their negatives."""
    if axis is None:
        found = _first_extreme(name, movement.reshape(x, (-1,)), 0, False)
        return movement.reshape(found, (1,) * x.ndim) if keepdims else found
    at = normal_axis(name, axis, x.ndim)
    _check_not_empty(name, x, [at])
    best = equal(x, movement.along(fold("max_reduce", x, [at]), x.shape, [at]))
    if x.dtype.is_float:
        best = best | isnan(x)
    d = dims(x.ndim)
    positions = view(
        [iota(x.shape[at : at + 1], 0) * -1],
        [[d[at]]],
        x.shape,
        fill=np.iinfo(np.int64).min,
        domains=[[symbol(0) - 1]],
        indices=[best],
        index_maps=[d],
    )
    return _kept(-fold("max_reduce", positions, [at]), [at], keepdims)


# --- running sums -------------------------------------------------------------------------------


def cumulative_sum(
    x: Any, axis: int | None = None, include_initial: bool = False, dtype: Any = None
) -> Tensor:
    """The running sum along an axis (which only a tensor of rank 1 may leave out).

    Along up to 512 elements, or a Dim, it sums each prefix, so that work grows with the square of
    the length; longer ones are summed in blocks of 64, whose totals are a running sum of their own.
    """
    tensor = as_tensor("cumulative_sum", x)
    if axis is None and tensor.ndim != 1:
        raise ShapeError(f"cumulative_sum: shape {show(tensor.shape)} needs an axis")
    at = normal_axis("cumulative_sum", 0 if axis is None else axis, tensor.ndim)
    if dtype is not None:
        tensor = tensor.astype(dtype)
    elif not tensor.dtype.is_float:
        tensor = tensor.astype("int64")
    require("cumulative_sum", tensor, "float", "int", "uint")
    wide = widen(tensor)
    found = movement.moveaxis(_running_sum(movement.moveaxis(wide, at, -1)), -1, at)
    if include_initial:
        widths = [(1, 0) if i == at else (0, 0) for i in range(tensor.ndim)]
        found = movement.pad(found, widths)
    return found.astype(tensor.dtype)


def _running_sum(x: Tensor) -> Tensor:
    """The running sum along the last axis."""
    size = x.shape[-1]
    if isinstance(size, Dim) or size <= _WHOLE:
        d = dims(x.ndim + 1)
        prefix = view([x], [[*d[:-2], d[-1]]], (*x.shape, size), domains=[[d[-2] - d[-1]]])
        return fold("sum_reduce", prefix, [x.ndim])
    blocks = -(-size // _BLOCK)
    front = [(0, 0)] * (x.ndim - 1)
    padded = movement.pad(x, [*front, (0, blocks * _BLOCK - size)])
    inner = _running_sum(movement.reshape(padded, (*x.shape[:-1], blocks, _BLOCK)))
    d = dims(x.ndim)
    totals = view([inner], [[*d, literal(_BLOCK - 1)]], (*x.shape[:-1], blocks))
    before = view([_running_sum(totals)], [[*d[:-1], d[-1] - 1]], totals.shape)
    whole = inner + movement.along(before, inner.shape, [x.ndim])
    flat = movement.reshape(whole, padded.shape)
    return view([flat], [dims(x.ndim)], x.shape)
