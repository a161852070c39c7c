"""Indexing: slices, integers and integer tensors are one view, whatever their mixture.

Negative indices count from the end, as in Python. An index tensor's values are not known while
tracing; one that is out of range even so reads 0, the view's fill.

    >>> x[1:, None, ..., ::-1], x[:, rows, 0], dd.take(table, ids, axis=0)
"""

from __future__ import annotations

from collections.abc import Callable
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
    """The one view that all parts together are."""
    tensors = [part.tensor for part in parts if part.tensor is not None]
    shared = broadcast_shapes("index", *[t.shape for t in tensors])
    insert = _shared_position(parts) if tensors else -1
    shape: list[Size] = []
    first = 0  # the result axis where those of the index tensors begin
    axis_of: dict[int, int] = {}  # part -> result axis
    for i, part in enumerate(parts):
        if i == insert:
            first = len(shape)
            shape += shared
        if part.kind in ("new", "slice"):
            axis_of[i] = len(shape)
            shape.append(part.size)
    d = dims(len(shape))
    places: list[Expr] = [literal(0)] * x.ndim
    for i, part in enumerate(parts):
        if part.kind == "slice":
            places[part.axis] = d[axis_of[i]] * part.step + part.start
        elif part.kind == "integer":
            places[part.axis] = literal(part.start)
    used = _index_operands([part for part in parts if part.kind == "tensor"])
    for position, (_, coordinates) in enumerate(used):
        for axis, expr in coordinates(symbol(position)).items():
            places[axis] = expr
    over = d[first : first + len(shared)]
    return view(
        [x],
        [places],
        tuple(shape),
        indices=[tensor for tensor, _ in used],
        index_maps=[broadcast_places(tensor.shape, shared, over) for tensor, _ in used],
    )


def _shared_position(parts: list[_Part]) -> int:
    """Before which part the axes of the index tensors go: where these are if they stand together
    (integers count among them), else in front."""
    found = [i for i, part in enumerate(parts) if part.kind in ("integer", "tensor")]
    return found[0] if found == list(range(found[0], found[-1] + 1)) else 0


Coordinates = Callable[[Expr], dict[int, Expr]]  # an index operand's symbol -> source coordinates


def _index_operands(parts: list[_Part]) -> list[tuple[Tensor, Coordinates]]:
    """At most two index operands that say the same as these parts."""
    if len(parts) > 2:
        return [_merged(parts[:-1]), _single(parts[-1])]
    return [_single(part) for part in parts]


def _single(part: _Part) -> tuple[Tensor, Coordinates]:
    tensor, axis, size = part.tensor, part.axis, part.size
    assert tensor is not None
    if tensor.dtype.kind == "uint":
        return tensor, lambda s: {axis: s}
    if isinstance(size, Dim):
        return _counted_from_front(tensor, size), lambda s: {axis: s}
    return tensor, lambda s: {axis: s - floordiv(s, _FAR) * size}


def _counted_from_front(tensor: Tensor, size: Size) -> Tensor:
    wide = tensor.astype("int64")
    return where(wide < 0, wide + element_count([size]), wide)


def _merged(parts: list[_Part]) -> tuple[Tensor, Coordinates]:
    """Several index tensors as one that numbers the places row by row; -1 if one is outside."""
    flat, inside = creation.asarray(0), creation.asarray(True)
    strides: list[tuple[int, int, int]] = []
    stride = 1
    for part in reversed(parts):
        assert part.tensor is not None
        size = number("index", part.size, "to index with three tensors or more")
        at = _counted_from_front(part.tensor, size)
        flat, inside = flat + at * stride, inside & ~(at < 0) & (at < size)
        strides.append((part.axis, stride, size))
        stride *= size

    def coordinates(s: Expr) -> dict[int, Expr]:
        found = {axis: mod(floordiv(s, by), size) for axis, by, size in strides[:-1]}
        axis, by, _ = strides[-1]
        return {**found, axis: floordiv(s, by)}

    return where(inside, flat, -1), coordinates


# --- functions ----------------------------------------------------------------------------------


def _indices(name: str, value: Any) -> Tensor:
    tensor = as_tensor(name, value)
    if tensor.dtype.kind not in ("int", "uint"):
        raise DtypeError(f"{name}: the indices are {tensor.dtype}, expected integers")
    return tensor


def take(x: Any, indices: Any, axis: int | None = None) -> Tensor:
    """The slices of x at these positions of an axis, in the place of that axis; without `axis`, x
    counts as flat. A negative index counts from the end; one out of range gives zeros."""
    tensor, wanted = as_tensor("take", x), _indices("take", indices)
    if axis is None:
        tensor, axis = movement.reshape(tensor, (-1,)), 0
    at = normal_axis("take", axis, tensor.ndim)
    parts = [
        _Part("tensor", i, tensor=wanted, size=size) if i == at else _Part("slice", i, size=size)
        for i, size in enumerate(tensor.shape)
    ]
    return _read(tensor, parts)


def embedding(weight: Any, indices: Any) -> Tensor:
    """The rows of a table: (n, d) and integers of any shape (...) give (..., d)."""
    return take(weight, _indices("embedding", indices), axis=0)


def gather(x: Any, indices: Any, axis: int = -1) -> Tensor:
    """numpy's take_along_axis: `result[..., i, ...] = x[..., indices[..., i, ...], ...]`.

    Off the axis the shapes broadcast. A negative index counts from the end; one out of range gives
    0.
    """
    tensor, wanted = as_tensor("gather", x), _indices("gather", indices)
    if tensor.ndim != wanted.ndim:
        shapes = f"{show(tensor.shape)} and {show(wanted.shape)}"
        raise ShapeError(f"gather: x and the indices must have one rank, got shapes {shapes}")
    at = normal_axis("gather", axis, tensor.ndim)
    loose = (*tensor.shape[:at], 1, *tensor.shape[at + 1 :])
    shape: Shape = broadcast_shapes("gather", loose, wanted.shape)
    places = broadcast_places(loose, shape)
    used, coordinates = _single(_Part("tensor", at, tensor=wanted, size=tensor.shape[at]))
    places[at] = coordinates(symbol(0))[at]
    return view(
        [tensor], [places], shape, indices=[used], index_maps=[broadcast_places(used.shape, shape)]
    )


def one_hot(indices: Any, num_classes: int, dtype: Any = "float32") -> Tensor:
    """1 at the index, 0 elsewhere along a new last axis; all 0 for an index out of range."""
    wanted = _indices("one_hot", indices).astype("int64")
    classes = creation.arange(num_classes)
    return equal(movement.expand_dims(wanted, wanted.ndim), classes).astype(dtype)
