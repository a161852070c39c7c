"""The meaning of the dialect: runs a module in numpy, operation by operation.

    >>> evaluate(module, np.ones(4, np.float32))
    [array([2., 2., 2., 2.], dtype=float32)]

With `precision="own"` every operation rounds to its dtype: 16-bit floats compute in float32 and
round once, and a sum adds in index order. With `precision="high"` floats stay in float64 (float64
in longdouble) from the inputs to the outputs; this is the judge of compiled programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import func

from . import ops
from .dtypes import DType, dtype
from .errors import ArgumentError, Error
from .ops import TensorType
from .primitives import PRIMITIVES
from .views import View, fold

Array = np.ndarray


def evaluate(
    module: ir.Module | ir.Operation, *arrays: Any, precision: str = "own", entry: str | None = None
) -> list[Array]:
    """The results of the function `entry` (by default the module's first) on these arrays."""
    root = module.operation if isinstance(module, ir.Module) else module
    body = root.regions[0].blocks[0].operations
    functions = {f.name.value: f.operation for f in body if isinstance(f, func.FuncOp)}
    name = entry or ir.StringAttr(ops.entry_function(root).attributes["sym_name"]).value
    if name not in functions:
        raise Error(f"the module has no function {name!r}; it has {', '.join(functions)}")
    with np.errstate(all="ignore"):
        return Interpreter(functions, precision == "high").call(name, list(arrays))


class Interpreter:
    """One evaluation: the functions of the module, and whether floats are widened."""

    def __init__(self, functions: dict[str, ir.Operation], high: bool):
        self.functions = functions
        self.high = high

    def kind(self, element: DType) -> np.dtype:
        """The numpy type that values of a dtype have in this evaluation."""
        return element.wide if self.high else element.numpy

    def call(self, name: str, arrays: list[Any]) -> list[Array]:
        block = self.functions[name].regions[0].blocks[0]
        if len(arrays) != len(block.arguments):
            raise ArgumentError(f"{name} takes {len(block.arguments)} arrays, got {len(arrays)}")
        given = enumerate(zip(block.arguments, arrays, strict=True))
        values = {x: self._argument(name, i, x, array) for i, (x, array) in given}
        last_reader = {x: op.operation for op in block.operations for x in op.operation.operands}
        *body, last = (op.operation for op in block.operations)
        for operation in body:
            results = self._run(operation, [values[x] for x in operation.operands])
            values.update(zip(operation.results, results, strict=True))
            for x in operation.operands:  # what nothing after it reads is let go
                if last_reader[x] == operation:
                    values.pop(x, None)
        return [np.asarray(values[x]) for x in last.operands]

    def _argument(self, name: str, position: int, argument: ir.Value, array: Any) -> Any:
        if isinstance(argument.type, ir.IndexType):
            return int(array)
        kind = TensorType.of(argument)
        given = np.asarray(array)
        if not ops.compatible(given.shape, kind.shape):
            raise ArgumentError(f"{name}: argument {position} is {given.shape}, expected {kind}")
        return given.astype(self.kind(kind.dtype))

    def _run(self, op: ir.Operation, operands: list[Any]) -> list[Any]:
        if op.name == "func.call":
            return self.call(ir.FlatSymbolRefAttr(op.attributes["callee"]).value, operands)
        if op.name in _SHAPE_ARITHMETIC:
            return [_SHAPE_ARITHMETIC[op.name](op, *operands)]
        name = ops.operation_name(op)
        if name is None:
            raise Error(f"the interpreter does not know {op.name}")
        return [self.operation(name, op, operands)]

    def operation(self, name: str, op: ir.Operation, operands: list[Any]) -> Array:
        """The result of one of the dialect's operations."""
        result = TensorType.of(op.results[0])
        if name == "contiguous":
            return self._contiguous(op, operands, result)
        if name == "constant":
            return ops.read_array(op.attributes["value"]).astype(self.kind(result.dtype))
        if name == "iota":
            shape = _sizes(result.shape, operands)
            line = _along(ops.read_axis(op), shape).astype(self.kind(result.dtype))
            return np.broadcast_to(line, shape)
        source = TensorType.of(op.operands[0]).dtype
        if name == "cast":
            return convert(operands[0], self.kind(source), self.kind(result.dtype))
        if name == "bitcast":
            exact = operands[0].astype(source.numpy).view(result.dtype.numpy)
            return exact.astype(self.kind(result.dtype))
        axis = [ops.read_axis(op)] if PRIMITIVES[name].form == "reduce" else []
        return primitive(name, source, operands, *axis, high=self.high)

    def _contiguous(self, op: ir.Operation, operands: list[Any], result: TensorType) -> Array:
        view, roles = ops.read_view(op)
        known = dict(zip(op.operands, operands, strict=True))
        sources, indices, extents = ([known[x] for x in role] for role in roles)
        shape = _sizes(result.shape, extents)
        dims = [_along(axis, shape) for axis in range(len(shape))]
        symbols: list[Any] = []
        for index, affine in zip(indices, view.index_maps, strict=True):
            places = tuple(fold(e, dims, ()) for e in affine.results)
            symbols.append(np.asarray(index)[places].astype(np.int64) if 0 not in shape else 0)
        symbols += list(extents)
        value: Any = np.full((), view.fill, self.kind(result.dtype))
        for i in reversed(range(len(sources))):
            value = _read(sources[i], view, i, dims, symbols, value)
        return np.broadcast_to(value, shape)


def primitive(
    name: str, kind: DType, operands: Sequence[Any], *axis: int, high: bool = False
) -> Array:
    """A primitive that is no view, of operands of this dtype."""
    row, rounds = PRIMITIVES[name], kind.is_float and not high
    meaning = _sum_in_order if name == "sum_reduce" and rounds else row.meaning
    assert meaning is not None
    narrow = rounds and kind.bits == 16
    value = meaning(*(x.astype(np.float32) if narrow else x for x in operands), *axis)
    return value if row.gives_bool else np.asarray(value).astype(kind.wide if high else kind.numpy)


def _read(source: Array, view: View, i: int, dims: list, symbols: list, otherwise: Any) -> Array:
    """`source` where view's source i is in its domain and inside the source, else `otherwise`."""
    places = [np.asarray(fold(e, dims, symbols)) for e in view.maps[i].results]
    limits = [(p >= 0) & (p < size) for p, size in zip(places, source.shape, strict=True)]
    if view.domains:
        limits += [np.asarray(fold(e, dims, symbols)) >= 0 for e in view.domains[i].results]
    inside = reduce(np.logical_and, limits, np.True_)
    if source.size == 0:
        return otherwise
    safe = [np.clip(p, 0, size - 1) for p, size in zip(places, source.shape, strict=True)]
    read = source[tuple(safe)] if safe else source
    return read if np.all(inside) else np.where(inside, read, otherwise)


def _along(axis: int, shape: tuple[int, ...]) -> Array:
    """The index along `axis`, in a shape that broadcasts to `shape`."""
    return np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])


def convert(x: Array, source: np.dtype, target: np.dtype) -> Array:
    """`cast`: floats truncate and saturate to integers, NaN gives 0, integers wrap."""
    if source.kind in "fV" and target.kind in "iu":  # numpy counts bfloat16 among the voids
        wide = x.astype(np.float64) if source.itemsize < 8 else x
        info = np.iinfo(target)
        fits = (wide >= info.min) & (wide < info.max)
        inside = np.where(fits, np.trunc(wide), 0).astype(target)
        top = np.where(wide >= info.max, info.max, inside)
        return np.where(wide < info.min, info.min, top)
    if target == dtype("bfloat16").numpy:
        return _round_to_bfloat16(np.asarray(x))
    return np.asarray(x).astype(target)


def _round_to_bfloat16(x: Array) -> Array:
    """Round once. numpy goes through float32, which must not round to nearest: it rounds to odd."""
    wide = x.astype(np.longdouble)
    near = wide.astype(np.float32)
    error = np.where(np.isfinite(wide), wide - near, 0)
    even = (near.view(np.uint32) & 1) == 0
    away = np.nextafter(near, np.copysign(np.float32(np.inf), error.astype(np.float32)))
    return np.where((error != 0) & even, away, near).astype(dtype("bfloat16").numpy)


def _sum_in_order(x: Array, axis: int) -> Array:
    """The sum along an axis, one element after the other, so that its rounding is defined."""
    parts = np.moveaxis(x, axis, 0)
    return sum(parts, start=np.zeros(parts.shape[1:], x.dtype))


def _sizes(shape: Sequence[int | None], extents: Sequence[int]) -> tuple[int, ...]:
    rest = iter(extents)
    return tuple(int(next(rest)) if size is None else size for size in shape)


_SHAPE_ARITHMETIC: dict[str, Callable[..., int]] = {
    "arith.constant": lambda op: ir.IntegerAttr(op.attributes["value"]).value,
    "arith.addi": lambda _, x, y: x + y,
    "arith.subi": lambda _, x, y: x - y,
    "arith.muli": lambda _, x, y: x * y,
    "arith.floordivsi": lambda _, x, y: x // y,
    "arith.ceildivsi": lambda _, x, y: -(-x // y),
    "arith.remsi": lambda _, x, y: int(np.fmod(x, y)),
    "arith.maxsi": lambda _, x, y: max(x, y),
    "arith.minsi": lambda _, x, y: min(x, y),
    "tensor.dim": lambda _, x, axis: x.shape[axis],
}
