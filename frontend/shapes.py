"""Sizes and shapes: `Dim`, and the rules of axes and broadcasting.

A size is a number, or a `Dim` where only the running program knows it. Two sizes are the same when
the numbers are equal, or the names of the Dims.

    >>> seq = Dim("seq", 1, 4096)
    >>> broadcast_shapes("add", (seq, 1), (384,))
    (Dim('seq', 1, 4096), 384)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NoReturn

from .dialect.errors import ShapeError


@dataclass(frozen=True, eq=False)
class Dim:
    """A size that is known when the program runs: any number from `low` to `high`, both included.

    Dims are equal when their names are. Whatever needs a number raises ShapeError.
    """

    name: str
    low: int
    high: int

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ShapeError(f"Dim: the name {self.name!r} is not an identifier")
        if not 0 <= self.low <= self.high:
            raise ShapeError(
                f"Dim {self.name}: expected 0 <= low <= high, got {self.low}, {self.high}"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Dim({self.name!r}, {self.low}, {self.high})"

    def __str__(self) -> str:
        return self.name

    def _unknown(self, *_: Any) -> NoReturn:
        raise ShapeError(
            f"the size {self.name} is known only when the program runs; this needs a number"
        )

    __index__ = __int__ = __float__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = _unknown


Size = int | Dim
Shape = tuple[Size, ...]


def show(shape: Iterable[Size]) -> str:
    """A shape as a user writes it: `(seq, 384)`."""
    sizes = [str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def as_shape(name: str, shape: Any) -> Shape:
    """A shape from a size or a sequence of sizes; ShapeError on anything else."""
    sizes = [shape] if isinstance(shape, Dim) or not isinstance(shape, Iterable) else list(shape)
    try:
        made = tuple(size if isinstance(size, Dim) else index(size) for size in sizes)
    except TypeError:
        raise ShapeError(f"{name}: {shape!r} is not a shape") from None
    for size in made:
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"{name}: the shape {show(made)} has a negative size")
    return made


def number(name: str, size: Size, why: str = "") -> int:
    """The size as a number; ShapeError for a Dim, saying which operation needs a number."""
    if isinstance(size, Dim):
        reason = f" {why}" if why else ""
        raise ShapeError(
            f"{name}: needs a number{reason}, but the size {size} is known only at run time"
        )
    return size


def numbers(name: str, shape: Sequence[Size]) -> tuple[int, ...]:
    """The shape in numbers; ShapeError if it has a Dim."""
    return tuple(number(name, size) for size in shape)


def elements(name: str, shape: Sequence[Size]) -> int:
    """The number of elements; ShapeError if the shape has a Dim."""
    total = 1
    for size in numbers(name, shape):
        total *= size
    return total


def normal_axis(name: str, axis: Any, rank: int) -> int:
    """An axis counted from the front, in [0, rank); ShapeError if there is no such axis."""
    try:
        given = index(axis)
    except TypeError:
        raise ShapeError(f"{name}: the axis must be an integer, got {axis!r}") from None
    if not -rank <= given < rank:
        raise ShapeError(f"{name}: axis {given} is outside a tensor of rank {rank}")
    return given % rank


def normal_axes(name: str, axes: Any, rank: int) -> tuple[int, ...]:
    """Several axes (None means all of them) counted from the front, in increasing order."""
    if axes is None:
        return tuple(range(rank))
    given = list(axes) if isinstance(axes, Iterable) else [axes]
    normal = [normal_axis(name, axis, rank) for axis in given]
    if len(set(normal)) != len(normal):
        raise ShapeError(f"{name}: the axes {tuple(given)} name an axis twice")
    return tuple(sorted(normal))


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """The shape that all of these broadcast to, by numpy's rule; ShapeError names the sizes."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Size] = []
    for axis in range(rank):
        size: Size = 1
        for shape in shapes:
            at = axis - rank + len(shape)
            other = shape[at] if at >= 0 else 1
            if size == 1:
                size = other
            elif other not in (1, size):
                listed = " and ".join(show(s) for s in shapes)
                raise ShapeError(
                    f"{name}: shapes {listed} do not broadcast: {size} and {other} differ"
                )
        result.append(size)
    return tuple(result)
