"""`Tensor`: a lazy value, one node of the graph that a program builds.

A node is an operation, its operands, one attribute, a shape and a dtype. Nodes are interned: the
same expression is the same object, so identity is equality and a memo is a dict. The operations are
the 12 primitives of the dialect with `constant`, `iota`, `cast` and `bitcast`; the leaves are
`input` (an argument of the traced function) and `array` (a concrete array: a weight).

    >>> x = dd.Tensor(np.ones((2, 3), np.float32))
    >>> (x + 1).op, (x + 1) is (x + 1)
    ('add', True)

The functions that build nodes live in modules that import this one; the methods here pass on to
them, and they document what they do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import CodeType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from .dialect.dtypes import DType, dtype
from .dialect.errors import DtypeError, Error
from .dialect.views import View
from .shapes import Shape, elements, show

if TYPE_CHECKING:
    from . import (
        activations,
        arithmetic,
        comparison,
        creation,
        division,
        indexing,
        linalg,
        movement,
        powers,
        reductions,
        transcendental,
    )

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass(frozen=True, eq=False)
class Leaf:
    """The attribute of an `array` node: the array itself (never copied) and its name."""

    array: np.ndarray
    name: str | None


class Tensor:
    """A lazy tensor. `Tensor(array, name)` is a leaf that holds a concrete array (not copied)."""

    __slots__ = ("__weakref__", "attribute", "dtype", "op", "operands", "place", "shape")
    __array_ufunc__ = None  # so that `array + tensor` asks the tensor
    __hash__ = object.__hash__

    op: str
    operands: tuple[Tensor, ...]
    attribute: Any  # an axis, a View, the array of a constant, a Leaf, or None
    shape: Shape
    dtype: DType
    place: tuple[CodeType, int] | None  # the user's code object and the instruction in it

    def __new__(cls, value: Any, name: str | None = None, dtype: Any = None) -> Tensor:
        return creation.asarray(value, dtype=dtype, name=name)

    # --- what it is -----------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements; ShapeError if a size is a Dim."""
        return elements("size", self.shape)

    @property
    def name(self) -> str | None:
        """The name that a leaf was given."""
        return getattr(self.attribute, "name", None)

    def __repr__(self) -> str:
        return f"Tensor({self.op}, shape={show(self.shape)}, dtype={self.dtype})"

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return sys.modules[__package__ or "dodeca"]

    # --- its value ------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """The value of an expression without inputs, compiled for the CPU and run; Error if it has
        an input."""
        if self.op == "array":
            return self.attribute.array
        if self.op == "constant":
            return np.broadcast_to(self.attribute, [int(size) for size in self.shape])
        from .compile import value_of  # the compiler is loaded by the first program that needs it

        return value_of(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self.numpy()
        wanted = value if dtype is None else value.astype(dtype, copy=False)
        return wanted.copy() if copy else wanted

    def item(self) -> Any:
        """The value of a tensor of one element, as a Python scalar."""
        return self.numpy().item()

    def _scalar(self, kind: str) -> Any:
        try:
            return self.item()
        except ValueError as error:
            if isinstance(error, Error):
                raise
            raise Error(f"{kind}: a tensor of shape {show(self.shape)} is not a scalar") from None

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __index__(self) -> int:
        if self.dtype.kind not in ("int", "uint"):
            raise DtypeError(f"index: a tensor of {self.dtype} is not an integer")
        return int(self._scalar("index"))

    def __len__(self) -> int:
        if not self.shape:
            raise Error("len: a tensor of rank 0 has no length")
        return elements("len", self.shape[:1])

    def __iter__(self) -> Iterator[Tensor]:
        return iter(movement.unstack(self, 0))

    def __contains__(self, value: Any) -> bool:
        raise Error("`in`: not known while tracing; use (tensor == value).any()")

    # --- operators ------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Tensor:
        return arithmetic.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return arithmetic.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return arithmetic.subtract(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return arithmetic.subtract(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return arithmetic.multiply(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return arithmetic.multiply(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return division.divide(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return division.divide(other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return division.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return division.floor_divide(other, self)

    def __mod__(self, other: Any) -> Tensor:
        return division.remainder(self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return division.remainder(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return powers.power(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return powers.power(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return linalg.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return linalg.matmul(other, self)

    def __neg__(self) -> Tensor:
        return arithmetic.negative(self)

    def __pos__(self) -> Tensor:
        return arithmetic.positive(self)

    def __abs__(self) -> Tensor:
        return comparison.abs(self)

    def __invert__(self) -> Tensor:
        return comparison.invert(self)

    def __and__(self, other: Any) -> Tensor:
        return comparison.bitwise_and(self, other)

    def __or__(self, other: Any) -> Tensor:
        return comparison.bitwise_or(self, other)

    def __xor__(self, other: Any) -> Tensor:
        return comparison.bitwise_xor(self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __eq__(self, other: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return comparison.equal(self, other)

    def __ne__(self, other: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return comparison.not_equal(self, other)

    def __lt__(self, other: Any) -> Tensor:
        return comparison.less(self, other)

    def __le__(self, other: Any) -> Tensor:
        return comparison.less_equal(self, other)

    def __gt__(self, other: Any) -> Tensor:
        return comparison.greater(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return comparison.greater_equal(self, other)

    def __getitem__(self, key: Any) -> Tensor:
        return indexing.index(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise Error("a Tensor does not change; use where, concat or pad to make another one")

    # --- movement -------------------------------------------------------------------------------

    def astype(self, dtype: Any) -> Tensor:
        return creation.astype(self, dtype)

    def reshape(self, *shape: Any) -> Tensor:
        return movement.reshape(self, shape[0] if len(shape) == 1 else shape)

    def permute(self, *axes: Any) -> Tensor:
        return movement.permute_dims(self, axes[0] if len(axes) == 1 else axes)

    def transpose(self, *axes: Any) -> Tensor:
        """numpy's transpose: the axes in a new order, or reversed when none are given."""
        return movement.transpose(self, *axes)

    @property
    def T(self) -> Tensor:
        return movement.transpose(self)

    @property
    def mT(self) -> Tensor:
        return movement.matrix_transpose(self)

    def expand_dims(self, axis: Any = 0) -> Tensor:
        return movement.expand_dims(self, axis)

    def squeeze(self, axis: Any = None) -> Tensor:
        return movement.squeeze(self, axis)

    def flatten(self) -> Tensor:
        return movement.reshape(self, (-1,))

    def broadcast_to(self, *shape: Any) -> Tensor:
        return movement.broadcast_to(self, shape[0] if len(shape) == 1 else shape)

    def flip(self, axis: Any = None) -> Tensor:
        return movement.flip(self, axis)

    def take(self, indices: Any, axis: int | None = None) -> Tensor:
        return indexing.take(self, indices, axis)

    def gather(self, indices: Any, axis: int = -1) -> Tensor:
        return indexing.gather(self, indices, axis)

    # --- reductions -----------------------------------------------------------------------------

    def sum(self, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Tensor:
        return reductions.sum(self, axis, keepdims=keepdims, dtype=dtype)

    def prod(self, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Tensor:
        return reductions.prod(self, axis, keepdims=keepdims, dtype=dtype)

    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return reductions.max(self, axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return reductions.min(self, axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return reductions.mean(self, axis, keepdims=keepdims)

    def var(self, axis: Any = None, correction: float = 0, keepdims: bool = False) -> Tensor:
        return reductions.var(self, axis, correction=correction, keepdims=keepdims)

    def std(self, axis: Any = None, correction: float = 0, keepdims: bool = False) -> Tensor:
        return reductions.std(self, axis, correction=correction, keepdims=keepdims)

    def any(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return reductions.any(self, axis, keepdims=keepdims)

    def all(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return reductions.all(self, axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return reductions.argmax(self, axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return reductions.argmin(self, axis, keepdims=keepdims)

    def cumsum(self, axis: int | None = None) -> Tensor:
        return reductions.cumulative_sum(self, axis)

    def softmax(self, axis: int = -1) -> Tensor:
        return activations.softmax(self, axis)

    def matmul(self, other: Any) -> Tensor:
        return linalg.matmul(self, other)

    # --- elementwise ----------------------------------------------------------------------------

    def abs(self) -> Tensor:
        return comparison.abs(self)

    def clip(self, min: Any = None, max: Any = None) -> Tensor:
        return comparison.clip(self, min, max)

    def exp(self) -> Tensor:
        return transcendental.exp(self)

    def log(self) -> Tensor:
        return transcendental.log(self)

    def sin(self) -> Tensor:
        return transcendental.sin(self)

    def cos(self) -> Tensor:
        return transcendental.cos(self)

    def tanh(self) -> Tensor:
        return transcendental.tanh(self)

    def erf(self) -> Tensor:
        return transcendental.erf(self)

    def sqrt(self) -> Tensor:
        return arithmetic.sqrt(self)

    def rsqrt(self) -> Tensor:
        return arithmetic.rsqrt(self)

    def square(self) -> Tensor:
        return arithmetic.square(self)

    def round(self) -> Tensor:
        return division.round(self)

    def sigmoid(self) -> Tensor:
        return activations.sigmoid(self)

    def relu(self) -> Tensor:
        return activations.relu(self)

    def gelu(self, approximate: str = "none") -> Tensor:
        return activations.gelu(self, approximate)

    def silu(self) -> Tensor:
        return activations.silu(self)


# --- nodes --------------------------------------------------------------------------------------

_NODES: WeakValueDictionary[tuple[Any, ...], Tensor] = WeakValueDictionary()


def node(
    op: str, operands: tuple[Tensor, ...], attribute: Any, shape: Shape, kind: DType
) -> Tensor:
    """The one node of this operation on these operands.

    A node keeps its operands alive, so their ids in the key stay theirs as long as it lives.
    """
    key = (op, tuple(map(id, operands)), _key(attribute), shape, kind.name)
    found = _NODES.get(key)
    if found is None:
        found = fresh(op, operands, attribute, shape, kind)
        _NODES[key] = found
    return found


def fresh(
    op: str, operands: tuple[Tensor, ...], attribute: Any, shape: Shape, kind: DType
) -> Tensor:
    """A node that is not interned: each input is one of its own."""
    made = object.__new__(Tensor)
    made.op, made.operands, made.attribute = op, operands, attribute
    made.shape, made.dtype, made.place = shape, kind, _caller()
    return made


def _key(attribute: Any) -> Any:
    if isinstance(attribute, View):  # repr keeps 0.0 and -0.0 apart, and joins NaN with NaN
        return (attribute.maps, repr(attribute.fill), attribute.domains, attribute.index_maps)
    if isinstance(attribute, np.ndarray):
        return (attribute.shape, attribute.tobytes())
    if isinstance(attribute, Leaf):
        return (id(attribute.array), attribute.name)
    return attribute


def _caller() -> tuple[CodeType, int] | None:
    """Where the user's code is: the innermost frame outside this package."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(PACKAGE):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def is_scalar(x: Tensor) -> bool:
    """Whether x is a constant with one value all over."""
    return x.op == "constant" and x.attribute.ndim == 0


def require(name: str, x: Tensor, *kinds: str) -> None:
    """Raise DtypeError unless the dtype is of one of these kinds."""
    if x.dtype.kind not in kinds:
        words = {"float": "floats", "int": "signed integers", "uint": "unsigned integers"}
        allowed = ", ".join(words.get(kind, "bool") for kind in kinds)
        raise DtypeError(f"{name}: takes {allowed}, not {dtype(x.dtype)}")


class _Module:
    """A module that builds on the class above, loaded when one of its functions is first called."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(f".{self._name}", __package__), attribute)
        setattr(self, attribute, value)  # from now on it is found without this method
        return value


if not TYPE_CHECKING:
    activations, arithmetic, comparison = map(_Module, ("activations", "arithmetic", "comparison"))
    creation, division, indexing = map(_Module, ("creation", "division", "indexing"))
    linalg, movement, powers = map(_Module, ("linalg", "movement", "powers"))
    reductions, transcendental = map(_Module, ("reductions", "transcendental"))
