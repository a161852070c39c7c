"""The `dodeca` dialect in MLIR: registration through IRDL, result types, and builders.

Every operation has one rule here that infers its result type from its operands' types and its
attributes and says what is wrong with them. Builders use the rule to make an operation, the
verifier to check one.

    >>> with context(), ir.Location.unknown():
    ...     module = ir.Module.parse('''
    ...       func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
    ...         %0 = "dodeca.exp2"(%x) : (tensor<4xf32>) -> tensor<4xf32>
    ...         return %0 : tensor<4xf32>
    ...       }''')
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from mlir import ir
from mlir.dialects import irdl

from .dtypes import BY_MLIR, DTYPES, DType, dtype
from .errors import DtypeError, Error, ShapeError
from .primitives import PRIMITIVES
from .views import MAX_INDICES, MAX_SOURCES, UNBOUNDED, View, bounds

WEIGHT = "dodeca.weight"  # the function argument attribute that names a weight
NAME = "dodeca.name"  # ... and the one that names an input, for messages
MAPS = ("maps", "domains", "index_maps")  # the fields of a view that are arrays of affine maps


class TensorType(NamedTuple):
    """The type of a value: a size for each dimension (None where dynamic), and a dtype."""

    shape: tuple[int | None, ...]
    dtype: DType

    @staticmethod
    def of(value: ir.Value | ir.Type) -> TensorType:
        """Read a builtin ranked tensor type; DtypeError names what is not one of dodeca's."""
        return _tensor_type(value if isinstance(value, ir.Type) else value.type)

    @property
    def mlir(self) -> ir.RankedTensorType:
        return ir.RankedTensorType(ir.Type.parse(str(self)))

    def __str__(self) -> str:
        sizes = "".join(f"{'?' if size is None else size}x" for size in self.shape)
        return f"tensor<{sizes}{self.dtype.mlir}>"


@lru_cache(1024)
def _tensor_type(kind: ir.Type) -> TensorType:
    if not isinstance(kind, ir.RankedTensorType):
        raise DtypeError(f"expected a ranked tensor, got {kind}")
    element = str(kind.element_type)
    if element not in BY_MLIR:
        known = ", ".join(BY_MLIR)
        raise DtypeError(f"element type {element} of {kind} is not one of dodeca's ({known})")
    sizes = (None if kind.is_dynamic_size(size) else size for size in kind.shape)
    return TensorType(tuple(sizes), BY_MLIR[element])


# --- registration -------------------------------------------------------------------------------


def irdl_source() -> str:
    """The dialect's definition in IRDL, made from the table of primitives."""
    operations = [
        _irdl_operation(row.name, ["x", "y"][: row.arity], ["axis"] if row.form == "reduce" else [])
        for row in PRIMITIVES.values()
        if row.form != "view"
    ]
    sources = [f"optional source{i}" for i in range(MAX_SOURCES)]
    indices = [f"optional index{i}" for i in range(MAX_INDICES)]
    operations += [
        _irdl_operation("contiguous", [*sources, *indices, "variadic extents"], ["maps", "fill"]),
        _irdl_operation("constant", [], ["value"]),
        _irdl_operation("iota", ["variadic extents"], ["axis"]),
        *(_irdl_operation(name, ["x"], []) for name in ("cast", "bitcast")),
    ]
    return "irdl.dialect @dodeca {\n" + "\n".join(operations) + "\n}"


def _irdl_operation(name: str, operands: Sequence[str], attributes: Sequence[str]) -> str:
    """One operation. To IRDL a constraint is a variable, so each use has one of its own."""
    lines, uses = [f"%{label} = irdl.any" for label in (*attributes, "result")], []
    for operand in operands:
        how, space, label = operand.rpartition(" ")
        lines.append(f"%{label} = irdl.{'is index' if label == 'extents' else 'any'}")
        uses.append(f"{label}: {how}{space}%{label}")
    if attributes:
        pairs = ", ".join(f'"{label}" = %{label}' for label in attributes)
        lines.append(f"irdl.attributes {{{pairs}}}")
    lines += [f"irdl.operands({', '.join(uses)})", "irdl.results(result: %result)"]
    return f"  irdl.operation @{name} {{\n    " + "\n    ".join(lines) + "\n  }"


@cache
def context() -> ir.Context:
    """The one MLIR context of this process, with the dialect registered."""
    made = ir.Context()
    with made, ir.Location.unknown():
        # the bindings' stubs do not list this function
        irdl.load_dialects(ir.Module.parse(irdl_source()))  # pyright: ignore
    return made


# --- result types -------------------------------------------------------------------------------


def infer(name: str, operands: Sequence[TensorType], axis: int = -1) -> TensorType:
    """The result type of a primitive that is not a view; ShapeError or DtypeError otherwise.

    `axis` is the one that a reduction is over.
    """
    row = PRIMITIVES[name]
    first, shape = operands[0], operands[0].shape
    for i, operand in enumerate(operands):
        if operand.dtype.kind not in row.kinds:
            allowed = ", ".join(d.name for d in DTYPES.values() if d.kind in row.kinds)
            raise DtypeError(f"{name}: operand {i} is {operand.dtype}; it takes {allowed}")
        if operand.dtype != first.dtype:
            raise DtypeError(f"{name}: operand 0 is {first.dtype}, operand {i} is {operand.dtype}")
        if not compatible(operand.shape, first.shape):
            raise ShapeError(f"{name}: operand 0 is {first}, operand {i} is {operand}")
        shape = tuple(b if a is None else a for a, b in zip(shape, operand.shape, strict=True))
    if row.form == "reduce":
        _check_axis(name, axis, first)
        return TensorType(first.shape[:axis] + first.shape[axis + 1 :], first.dtype)
    return TensorType(shape, DTYPES["bool"] if row.gives_bool else first.dtype)


def _check_axis(name: str, axis: int, kind: TensorType) -> None:
    rank = len(kind.shape)
    if not 0 <= axis < rank:
        raise ShapeError(f"{name}: axis {axis} is outside {kind}, which has rank {rank}")


def compatible(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    return len(a) == len(b) and all(None in (x, y) or x == y for x, y in zip(a, b, strict=True))


class ViewOperands(NamedTuple):
    """The operands of a `contiguous`, by role."""

    sources: Sequence[ir.Value]
    indices: Sequence[ir.Value]
    extents: Sequence[ir.Value]


def check_view(view: View, operands: ViewOperands, result: TensorType) -> None:
    """Raise unless the view's maps, domains, bounds and dtypes fit its operands and result."""
    sources = [TensorType.of(x) for x in operands.sources]
    indices = [TensorType.of(x) for x in operands.indices]
    _check_extents("contiguous", result, len(operands.extents))
    fields = [("sources", sources, MAX_SOURCES, "maps", view.maps)]
    fields += [("indices", indices, MAX_INDICES, "index maps", view.index_maps)]
    fields += [("sources", sources, MAX_SOURCES, "domains", view.domains)] if view.domains else []
    for label, found, limit, kind, maps in fields:
        if len(found) > limit:
            raise ShapeError(f"contiguous: takes at most {limit} {label}, got {len(found)}")
        if len(found) != len(maps):
            raise ShapeError(f"contiguous: {len(found)} {label}, but {len(maps)} {kind}")
    rank, symbols = len(result.shape), len(indices) + len(operands.extents)
    for i, (source, affine) in enumerate(zip(sources, view.maps, strict=True)):
        _check_map(f"map {i}", affine, rank, symbols, len(source.shape))
        if source.dtype != result.dtype:
            raise DtypeError(f"contiguous: source {i} is {source.dtype}, the result {result.dtype}")
    for i, domain in enumerate(view.domains):  # of any number of results
        _check_map(f"domain {i}", domain, rank, symbols, len(domain.results))
    for i, (index, affine) in enumerate(zip(indices, view.index_maps, strict=True)):
        if index.dtype.is_float:
            raise DtypeError(f"contiguous: index {i} is {index.dtype}, expected integer or bool")
        _check_map(f"index map {i}", affine, rank, 0, len(index.shape))
        _check_inside(f"index map {i}", affine, index, result)


def _check_extents(name: str, result: TensorType, extents: int) -> None:
    dynamic = result.shape.count(None)
    if extents != dynamic:
        raise ShapeError(
            f"{name}: {result} has {dynamic} dynamic sizes, but {extents} extents are given"
        )


def _check_map(label: str, affine: ir.AffineMap, dims: int, symbols: int, results: int) -> None:
    found = (affine.n_dims, affine.n_symbols, len(affine.results))
    if found != (dims, symbols, results):
        raise ShapeError(
            f"contiguous: {label} {affine} has {found[0]} dimensions, {found[1]} symbols and "
            f"{found[2]} results, expected {dims}, {symbols} and {results}"
        )


def _check_inside(label: str, affine: ir.AffineMap, index: TensorType, result: TensorType) -> None:
    """An index operand is always read, so its map must stay inside it (where sizes are known)."""
    ranges = [(0, UNBOUNDED[1] if size is None else size - 1) for size in result.shape]
    for axis, (expr, size) in enumerate(zip(affine.results, index.shape, strict=True)):
        low, high = bounds(expr, ranges)
        above = size is not None and size <= high < UNBOUNDED[1]
        if 0 not in result.shape and (low < 0 or above):
            raise ShapeError(
                f"contiguous: {label} reaches {expr} in [{low}, {high}] "
                f"along axis {axis} of {index}"
            )


# --- builders -----------------------------------------------------------------------------------


def _make(
    name: str, result: TensorType, operands: Sequence[ir.Value], **attributes: ir.Attribute
) -> ir.Value:
    """An operation at the insertion point and location in force."""
    return ir.Operation.create(f"dodeca.{name}", [result.mlir], list(operands), attributes).result


def elementwise(name: str, *operands: ir.Value) -> ir.Value:
    """A unary or binary primitive on tensors of one shape and dtype."""
    return _make(name, infer(name, [TensorType.of(x) for x in operands]), operands)


def reduce(name: str, x: ir.Value, axis: int) -> ir.Value:
    """`sum_reduce` or `max_reduce` over one axis, which the result does not have."""
    result = infer(name, [TensorType.of(x)], axis=axis)
    return _make(name, result, [x], axis=scalar_attr(axis, DTYPES["int64"]))


def contiguous(
    sources: Sequence[ir.Value],
    view: View,
    shape: Sequence[int | None],
    *,
    indices: Sequence[ir.Value] = (),
    extents: Sequence[ir.Value] = (),
    element: DType | None = None,
) -> ir.Value:
    """The tensor of this shape that a view gives; `element` is needed only without sources."""
    result = TensorType(tuple(shape), element or TensorType.of(sources[0]).dtype)
    check_view(view, ViewOperands(sources, indices, extents), result)
    slots = [*_slots(len(sources), MAX_SOURCES), *_slots(len(indices), MAX_INDICES), len(extents)]
    attributes = {
        "fill": scalar_attr(view.fill, result.dtype),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get(slots),
    }
    for name in MAPS:
        maps = [ir.AffineMapAttr.get(m) for m in getattr(view, name)]
        if maps or name == "maps":  # the others are optional
            attributes[name] = ir.ArrayAttr.get(maps)
    return _make("contiguous", result, [*sources, *indices, *extents], **attributes)


def _slots(used: int, limit: int) -> list[int]:
    return [1] * used + [0] * (limit - used)


def constant(value: Any, element: DType | str, shape: Sequence[int] = ()) -> ir.Value:
    """A constant: a scalar spread over `shape`, or an array of that very shape."""
    kind = dtype(element)
    result = TensorType(tuple(shape), kind)
    array = np.asarray(value)
    if array.ndim and array.shape != tuple(shape):
        raise ShapeError(f"constant: the array is {array.shape}, the shape {tuple(shape)}")
    values = [scalar_attr(x, kind) for x in array.reshape(-1)]
    if values:  # a single one stands in every place
        attribute = ir.DenseElementsAttr.get(values, result.mlir)
    else:  # the bindings make no attribute without elements
        attribute = ir.Attribute.parse(f"dense<> : {result.mlir}")
    return _make("constant", result, [], value=attribute)


def scalar_attr(value: Any, kind: DType) -> ir.Attribute:
    """A scalar as a typed attribute."""
    element = ir.Type.parse(kind.mlir)
    if kind.is_float:
        return ir.FloatAttr.get(element, float(value))
    if kind.kind == "bool":
        return ir.BoolAttr.get(bool(value))
    return ir.IntegerAttr.get(element, int(value))


def iota(
    shape: Sequence[int | None],
    axis: int,
    element: DType | str = "int64",
    extents: Sequence[ir.Value] = (),
) -> ir.Value:
    """The index along `axis` at every place of a tensor of this shape."""
    result = TensorType(tuple(shape), dtype(element))
    check_iota(result, axis, len(extents))
    return _make("iota", result, extents, axis=scalar_attr(axis, DTYPES["int64"]))


def check_iota(result: TensorType, axis: int, extents: int) -> None:
    """Raise unless `iota` along `axis` can have this type and number of extents."""
    if result.dtype.kind not in ("int", "uint"):
        raise DtypeError(f"iota: gives integers, not {result.dtype}")
    _check_axis("iota", axis, result)
    _check_extents("iota", result, extents)


def cast(x: ir.Value, element: DType | str) -> ir.Value:
    """The same values in another dtype: floats saturate to integers, NaN gives 0, integers wrap."""
    return _make("cast", TensorType(TensorType.of(x).shape, dtype(element)), [x])


def bitcast(x: ir.Value, element: DType | str) -> ir.Value:
    """The same bits in another dtype of the same width."""
    source, target = TensorType.of(x), dtype(element)
    check_bitcast(source.dtype, target)
    return _make("bitcast", TensorType(source.shape, target), [x])


def check_bitcast(source: DType, target: DType) -> None:
    """Raise unless both dtypes have one width; a bool has no bits to speak of."""
    if source.bits != target.bits or "bool" in (source.kind, target.kind):
        raise DtypeError(f"bitcast: {source} and {target} have no common bit pattern")


# --- reading operations back --------------------------------------------------------------------


def operation_name(operation: ir.Operation) -> str | None:
    """`add` for a `dodeca.add`, None for an operation of another dialect."""
    dialect, _, name = operation.name.partition(".")
    return name if dialect == "dodeca" else None


def entry_function(module: ir.Operation) -> ir.Operation:
    """The function that is compiled: the module's first that has a body."""
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "func.func" and len(op.operation.regions[0].blocks):
            return op.operation
    raise Error("the module has no func.func with a body")


def named_arguments(function: ir.Operation, attribute: str) -> dict[int, str]:
    """Position -> name of the arguments with an attribute, WEIGHT or NAME."""
    if "arg_attrs" not in function.attributes:
        return {}
    every = enumerate(map(ir.DictAttr, ir.ArrayAttr(function.attributes["arg_attrs"])))
    return {i: ir.StringAttr(a[attribute]).value for i, a in every if attribute in a}


def read_view(operation: ir.Operation) -> tuple[View, ViewOperands]:
    """The view and the operands, by role, of a `contiguous`."""
    attributes = operation.attributes
    maps = {name: _affine_maps(attributes, name) for name in MAPS}
    slots = list(ir.DenseI32ArrayAttr(attributes["operandSegmentSizes"]))
    first, last = sum(slots[:MAX_SOURCES]), sum(slots[:-1])
    operands = list(operation.operands)
    roles = ViewOperands(operands[:first], operands[first:last], operands[last:])
    return View(**maps, fill=read_scalar(attributes["fill"])), roles


def _affine_maps(attributes: Any, name: str) -> tuple[ir.AffineMap, ...]:
    """The maps of an array attribute; none if the operation does not have it."""
    if name not in attributes:
        return ()
    found = attributes[name]
    maps = list(found) if isinstance(found, ir.ArrayAttr) else [found]
    if not all(isinstance(a, ir.AffineMapAttr) for a in maps):
        raise ShapeError(f"contiguous: {name} must be an array of affine maps, got {found}")
    return tuple(ir.AffineMapAttr(a).value for a in maps)


def read_axis(operation: ir.Operation) -> int:
    """The axis of a reduction or an `iota`."""
    attribute = operation.attributes["axis"]
    if not isinstance(attribute, ir.IntegerAttr):
        raise Error(f"{operation.name}: axis must be an integer, got {attribute}")
    return attribute.value


def read_scalar(attribute: ir.Attribute) -> bool | int | float:
    """A typed scalar attribute as a Python scalar."""
    if not isinstance(attribute, ir.FloatAttr | ir.BoolAttr | ir.IntegerAttr):
        raise DtypeError(f"expected a scalar, got {attribute}")
    return attribute.value


def read_array(attribute: ir.Attribute) -> np.ndarray:
    """A dense elements attribute as an array of the dtype's numpy type."""
    elements = ir.DenseElementsAttr(attribute)
    kind = TensorType.of(elements.type)
    shape = [size or 0 for size in kind.shape]  # all are known: a constant's type is static
    if elements.is_splat:  # of bools, the bindings give an array with wrong ones
        return np.full(shape, read_scalar(elements.get_splat_value()), kind.dtype.numpy)
    if kind.dtype.name == "bfloat16":
        return _parse_bfloat16(str(elements)).reshape(shape)
    return np.array(elements).astype(kind.dtype.numpy).reshape(shape)


def _parse_bfloat16(text: str) -> np.ndarray:
    """The elements of a printed attribute: the bindings give no numbers of this type."""
    kind = dtype("bfloat16").numpy
    words = text[text.index("<") + 1 : text.rindex("> :")]
    if words.startswith('"0x'):  # many elements are printed as their bytes
        return np.frombuffer(bytes.fromhex(words.strip('"')[2:]), np.uint16).view(kind)

    def number(word: str) -> Any:
        return np.uint16(int(word, 16)).view(kind) if word.startswith("0x") else float(word)

    return np.array([number(word) for word in re.findall(r"[^][, ]+", words)], kind)
