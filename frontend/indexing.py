"""Indexing: slices, integers and integer tensors are one view, whatever their mixture.

Negative indices count from the end, as in Python. An index tensor's values are not known while
tracing; one that is out of range even so reads 0, the view's fill.

    >>> x[1:, None, ..., ::-1], x[:, rows, 0], dd.take(table, ids, axis=0)
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index as as_integer
from typing import Any

import numpy as np

from . import creation, movement
from .comparison import equal, where
from .dialect.errors import DtypeError, ShapeError
from .maps import Expr, dims, floordiv, literal, mod, symbol, view
from .movement import broadcast_places
from .promotion import as_tensor
from .reductions import element_count
from .shapes import Dim, Shape, Size, broadcast_shapes, normal_axis, number, show
from .tensor import Tensor, require

_FAR = 2**62  # s floordiv _FAR is -1 for a negative index s and 0 for any other


@dataclass
class _Part:
    """One part of an index: a new axis, or how one source axis is read."""

    kind: str  # "new", "slice", "integer" or "tensor"
    axis: int = 0
    start: int = 0
    step: int = 1
    size: Size = 1
    tensor: Tensor | None = None


def index(x: Tensor, key: Any) -> Tensor:
    """x[key], with numpy's rules. ShapeError for what does not fit, DtypeError for a bool tensor,
    whose result would have a shape that depends on values."""
    items = _expanded(x, key if isinstance(key, tuple) else (key,))
    parts: list[_Part] = []
    axis = 0
    for item in items:
        if item is None:
            parts.append(_Part("new"))
            continue
        x, part = _part(x, axis, item)
        parts.append(part)
        axis += 1
    return _read(x, parts)


def _expanded(x: Tensor, items: tuple[Any, ...]) -> list[Any]:
    """The items with `...`, written or implied, replaced by full slices."""
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > x.ndim:
        raise ShapeError(f"index: {used} indices for shape {show(x.shape)}")
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise ShapeError("index: more than one '...'")
    at = dots[0] if dots else len(items)
    rest = [slice(None)] * (x.ndim - used)
    return [*items[:at], *rest, *items[at + 1 :]]


def _part(x: Tensor, axis: int, item: Any) -> tuple[Tensor, _Part]:
    """What an item reads of an axis; x comes back flipped where a Dim is counted from its end."""
    size = x.shape[axis]
    if isinstance(item, slice):
        return _slice_part(x, axis, item)
    if isinstance(item, Tensor | np.ndarray | list):
        tensor = as_tensor("index", item)
        if tensor.dtype.kind == "bool":
            raise DtypeError("index: the shape for a bool index depends on its values; use where")
        require("index", tensor, "int", "uint")
        return x, _Part("tensor", axis, tensor=tensor, size=size)
    if isinstance(item, bool | np.bool_):
        raise DtypeError("index: a bool is not an index; use None for a new axis")
    try:
        at = as_integer(item)
    except TypeError:
        raise DtypeError(f"index: {item!r} is not an integer, slice, None, ... or tensor") from None
    low = size.low if isinstance(size, Dim) else size
    if not -low <= at < low:
        raise ShapeError(f"index: {at} is out of range for axis {axis} of shape {show(x.shape)}")
    if at < 0 and isinstance(size, Dim):
        return movement.flip(x, axis), _Part("integer", axis, start=-1 - at)
    return x, _Part("integer", axis, start=at + number("index", size) if at < 0 else at)


def _slice_part(x: Tensor, axis: int, item: slice) -> tuple[Tensor, _Part]:
    size = x.shape[axis]
    start, stop, step = item.start, item.stop, item.step
    from_front = start in (None, 0) and step in (None, 1)
    if isinstance(stop, Dim) and from_front and (stop == size or _holds(size, stop)):
        return x, _Part("slice", axis, size=stop)
    if isinstance(size, Dim):
        if start is None and stop is None and step in (None, 1, -1):
            return (movement.flip(x, axis) if step == -1 else x), _Part("slice", axis, size=size)
        number("index", size, f"to slice axis {axis}")
    if isinstance(stop, Dim):
        raise ShapeError(
            f"index: a slice up to {stop} must start at 0, and axis {axis} of shape "
            f"{show(x.shape)} must have {stop.high} elements"
        )
    try:
        first, last, by = item.indices(number("index", size))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"index: {error}") from None
    return x, _Part("slice", axis, first, by, len(range(first, last, by)))


def _holds(size: Size, stop: Dim) -> bool:
    """Whether an axis always has as many elements as `stop` can be."""
    return stop.high <= (size.low if isinstance(size, Dim) else size)


def _read(x: Tensor, parts: list[_Part]) -> Tensor:
    """The view that all parts together are."""
    tensors = [part.tensor for part in parts if part.tensor is not None]
    shared = broadcast_shapes("index", *[t.shape for t in tensors])
    before = _shared_position(parts) if tensors else 0
    shape: list[Size] = []
    results: list[int] = []  # for each part the result axis that it makes, where it makes one
    for i, part in enumerate(parts):
        if tensors and i == before:
            shape += shared
        results.append(len(shape))
        if part.kind in ("new", "slice"):
            shape.append(part.size)
    first = min(results[before], len(shape) - len(shared)) if tensors else 0
    first = (results[before] - len(shared)) if tensors else 0
    d = dims(len(shape))
    used = _indices(parts, shared)
    places: list[Expr] = [literal(0)] * x.ndim
    for part, at in zip(parts, results, strict=True):
        if part.kind == "slice":
            places[part.axis] = d[at] * part.step + part.start
        elif part.kind == "integer":
            places[part.axis] = literal(part.start)
    for position, (_, coordinates) in enumerate(used):
        for axis, expr in coordinates:
            places[axis] = expr(symbol(position))
    over = d[first : first + len(shared)]
    index_maps = [_shifted(tensor.shape, shared, over) for tensor, _ in used]
    return view(
        [x], [places], tuple(shape), indices=[t for t, _ in used], index_maps=index_maps
    )
