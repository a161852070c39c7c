"""Type promotion, as the Python array API standard has it.

Tensors of one kind meet in the wider dtype; an integer and a float meet in the float's dtype.
Python scalars (and numpy's scalars, which numpy's own arithmetic returns for them) are weak: they
take the dtype of the tensor, unless their kind is higher, and then the default dtype of their kind,
int64 or float32. Where this differs from numpy: int32 and float32 give float32, not float64; a
float from integers is float32, not float64; float16 and bfloat16 give float32; numpy's scalars are
weak.

    >>> result_type(dd.zeros(3, dtype="int32"), 2.5)
    float32
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import numpy as np

from . import creation, movement
from .dialect.dtypes import BY_NUMPY, DTYPES, DType, dtype
from .dialect.errors import DtypeError
from .shapes import broadcast_shapes
from .tensor import Tensor

Rest = ParamSpec("Rest")

_RANK = {"bool": 0, "int": 1, "uint": 1, "float": 2}
_DEFAULT = {0: DTYPES["bool"], 1: DTYPES["int64"], 2: DTYPES["float32"]}


def is_weak(value: Any) -> bool:
    """Whether a value is a scalar, which takes the dtype of the tensors that it meets."""
    if isinstance(value, np.generic):
        return value.dtype in BY_NUMPY
    return isinstance(value, bool | int | float)


def _weak_rank(value: Any) -> int:
    kind = np.asarray(value).dtype
    return 0 if kind == np.bool_ else 1 if kind.kind in "iu" else 2


def join(a: DType, b: DType) -> DType:
    """The dtype in which tensors of these two dtypes meet."""
    if a == b:
        return a
    if _RANK[a.kind] != _RANK[b.kind]:
        return a if _RANK[a.kind] > _RANK[b.kind] else b
    if a.bits == b.bits:  # float16 with bfloat16, int8 with uint8
        return DTYPES["float32"] if a.is_float else DTYPES["int16"]
    return a if a.bits > b.bits else b


def result_type(*values: Any) -> DType:
    """The dtype in which tensors, arrays, dtypes and scalars meet; DtypeError if there is none."""
    strong: DType | None = None
    weak = -1
    for value in values:
        if is_weak(value):
            weak = max(weak, _weak_rank(value))
            continue
        kind = value.dtype if isinstance(value, Tensor | np.ndarray) else value
        strong = dtype(kind) if strong is None else join(strong, dtype(kind))
    if strong is None:
        return _DEFAULT[max(weak, 0)]
    return strong if weak <= _RANK[strong.kind] else _DEFAULT[weak]


def promote(name: str, *values: Any) -> list[Tensor]:
    """The values as tensors of the dtype in which they meet; shapes stay as they are."""
    given = [v if is_weak(v) or isinstance(v, Tensor) else _strong(name, v) for v in values]
    kind = result_type(*given)
    return [
        v.astype(kind) if isinstance(v, Tensor) else creation.scalar(name, v, kind) for v in given
    ]


def _strong(name: str, value: Any) -> Tensor:
    try:
        return creation.asarray(value)
    except DtypeError as error:
        raise DtypeError(f"{name}: {error}") from None


def together(name: str, *values: Any) -> list[Tensor]:
    """The values as tensors of one dtype and one shape."""
    tensors = promote(name, *values)
    shape = broadcast_shapes(name, *[t.shape for t in tensors])
    return [movement.spread(t, shape) for t in tensors]


def as_tensor(name: str, x: Any) -> Tensor:
    """x as a tensor: a scalar gets the default dtype of its kind."""
    return promote(name, x)[0]


def floating(name: str, x: Any) -> Tensor:
    """x as a tensor of floats: integers and bools become float32."""
    tensor = as_tensor(name, x)
    return tensor if tensor.dtype.is_float else tensor.astype("float32")


def widen(x: Tensor) -> Tensor:
    """A 16-bit float as float32, in which it is computed; anything else as it is."""
    return x.astype("float32") if x.dtype.is_float and x.dtype.bits == 16 else x


def in_float32(
    function: Callable[Concatenate[Tensor, Rest], Tensor],
) -> Callable[Concatenate[Any, Rest], Tensor]:
    """Make a function of a float32 or float64 tensor one of any tensor.

    A 16-bit float is computed in float32 and rounded once, integers become float32.
    """

    @wraps(function)
    def wrapped(x: Any, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Tensor:
        tensor = floating(function.__name__, x)
        return function(widen(tensor), *args, **kwargs).astype(tensor.dtype)

    return wrapped
