"""From nodes to MLIR: the module of a graph, operation by operation in the order of their operands.

In: the input nodes, the output nodes, names for arrays. Out: a module with one `func.func @main`,
whose arguments are the inputs and then the weights, and the weights' arrays by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from types import CodeType

from . import bindings as bindings  # before what needs MLIR: it says what is missing

# isort: split

import numpy as np
from mlir import ir
from mlir.dialects import arith, func
from mlir.dialects import tensor as tensor_dialect

from .dialect import ops
from .dialect.errors import Error, ShapeError
from .dialect.ops import NAME, WEIGHT, TensorType, context
from .dialect.views import View
from .shapes import Dim, Shape
from .tensor import Tensor


def emit(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], names: Mapping[int, str]
) -> tuple[ir.Module, dict[str, np.ndarray]]:
    """The module and its weights; `names` gives the name of an array by its id."""
    nodes = in_order(outputs)
    known = set(map(id, inputs))
    for x in nodes:
        if x.op == "input" and id(x) not in known:
            raise Error(f"trace: {x!r} is an input of another trace")
    weights = _weights([x for x in nodes if x.op == "array"], names)
    arrays = {id(array): position for position, array in enumerate(weights.values())}
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        arguments = [_type(x.shape, x) for x in inputs]
        arguments += [TensorType(a.shape, ops.dtype(a.dtype)).mlir for a in weights.values()]
        with ir.InsertionPoint(module.body):
            results = [_type(x.shape, x) for x in outputs]
            function = func.FuncOp("main", (arguments, results))
        block = function.add_entry_block()
        attributes = [
            ir.DictAttr.get({NAME: ir.StringAttr.get(x.attribute.name)} if x.attribute.name else {})
            for x in inputs
        ]
        attributes += [ir.DictAttr.get({WEIGHT: ir.StringAttr.get(name)}) for name in weights]
        function.arg_attrs = ir.ArrayAttr.get(attributes)
        with ir.InsertionPoint(block):
            writer = _Writer(inputs, list(block.arguments))
            for x in inputs:
                writer.values[id(x)] = writer.arguments[len(writer.values)]
            for x in nodes:
                if x.op == "array":
                    at = len(inputs) + arrays[id(x.attribute.array)]
                    writer.values[id(x)] = writer.arguments[at]
                elif x.op != "input":
                    writer.values[id(x)] = writer.write(x)
            func.ReturnOp([writer.values[id(x)] for x in outputs])
    return module, weights


def in_order(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Every node that the outputs need, operands first."""
    order: list[Tensor] = []
    done: set[int] = set()
    stack = [(x, False) for x in reversed(outputs)]
    while stack:
        x, ready = stack.pop()
        if ready:
            order.append(x)
        elif id(x) not in done:
            done.add(id(x))
            stack.append((x, True))
            stack.extend((operand, False) for operand in reversed(x.operands))
    return order


def _weights(leaves: Sequence[Tensor], names: Mapping[int, str]) -> dict[str, np.ndarray]:
    """A name for each array, in the order of use; an array that two leaves hold is one weight."""
    weights: dict[str, np.ndarray] = {}
    seen: set[int] = set()
    for leaf in leaves:
        array = leaf.attribute.array
        if id(array) in seen:
            continue
        seen.add(id(array))
        wanted = names.get(id(array)) or leaf.name
        name, count = wanted or f"w{len(weights)}", 0
        while name in weights:
            count += 1
            name = f"{wanted or 'w'}_{count}"
        weights[name] = array
    return weights


def _sizes(shape: Shape) -> tuple[int | None, ...]:
    return tuple(None if isinstance(size, Dim) else size for size in shape)


def _type(shape: Shape, x: Tensor) -> ir.Type:
    return TensorType(_sizes(shape), x.dtype).mlir


class _Writer:
    """Writes operations at the insertion point; `values` are those of the nodes written so far."""

    def __init__(self, inputs: Sequence[Tensor], arguments: list[ir.Value]):
        self.inputs = inputs
        self.arguments = arguments
        self.values: dict[int, ir.Value] = {}
        self.extents: dict[str, ir.Value] = {}
        self.places: dict[tuple[CodeType, int] | None, ir.Location] = {}

    def write(self, x: Tensor) -> ir.Value:
        operands = [self.values[id(operand)] for operand in x.operands]
        extents = self.extents_of(x.shape) if x.op in ("contiguous", "iota") else []
        with self.location(x.place):
            return self._operation(x, operands, extents)

    def _operation(self, x: Tensor, operands: list[ir.Value], extents: list[ir.Value]) -> ir.Value:
        if x.op == "constant":
            return ops.constant(x.attribute, x.dtype, _sizes_known(x.shape))
        if x.op == "iota":
            return ops.iota(_sizes(x.shape), x.attribute, x.dtype, extents)
        if x.op in ("cast", "bitcast"):
            return getattr(ops, x.op)(operands[0], x.dtype)
        if x.op in ("sum_reduce", "max_reduce"):
            return ops.reduce(x.op, operands[0], x.attribute)
        if x.op != "contiguous":
            return ops.elementwise(x.op, *operands)
        view: View = x.attribute
        sources = len(view.maps)
        return ops.contiguous(
            operands[:sources],
            view,
            _sizes(x.shape),
            indices=operands[sources:],
            extents=extents,
            element=x.dtype,
        )

    def extents_of(self, shape: Shape) -> list[ir.Value]:
        return [self.extent(size) for size in shape if isinstance(size, Dim)]

    def extent(self, dim: Dim) -> ir.Value:
        """The size itself: `tensor.dim` of the first input that has it."""
        if dim.name not in self.extents:
            for x, argument in zip(self.inputs, self.arguments, strict=False):
                if dim in x.shape:
                    index = ir.IndexType.get()
                    axis = arith.ConstantOp(index, x.shape.index(dim))
                    self.extents[dim.name] = tensor_dialect.DimOp(argument, axis.result).result
                    break
            else:
                raise ShapeError(f"trace: no input has the size {dim}")
        return self.extents[dim.name]

    def location(self, place: tuple[CodeType, int] | None) -> ir.Location:
        """file:line:column of an instruction of the user's code."""
        if place not in self.places:
            self.places[place] = _location(place)
        return self.places[place]


def _location(place: tuple[CodeType, int] | None) -> ir.Location:
    if place is None:
        return ir.Location.unknown()
    code, instruction = place
    at = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    line, column = at[0] or code.co_firstlineno, at[2] or 0
    return ir.Location.file(code.co_filename, line, column + 1)


def _sizes_known(shape: Shape) -> tuple[int, ...]:
    return tuple(int(size) for size in shape)
