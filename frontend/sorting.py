"""Sorting by counting: the rank of an element is how many come before it.

    rank of i = the number of j with x[j] < x[i], and of j < i with x[j] == x[i]

which makes the order stable. It compares every pair, so work and memory grow with the square of the
length of the axis. NaN comes last, in both directions.
"""

from __future__ import annotations

from typing import Any

from . import movement
from .arithmetic import binary
from .comparison import isnan, logical_not, where
from .creation import arange
from .dialect.errors import ShapeError
from .indexing import gather
from .maps import dims, view
from .promotion import as_tensor
from .reductions import fold
from .shapes import normal_axis, number
from .tensor import Tensor


def argsort(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The int64 positions that put x in order along an axis; O(n**2), always stable, NaN last."""
    tensor = as_tensor("argsort", x)
    at = normal_axis("argsort", axis, tensor.ndim)
    order = _order(movement.moveaxis(tensor, at, -1), descending, tensor.shape[at])
    return movement.moveaxis(order, -1, at)


def sort(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """x in order along an axis; O(n**2), always stable, NaN last."""
    tensor = as_tensor("sort", x)
    return gather(tensor, argsort(tensor, axis, descending), axis)


def topk(x: Any, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements along an axis, in order, and their int64 positions; of
    equal ones the first; O(n**2), NaN last."""
    tensor = as_tensor("topk", x)
    at = normal_axis("topk", axis, tensor.ndim)
    if not 0 <= k <= number("topk", tensor.shape[at]):
        raise ShapeError(f"topk: k is {k}, but axis {at} has {tensor.shape[at]} elements")
    order = movement.moveaxis(_order(movement.moveaxis(tensor, at, -1), largest, k), -1, at)
    return gather(tensor, order, at), order


def _order(x: Tensor, descending: bool, count: Any) -> Tensor:
    """The positions of the first `count` elements in the order of the last axis."""
    ranks = _ranks(x, descending)
    d = dims(x.ndim + 1)
    shape = (*x.shape[:-1], count, x.shape[-1])
    rank_here = view([ranks], [[*d[:-2], d[-1]]], shape)
    place_here = view([arange(count)], [[d[-2]]], shape)
    differ = binary("less_than", rank_here, place_here) | binary("less_than", place_here, rank_here)
    position = view([arange(x.shape[-1])], [[d[-1]]], shape)
    return fold("sum_reduce", where(differ, 0, position), [x.ndim])


def _ranks(x: Tensor, descending: bool) -> Tensor:
    """How many elements of the last axis come before each one."""
    d = dims(x.ndim + 1)
    shape = (*x.shape, x.shape[-1])
    here, there = [*d[:-1]], [*d[:-2], d[-1]]  # i, and j
    first, second = (here, there) if descending else (there, here)
    before = binary("less_than", view([x], [first], shape), view([x], [second], shape))
    if x.dtype.is_float:
        nan = isnan(x)  # false < true puts it last
        before = before | binary(
            "less_than", view([nan], [there], shape), view([nan], [here], shape)
        )
    swapped = [*d[:-2], d[-1], d[-2]]
    ahead = view(  # for j < i: j comes first unless i comes before it
        [logical_not(before), before],
        [swapped, d],
        shape,
        domains=[[d[-2] - d[-1] - 1], []],
    )
    return fold("sum_reduce", ahead.astype("int64"), [x.ndim])
