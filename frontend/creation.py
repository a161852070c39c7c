"""Tensors from nothing, from arrays and from other dtypes.

>>> dd.arange(0, 10, 2), dd.zeros((2, 3)), dd.eye(4), dd.Tensor(weights, name="w")
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from . import maps
from .dialect.dtypes import BY_NUMPY, DTYPES, DType, dtype
from .dialect.errors import DtypeError, ShapeError
from .shapes import Dim, Shape, as_shape, number
from .tensor import Leaf, Tensor, node

INLINE = 16  # arrays of up to so many elements become constants, larger ones weights


def asarray(value: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """A tensor from a tensor, an array, a scalar or nested lists of scalars.

    An array of more than 16 elements is a weight of the programs that use it, under its `name`; it
    is not copied, so do not change it. Arrays keep their dtype; scalars and lists of floats are
    float32, of integers int64, unless `dtype` says otherwise. DtypeError for what has no dtype
    here.
    """
    if isinstance(value, Tensor):
        return value if dtype is None else astype(value, dtype)
    wanted = None if dtype is None else _dtype(dtype)
    if not hasattr(value, "__array__"):
        value, wanted = _from_python(value, wanted)
    array = value if isinstance(value, np.ndarray) else np.asarray(value)  # the very object
    if wanted is not None and array.dtype != wanted.numpy:
        with np.errstate(all="ignore"):
            array = array.astype(wanted.numpy)
    if array.dtype not in BY_NUMPY:
        raise DtypeError(
            f"an array of {array.dtype} has no dtype of dodeca's ({', '.join(DTYPES)})"
        )
    kind = BY_NUMPY[array.dtype]
    if array.size <= INLINE:
        return node("constant", (), array.copy(), array.shape, kind)
    return node("array", (), Leaf(array, name), array.shape, kind)


def _dtype(value: Any) -> DType:
    return dtype(value)


def _from_python(value: Any, wanted: DType | None) -> tuple[np.ndarray, DType]:
    """An array from scalars and lists, and the dtype that it shall have."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ShapeError("asarray: the nested lists are ragged") from None
    if array.dtype.kind == "u" and (wanted is None or not wanted.is_float):
        raise DtypeError(f"{value!r} does not fit {wanted or 'int64'}")
    default = {"f": "float32", "i": "int64", "u": "float32", "b": "bool"}.get(array.dtype.kind)
    if default is None:
        raise DtypeError(f"{value!r} ({type(value).__name__}) is not a tensor, array or number")
    return array, wanted or DTYPES[default]


def scalar(name: str, value: Any, kind: DType, shape: Shape = ()) -> Tensor:
    """A constant with one value all over; DtypeError if an integer does not fit the dtype."""
    if kind.kind in ("int", "uint"):
        info = np.iinfo(kind.numpy)
        if not info.min <= value <= info.max:
            raise DtypeError(f"{name}: {value} does not fit {kind}")
    with np.errstate(over="ignore"):
        array = np.asarray(value).astype(kind.numpy)
    made = node("constant", (), array, (), kind)
    return maps.view([made], [[]], shape)


def astype(x: Any, dtype: Any) -> Tensor:
    """x in another dtype: floats truncate and saturate to integers, NaN gives 0; integers wrap; a
    number is True where it is not 0."""
    tensor, kind = asarray(x), _dtype(dtype)
    if tensor.dtype == kind:
        return tensor
    return node("cast", (tensor,), None, tensor.shape, kind)


def bitcast(x: Any, dtype: Any) -> Tensor:
    """The bits of x as another dtype of the same width; DtypeError if the widths differ."""
    tensor, kind = asarray(x), _dtype(dtype)
    if tensor.dtype.bits != kind.bits or "bool" in (tensor.dtype.kind, kind.kind):
        raise DtypeError(f"bitcast: {tensor.dtype} and {kind} have no common bit pattern")
    return node("bitcast", (tensor,), None, tensor.shape, kind)


def full(shape: Any, value: Any, dtype: Any = None) -> Tensor:
    """A tensor with one value all over; without `dtype` the default for the value's kind."""
    return _filled("full", shape, value, dtype)


def _filled(name: str, shape: Any, value: Any, dtype: Any) -> Tensor:
    made = asarray(value, dtype=dtype)
    if made.shape:
        raise ShapeError(f"{name}: the value must be a scalar, got shape {made.shape}")
    return maps.view([made], [[]], as_shape(name, shape))


def zeros(shape: Any, dtype: Any = "float32") -> Tensor:
    """A tensor of zeros."""
    return _filled("zeros", shape, 0, dtype)


def ones(shape: Any, dtype: Any = "float32") -> Tensor:
    """A tensor of ones."""
    return _filled("ones", shape, 1, dtype)


def full_like(x: Any, value: Any, dtype: Any = None) -> Tensor:
    """A tensor with one value all over, in the shape and (unless given) the dtype of x."""
    tensor = asarray(x)
    return full(tensor.shape, value, dtype or tensor.dtype)


def zeros_like(x: Any, dtype: Any = None) -> Tensor:
    """Zeros in the shape and (unless given) the dtype of x."""
    return full_like(x, 0, dtype)


def ones_like(x: Any, dtype: Any = None) -> Tensor:
    """Ones in the shape and (unless given) the dtype of x."""
    return full_like(x, 1, dtype)


def iota(shape: Shape, axis: int, kind: str = "int64") -> Tensor:
    """The index along an axis, at every place of a tensor of this shape."""
    return node("iota", (), axis, shape, DTYPES[kind])


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Tensor:
    """start, start + step, ... up to but without `stop`; `arange(n)` counts from 0, n may be a Dim.

    int64 if all three are integers, else float32 (computed in float64).
    """
    if stop is None:
        start, stop = 0, start
    if isinstance(stop, Dim):
        if start != 0 or step != 1:
            number("arange", stop, "unless it counts from 0 by 1")
        counted = iota((stop,), 0)
        return counted if dtype is None else counted.astype(dtype)
    if step == 0:
        raise ShapeError("arange: the step is 0")
    size = max(0, ceil((stop - start) / step))
    whole = all(isinstance(v, int | np.integer) for v in (start, stop, step))
    counted = iota((size,), 0)
    if whole:
        return (counted * int(step) + int(start)).astype(dtype or "int64")
    return (counted.astype("float64") * float(step) + float(start)).astype(dtype or "float32")


def linspace(
    start: float, stop: float, num: int, dtype: Any = "float32", endpoint: bool = True
) -> Tensor:
    """`num` evenly spaced numbers from `start` to `stop`, computed in float64."""
    gaps = max(num - 1 if endpoint else num, 1)
    counted = iota((num,), 0).astype("float64")
    line = counted * ((float(stop) - float(start)) / gaps) + float(start)
    if endpoint and num > 1:  # the last one is `stop` itself, whatever the step rounded to
        (d,) = maps.dims(1)
        line = maps.view(
            [line], [[d]], (num,), domains=[[maps.literal(num - 2) - d]], fill=float(stop)
        )
    return line.astype(dtype)


def eye(rows: int, columns: int | None = None, k: int = 0, dtype: Any = "float32") -> Tensor:
    """A matrix with ones on diagonal k and zeros elsewhere: one view of a 1 whose domain is the
    diagonal."""
    shape = as_shape("eye", (rows, rows if columns is None else columns))
    one = asarray(1, dtype=dtype)
    row, column = maps.dims(2)
    diagonal = [row - column + k, column - row + (-k)]
    return maps.view([one], [[]], shape, domains=[diagonal])
