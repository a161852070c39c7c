"""Convolution and pooling in two dimensions: windows are one view of a padded tensor.

    conv2d   a view of x in the axes (n, o, y, x, i, j, c), one of the weight, mul, three sums
    pool     a view of x in the axes (n, c, y, x, i, j), two reductions

A size is one integer for both directions or a pair (rows, columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .arithmetic import binary, unary
from .creation import ones
from .dialect.errors import ShapeError
from .maps import Expr, dims, floordiv, view
from .movement import along, pad, reshape
from .promotion import as_tensor, floating, promote, widen
from .reductions import fold
from .shapes import number, show
from .tensor import Tensor

Pair = int | Sequence[int]


@dataclass(frozen=True)
class _Windows:
    """How windows lie on the last two axes: as many as `counts`, at these steps and offsets."""

    counts: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def places(self, at: Sequence[Expr], inside: Sequence[Expr]) -> list[Expr]:
        """The padded source's row and column for a window and a place inside it."""
        return [at[i] * self.stride[i] + inside[i] * self.dilation[i] for i in range(2)]

    def padded(self, x: Tensor, value: Any) -> Tensor:
        """The source with `value` around it."""
        return pad(x, [(0, 0), (0, 0), *((n, n) for n in self.padding)], value)


def _pair(name: str, label: str, value: Pair, least: int = 1) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or min(pair) < least:
        raise ShapeError(f"{name}: the {label} is one or two integers from {least} up, got {value}")
    return pair[0], pair[1]


def _windows(
    name: str, x: Tensor, window: Pair, stride: Pair, padding: Pair, dilation: Pair = 1
) -> _Windows:
    if x.ndim != 4:
        raise ShapeError(f"{name}: takes a tensor (n, c, rows, columns), got shape {show(x.shape)}")
    size = _pair(name, "window", window)
    steps, pads = _pair(name, "stride", stride), _pair(name, "padding", padding, 0)
    gaps = _pair(name, "dilation", dilation)
    rooms = [
        number(name, x.shape[2 + i]) + 2 * pads[i] - gaps[i] * (size[i] - 1) - 1 for i in range(2)
    ]
    if min(rooms) < 0:
        raise ShapeError(
            f"{name}: a window of {show(size)} does not fit shape {show(x.shape)} padded by {pads}"
        )
    counts = rooms[0] // steps[0] + 1, rooms[1] // steps[1] + 1
    return _Windows(counts, size, steps, pads, gaps)


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """torch's conv2d: x (n, c, rows, columns), weight (o, c / groups, i, j), bias (o,) or None give
    (n, o, rows', columns'). 16-bit floats are summed in float32 and rounded once."""
    given, kernel = promote("conv2d", x, weight)
    if kernel.ndim != 4 or given.ndim != 4:
        shapes = f"{show(given.shape)} and {show(kernel.shape)}"
        raise ShapeError(f"conv2d: x and weight must have rank 4, got shapes {shapes}")
    outputs, depth, *window = (number("conv2d", size) for size in kernel.shape)
    channels = number("conv2d", given.shape[1])
    if groups < 1 or outputs % groups or channels != depth * groups:
        raise ShapeError(
            f"conv2d: x has {channels} channels and weight shape {show(kernel.shape)}, which do "
            f"not fit {groups} groups"
        )
    windows = _windows("conv2d", given, window, stride, padding, dilation)
    n, o, row, column, i, j, c = dims(7)
    shape = (given.shape[0], outputs, *windows.counts, *windows.window, depth)
    channel = c if groups == 1 else floordiv(o, outputs // groups) * depth + c
    source = windows.padded(widen(given), 0)
    read = view([source], [[n, channel, *windows.places((row, column), (i, j))]], shape)
    weights = view([widen(kernel)], [[o, c, i, j]], shape)
    several = tuple(axis for axis in (4, 5, 6) if shape[axis] != 1)
    total = fold("sum_reduce", binary("mul", read, weights), several)
    total = reshape(total, shape[:4])
    if bias is not None:
        _, offset = promote("conv2d", given, bias)
        if offset.shape != (outputs,):
            raise ShapeError(
                f"conv2d: the bias has shape {show(offset.shape)}, expected ({outputs},)"
            )
        total = total + along(offset.astype(total.dtype), total.shape, (0, 2, 3))
    return total.astype(given.dtype)


def _pooled(x: Tensor, windows: _Windows, fill: Any) -> Tensor:
    n, c, row, column, i, j = dims(6)
    shape = (*x.shape[:2], *windows.counts, *windows.window)
    source = windows.padded(x, fill)
    return view([source], [[n, c, *windows.places((row, column), (i, j))]], shape)


def max_pool2d(x: Any, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
    """The maximum of each window, (n, c, rows, columns) -> (n, c, rows', columns'); padding counts
    as the least value; the stride is by default the window."""
    tensor = as_tensor("max_pool2d", x)
    steps = kernel_size if stride is None else stride
    windows = _windows("max_pool2d", tensor, kernel_size, steps, padding)
    return fold("max_reduce", _pooled(tensor, windows, tensor.dtype.lowest), (4, 5))


def avg_pool2d(
    x: Any,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window, (n, c, rows, columns) -> (n, c, rows', columns'); the stride is by
    default the window. Padding counts as zeros, unless `count_include_pad` is false."""
    tensor = floating("avg_pool2d", x)
    steps = kernel_size if stride is None else stride
    windows = _windows("avg_pool2d", tensor, kernel_size, steps, padding)
    wide = widen(tensor)
    total = fold("sum_reduce", _pooled(wide, windows, 0), (4, 5))
    if count_include_pad:
        scaled = total * (1 / (windows.window[0] * windows.window[1]))
    else:
        all_ones = ones((1, 1, *tensor.shape[2:]), wide.dtype)
        count = fold("sum_reduce", _pooled(all_ones, windows, 0), (4, 5))
        scaled = total * unary("recip", count)
    return scaled.astype(tensor.dtype)
