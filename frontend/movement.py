"""Movement: what only moves elements is one `contiguous` view.

Sources are read through chains of views (`maps.view` composes them), so `x.mT.reshape(...)` is one
node. Sizes may be Dims wherever a map does not need their number.

    >>> dd.concat([x, y], axis=1), dd.pad(x, ((0, 0), (1, 1))), x.reshape(2, -1)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from . import promotion
from .creation import asarray
from .dialect.errors import ShapeError
from .maps import Expr, dims, floordiv, literal, mod, symbol, view
from .shapes import (
    Dim,
    Shape,
    Size,
    as_shape,
    broadcast_shapes,
    elements,
    normal_axes,
    normal_axis,
    number,
    show,
)
from .tensor import Tensor


def broadcast_places(source: Shape, shape: Shape, over: Sequence[Expr] | None = None) -> list[Expr]:
    """Where a tensor of shape `source` is read to make one of the shape that it broadcasts to,
    whose indices are `over` (by default d0, d1, ...)."""
    d, skipped = over or dims(len(shape)), len(shape) - len(source)
    return [
        literal(0) if size == 1 and shape[skipped + i] != 1 else d[skipped + i]
        for i, size in enumerate(source)
    ]


def spread(x: Tensor, shape: Shape) -> Tensor:
    """x broadcast to a shape that it is known to fit."""
    return x if x.shape == shape else view([x], [broadcast_places(x.shape, shape)], shape)


def along(x: Tensor, shape: Shape, axes: Sequence[int]) -> Tensor:
    """A tensor that lost `axes` to a reduction, broadcast back to the shape that had them."""
    kept = [e for i, e in enumerate(dims(len(shape))) if i not in axes]
    return view([x], [kept], shape)


def broadcast_to(x: Any, shape: Any) -> Tensor:
    """x broadcast to a shape by numpy's rule."""
    tensor, wanted = asarray(x), as_shape("broadcast_to", shape)
    if broadcast_shapes("broadcast_to", tensor.shape, wanted) != wanted:
        raise ShapeError(f"broadcast_to: {show(tensor.shape)} does not fit into {show(wanted)}")
    return spread(tensor, wanted)


def broadcast_arrays(*arrays: Any) -> list[Tensor]:
    """The tensors broadcast to their common shape."""
    tensors = [asarray(x) for x in arrays]
    shape = broadcast_shapes("broadcast_arrays", *[t.shape for t in tensors])
    return [spread(t, shape) for t in tensors]


def reshape(x: Any, shape: Any) -> Tensor:
    """The same elements in row-major order in another shape; one size may be -1.

    A Dim may stay where it is: the sizes before it and after it are regrouped on their own.
    """
    tensor = asarray(x)
    wanted = _with_inferred(tensor.shape, shape)
    groups = _groups(tensor.shape, wanted)
    d = dims(len(wanted))
    places: list[Expr] = [literal(0)] * tensor.ndim
    for sources, targets in groups:
        if len(sources) == len(targets) == 1:
            places[sources[0]] = d[targets[0]]
            continue
        flat, stride = literal(0), 1
        for axis in reversed(targets):
            flat, stride = flat + d[axis] * stride, stride * _int(wanted[axis])
        stride = 1
        for axis in reversed(sources):
            size = _int(tensor.shape[axis])
            quotient = floordiv(flat, stride)
            places[axis] = quotient if axis == sources[0] else mod(quotient, size)
            stride *= size
    return view([tensor], [places], wanted)


def _int(size: Size) -> int:
    assert isinstance(size, int)
    return size


def _with_inferred(shape: Shape, wanted: Any) -> Shape:
    """The wanted shape with its -1 replaced by what the number of elements leaves."""
    sizes = list(wanted) if isinstance(wanted, Sequence) else [wanted]
    holes = [i for i, size in enumerate(sizes) if not isinstance(size, Dim) and size == -1]
    if len(holes) > 1:
        raise ShapeError(f"reshape: {show(sizes)} has more than one -1")
    if not holes:
        return as_shape("reshape", sizes)
    rest, known = (
        list(shape),
        as_shape("reshape", [s for i, s in enumerate(sizes) if i != holes[0]]),
    )
    for size in known:
        if isinstance(size, Dim) and size in rest:
            rest.remove(size)
    dynamic = [size for size in rest if isinstance(size, Dim)]
    total = elements("reshape", [size for size in rest if isinstance(size, int)])
    asked = elements("reshape", [size for size in known if isinstance(size, int)])
    if dynamic and (len(dynamic) > 1 or total != asked):
        number("reshape", dynamic[0], "for the -1")
    if not asked or total % asked:
        raise ShapeError(f"reshape: cannot make {show(sizes)} of a tensor of shape {show(shape)}")
    sizes[holes[0]] = dynamic[0] if dynamic else total // asked
    return as_shape("reshape", sizes)


def _groups(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """Runs of axes of both shapes with the same number of elements, sizes of 1 left out."""
    problem = ShapeError(f"reshape: cannot make {show(target)} of a tensor of shape {show(source)}")
    if not any(isinstance(size, Dim) for size in (*source, *target)):
        if elements("reshape", source) != elements("reshape", target):
            raise problem
        if 0 in source:
            return []
    left = [i for i, size in enumerate(source) if size != 1]
    right = [i for i, size in enumerate(target) if size != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        sizes = source[a[0]], target[b[0]]
        if isinstance(sizes[0], Dim) or isinstance(sizes[1], Dim):
            if sizes[0] != sizes[1]:
                raise problem
            groups.append((a, b))
            continue
        x, y = sizes
        while x != y:
            short, rest, shape = (a, left, source) if x < y else (b, right, target)
            if not rest or isinstance(shape[rest[0]], Dim):
                raise problem
            more = _int(shape[rest[0]])
            short.append(rest.pop(0))
            x, y = (x * more, y) if short is a else (x, y * more)
        groups.append((a, b))
    if left or right:
        raise problem
    return groups


def permute_dims(x: Any, axes: Sequence[int]) -> Tensor:
    """The axes in the order in which `axes` names them."""
    tensor = asarray(x)
    order = [normal_axis("permute_dims", axis, tensor.ndim) for axis in axes]
    if sorted(order) != list(range(tensor.ndim)):
        raise ShapeError(
            f"permute_dims: {tuple(axes)} is not an order of the {tensor.ndim} axes "
            f"of shape {show(tensor.shape)}"
        )
    d = dims(tensor.ndim)
    places = [d[order.index(i)] for i in range(tensor.ndim)]
    return view([tensor], [places], tuple(tensor.shape[axis] for axis in order))


def transpose(x: Any, *axes: Any) -> Tensor:
    """The axes reversed, or in the order given."""
    tensor = asarray(x)
    order = list(axes[0]) if len(axes) == 1 and isinstance(axes[0], Sequence) else list(axes)
    return permute_dims(tensor, order or list(range(tensor.ndim))[::-1])


def matrix_transpose(x: Any) -> Tensor:
    """The last two axes swapped."""
    tensor = asarray(x)
    if tensor.ndim < 2:
        raise ShapeError(f"matrix_transpose: shape {show(tensor.shape)} has fewer than 2 axes")
    return swapaxes(tensor, -2, -1)


def swapaxes(x: Any, a: int, b: int) -> Tensor:
    """Two axes swapped."""
    tensor = asarray(x)
    first, second = (normal_axis("swapaxes", axis, tensor.ndim) for axis in (a, b))
    order = list(range(tensor.ndim))
    order[first], order[second] = second, first
    return permute_dims(tensor, order)


def moveaxis(x: Any, source: int, destination: int) -> Tensor:
    """One axis moved to another position, the others in their order."""
    tensor = asarray(x)
    order = list(range(tensor.ndim))
    order.remove(normal_axis("moveaxis", source, tensor.ndim))
    order.insert(
        normal_axis("moveaxis", destination, tensor.ndim),
        normal_axis("moveaxis", source, tensor.ndim),
    )
    return permute_dims(tensor, order)


def expand_dims(x: Any, axis: Any = 0) -> Tensor:
    """x with axes of size 1 at these positions of the result."""
    tensor = asarray(x)
    count = len(axis) if isinstance(axis, Sequence) else 1
    new = normal_axes("expand_dims", axis, tensor.ndim + count)
    sizes = iter(tensor.shape)
    shape = tuple(1 if i in new else next(sizes) for i in range(tensor.ndim + count))
    kept = [e for i, e in enumerate(dims(len(shape))) if i not in new]
    return view([tensor], [kept], shape)


def squeeze(x: Any, axis: Any = None) -> Tensor:
    """x without these axes (by default all) of size 1; ShapeError if one is not of size 1."""
    tensor = asarray(x)
    if axis is None:
        gone = tuple(i for i, size in enumerate(tensor.shape) if size == 1)
    else:
        gone = normal_axes("squeeze", axis, tensor.ndim)
    for i in gone:
        if tensor.shape[i] != 1:
            raise ShapeError(f"squeeze: axis {i} of shape {show(tensor.shape)} is not of size 1")
    rest = iter(dims(tensor.ndim - len(gone)))
    places = [literal(0) if i in gone else next(rest) for i in range(tensor.ndim)]
    shape = tuple(size for i, size in enumerate(tensor.shape) if i not in gone)
    return view([tensor], [places], shape)


def flip(x: Any, axis: Any = None) -> Tensor:
    """x in reverse order along these axes (by default all of them)."""
    tensor = asarray(x)
    axes = normal_axes("flip", axis, tensor.ndim)
    dynamic = [i for i, size in enumerate(tensor.shape) if isinstance(size, Dim)]
    places = dims(tensor.ndim)
    for i in axes:
        size = tensor.shape[i]
        last = symbol(dynamic.index(i)) if isinstance(size, Dim) else literal(size)
        places[i] = last - places[i] - 1
    return view([tensor], [places], tensor.shape)


def roll(x: Any, shift: Any, axis: Any = None) -> Tensor:
    """x shifted along axes, what leaves one end entering at the other; by default as if flat."""
    tensor = asarray(x)
    if axis is None:
        flat = reshape(tensor, (-1,))
        return reshape(roll(flat, shift, 0), tensor.shape)
    axes = list(axis) if isinstance(axis, Sequence) else [axis]
    shifts = list(shift) if isinstance(shift, Sequence) else [shift] * len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    places = dims(tensor.ndim)
    for by, given in zip(shifts, axes, strict=True):
        i = normal_axis("roll", given, tensor.ndim)
        size = number("roll", tensor.shape[i])
        if size > 1:
            places[i] = mod(places[i] + (size - by % size), size)
    return view([tensor], [places], tensor.shape)


def pad(x: Any, widths: Any, value: bool | int | float = 0) -> Tensor:
    """x with `value` around it; `widths` is a pair (before, after) for each axis, or one for
    all."""
    tensor = asarray(x)
    pairs = _pad_pairs(tensor, widths)
    if not any(before or after for before, after in pairs):
        return tensor
    places, shape = dims(tensor.ndim), list(tensor.shape)
    for i, (before, after) in enumerate(pairs):
        if before or after:
            shape[i] = number("pad", tensor.shape[i]) + before + after
            places[i] = places[i] - before
    return view([tensor], [places], tuple(shape), fill=value)


def _pad_pairs(x: Tensor, widths: Any) -> list[tuple[int, int]]:
    given = list(widths) if isinstance(widths, Sequence) else [widths, widths]
    if len(given) == 2 and all(isinstance(width, int) for width in given):
        given = [given] * x.ndim
    problem = ShapeError(f"pad: widths {widths} do not fit shape {show(x.shape)}")
    if len(given) != x.ndim:
        raise problem
    pairs = []
    for pair in given:
        before, after = (pair, pair) if isinstance(pair, int) else tuple(pair)
        if before < 0 or after < 0:
            raise problem
        pairs.append((before, after))
    return pairs


def concat(arrays: Sequence[Any], axis: int | None = 0) -> Tensor:
    """The tensors one after the other along an axis: a balanced tree of views of two sources."""
    if not len(arrays):
        raise ShapeError("concat: needs at least one tensor")
    tensors = promotion.promote("concat", *arrays)
    if axis is None:
        tensors, axis = [reshape(t, (-1,)) for t in tensors], 0
    first = tensors[0].shape
    at = normal_axis("concat", axis, len(first))
    for t in tensors:
        if t.ndim != len(first) or t.shape[:at] + t.shape[at + 1 :] != first[:at] + first[at + 1 :]:
            shapes = " and ".join(show(s) for s in (first, t.shape))
            raise ShapeError(f"concat: shapes {shapes} differ in more than axis {at}")
        number("concat", t.shape[at])
    return _pairwise([t for t in tensors if t.shape[at] != 0] or tensors[:1], at)


def _pairwise(tensors: list[Tensor], axis: int) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    half = len(tensors) // 2
    a, b = _pairwise(tensors[:half], axis), _pairwise(tensors[half:], axis)
    left, right = number("concat", a.shape[axis]), number("concat", b.shape[axis])
    d = dims(a.ndim)
    second = [e - left if i == axis else e for i, e in enumerate(d)]
    shape = (*a.shape[:axis], left + right, *a.shape[axis + 1 :])
    return view([a, b], [d, second], shape)


def stack(arrays: Sequence[Any], axis: int = 0) -> Tensor:
    """The tensors, all of one shape, along a new axis."""
    tensors = [promotion.as_tensor("stack", x) for x in arrays]
    for t in tensors:
        if t.shape != tensors[0].shape:
            shapes = " and ".join(show(s) for s in (tensors[0].shape, t.shape))
            raise ShapeError(f"stack: shapes {shapes} differ")
    return concat([expand_dims(t, axis) for t in tensors], axis)


def unstack(x: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices of x along an axis, without that axis."""
    tensor = asarray(x)
    if not tensor.ndim:
        raise ShapeError("unstack: a tensor of rank 0 has no axis")
    at = normal_axis("unstack", axis, tensor.ndim)
    return tuple(_slice(tensor, at, i) for i in range(number("unstack", tensor.shape[at])))


def _slice(x: Tensor, axis: int, at: int) -> Tensor:
    rest = iter(dims(x.ndim - 1))
    places = [literal(at) if i == axis else next(rest) for i in range(x.ndim)]
    return view([x], [places], x.shape[:axis] + x.shape[axis + 1 :])


def split(x: Any, parts: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """numpy's split: into `parts` equal pieces, or before each of the positions in a list."""
    tensor = asarray(x)
    at = normal_axis("split", axis, tensor.ndim)
    size = number("split", tensor.shape[at])
    if isinstance(parts, Sequence):
        edges = [0, *[min(p + size if p < 0 else p, size) for p in parts], size]
    elif parts < 1 or size % parts:
        raise ShapeError(f"split: axis {at} of size {size} does not divide into {parts} parts")
    else:
        edges = list(range(0, size + 1, size // parts)) if size else [0] * (parts + 1)
    pieces = []
    for low, high in itertools.pairwise(edges):
        places = [e + low if i == at else e for i, e in enumerate(dims(tensor.ndim))]
        shape = (*tensor.shape[:at], max(high - low, 0), *tensor.shape[at + 1 :])
        pieces.append(view([tensor], [places], shape))
    return tuple(pieces)


def repeat(x: Any, repeats: int, axis: int | None = None) -> Tensor:
    """Every element `repeats` times in a row along an axis, or of the flat tensor."""
    tensor = asarray(x)
    if repeats < 0:
        raise ShapeError(f"repeat: cannot repeat {repeats} times")
    if axis is None:
        return repeat(reshape(tensor, (-1,)), repeats, 0)
    at = normal_axis("repeat", axis, tensor.ndim)
    size = number("repeat", tensor.shape[at])
    places = dims(tensor.ndim)
    places[at] = floordiv(places[at], repeats) if repeats else places[at]
    shape = (*tensor.shape[:at], size * repeats, *tensor.shape[at + 1 :])
    return view([tensor], [places], shape)


def tile(x: Any, repetitions: Any) -> Tensor:
    """The whole of x so many times along each axis."""
    tensor = asarray(x)
    counts = list(repetitions) if isinstance(repetitions, Sequence) else [repetitions]
    rank = max(len(counts), tensor.ndim)
    counts = [1] * (rank - len(counts)) + counts
    tensor = reshape(tensor, (1,) * (rank - tensor.ndim) + tensor.shape)
    places, shape = dims(rank), list(tensor.shape)
    for i, count in enumerate(counts):
        if count != 1:
            size = number("tile", tensor.shape[i])
            shape[i] = size * count
            places[i] = mod(places[i], size) if size else places[i]
    return view([tensor], [places], tuple(shape))


def tril(x: Any, k: int = 0) -> Tensor:
    """The lower triangles of matrices, from diagonal k down; 0 above."""
    return _triangle("tril", x, k, 1)


def triu(x: Any, k: int = 0) -> Tensor:
    """The upper triangles of matrices, from diagonal k up; 0 below."""
    return _triangle("triu", x, k, -1)


def _triangle(name: str, x: Any, k: int, sign: int) -> Tensor:
    tensor = asarray(x)
    if tensor.ndim < 2:
        raise ShapeError(f"{name}: shape {show(tensor.shape)} has fewer than 2 axes")
    d = dims(tensor.ndim)
    return view([tensor], [d], tensor.shape, domains=[[(d[-2] - d[-1] + k) * sign]])


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tensor]:
    """The coordinates of a grid from those of its axes."""
    tensors = [asarray(x) for x in arrays]
    shape = tuple(t.shape[0] for t in tensors)
    grids = []
    for i, t in enumerate(tensors):
        grid = view([t], [[dims(len(shape))[i]]], shape)
        swap = indexing == "xy" and len(shape) > 1
        grids.append(swapaxes(grid, 0, 1) if swap else grid)
    return grids
