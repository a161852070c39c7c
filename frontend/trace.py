"""`trace`: a Python function on Tensors becomes a Graph, that is an MLIR module with its weights.

    >>> graph = dd.trace(lambda x: x @ w, dd.spec((2, 3), name="x"))
    >>> print(graph)
    func.func @main(%arg0: tensor<2x3xf32>, %arg1: tensor<3x4xf32> {dodeca.weight = "w"}) ...

The function's inputs come first, in their order, then the weights: the concrete arrays that the
outputs use. Each operation has the location of the line of the user's code that made it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import bindings as bindings  # before what needs MLIR: it says what is missing

# isort: split

import numpy as np
from mlir import ir

from .dialect import dtype as as_dtype
from .dialect.dtypes import DType
from .dialect.errors import ArgumentError, Error, ParseError, ShapeError
from .dialect.interpreter import evaluate
from .dialect.ops import NAME, WEIGHT, TensorType, context, entry_function, named_arguments
from .dialect.verifier import verify
from .emit import emit
from .shapes import Dim, Shape, as_shape, show
from .tensor import Tensor, fresh
from .trees import flatten, unflatten

_KINDS = {"bool": 0, "int": 1, "uint": 1, "float": 2}


@dataclass(frozen=True)
class Spec:
    """What an input is: a shape (its sizes numbers or Dims), a dtype, and perhaps a name."""

    shape: Shape
    dtype: DType
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.dtype} {show(self.shape)}"


def spec(shape: Any, dtype: Any = "float32", name: str | None = None) -> Spec:
    """Describe an input: `dd.spec((8, dd.Dim("seq", 1, 512)), "int64", name="ids")`."""
    return Spec(as_shape("spec", shape), as_dtype(dtype), name)


@dataclass(frozen=True, eq=False)
class Graph:
    """A traced function: its module, what it takes and gives, and the arrays that it uses."""

    module: ir.Module
    inputs: tuple[Spec, ...]
    weights: dict[str, np.ndarray]
    output_tree: Any  # the results' positions in the structure that the function returned
    function: Callable[..., Any] | None = None  # what was traced, to trace it with other sizes

    def __str__(self) -> str:
        return str(self.module)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The Dims of the inputs, each once."""
        sizes = [size for given in self.inputs for size in given.shape]
        return tuple(dict.fromkeys(size for size in sizes if isinstance(size, Dim)))

    def unflatten(self, results: Sequence[Any]) -> Any:
        """The results in the structure that the function returned."""
        return unflatten(self.output_tree, results)

    def interpret(self, *arrays: Any, precision: str = "own") -> Any:
        """The reference interpreter's results on these arrays, in the function's own structure.

        `precision="own"` rounds every operation to its dtype; "high" keeps floats in float64.
        Raises ArgumentError for arrays that do not fit the inputs.
        """
        given = check_arguments(self.inputs, arrays)
        names = named_arguments(entry_function(self.module.operation), WEIGHT)
        weights = [self.weights[name] for name in names.values()]
        return self.unflatten(evaluate(self.module, *given, *weights, precision=precision))

    @staticmethod
    def from_mlir(
        text_or_path: str | Path, weights: Mapping[str, np.ndarray] | None = None
    ) -> Graph:
        """The graph of a module, given as text or by a path, whose first function is the program.

        ParseError (file:line:column) if it is not MLIR, VerifyError if it is not dodeca's. The
        results are one tensor or a tuple. `weights` are the arrays of the arguments marked
        `dodeca.weight`.
        """
        module = _parse(text_or_path)
        verify(module)
        try:
            function = entry_function(module.operation)
        except Error as error:
            where = str(text_or_path) if _is_path(text_or_path) else "<text>"
            raise ParseError(f"{where}: {error}") from None
        kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        marked = len(named_arguments(function, WEIGHT))
        names = named_arguments(function, NAME)
        types = [TensorType.of(t) for t in kind.inputs][: len(kind.inputs) - marked]
        specs = [_spec_of(i, t, names.get(i)) for i, t in enumerate(types)]
        results = len(kind.results)
        tree = 0 if results == 1 else tuple(range(results))
        return Graph(module, tuple(specs), dict(weights or {}), tree)


def trace(function: Callable[..., Any], *specs: Any) -> Graph:
    """The graph of a function of Tensors, called once with symbolic inputs.

    `specs` describe the arguments in order (an array or Tensor stands for its shape and dtype). The
    function returns a Tensor, or a tuple, list or dict of them. Arrays of more than 16 elements
    that it uses become weights under their names (for a method of an `nn.Module` under the
    parameters' dotted names), smaller ones constants.
    """
    if not callable(function):
        raise ArgumentError(f"trace: {function!r} is not a function")
    given = [_as_spec(i, value) for i, value in enumerate(specs)]
    named = _with_names(function, given)
    _check_dims(named)
    inputs = [fresh("input", (), s, s.shape, s.dtype) for s in named]
    outputs, tree = flatten(function(*inputs))
    if not outputs:
        raise ArgumentError("trace: the function returns no Tensor")
    # the builders of operations check what the verifier does, and compiling verifies once more
    module, weights = emit(inputs, outputs, _parameter_names(function))
    return Graph(module, tuple(named), weights, tree, function)


def _as_spec(position: int, value: Any) -> Spec:
    if isinstance(value, Spec):
        return value
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return Spec(tuple(value.shape), as_dtype(value.dtype))
    raise ArgumentError(f"trace: argument {position} is {value!r}; expected a dd.spec or an array")


def _with_names(function: Callable[..., Any], specs: list[Spec]) -> list[Spec]:
    """The specs, those without a name named as the function's parameters are."""
    try:
        bound = inspect.signature(getattr(function, "forward", function)).bind(*specs)
    except ValueError:  # a builtin has no signature
        return specs
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise ArgumentError(f"trace: {len(specs)} specs do not fit {name}: {error}") from None
    names: list[str | None] = []
    for name, value in bound.arguments.items():
        names += [None] * len(value) if isinstance(value, tuple) else [name]
    return [s if s.name else replace(s, name=n) for s, n in zip(specs, names, strict=True)]


def _check_dims(specs: Sequence[Spec]) -> None:
    known: dict[str, Dim] = {}
    for given in specs:
        for size in given.shape:
            if isinstance(size, Dim):
                first = known.setdefault(size.name, size)
                if (first.low, first.high) != (size.low, size.high):
                    raise ShapeError(f"trace: {first!r} and {size!r} have one name but two ranges")


def _parameter_names(function: Callable[..., Any]) -> dict[int, str]:
    """The dotted names of the parameters of a traced module or method, by the arrays' ids."""
    owner = getattr(function, "__self__", function)
    parameters = getattr(owner, "parameters", None)
    if not callable(parameters):
        return {}
    found = parameters()
    if not isinstance(found, dict):
        return {}
    leaves = {name: p for name, p in found.items() if isinstance(p, Tensor) and p.op == "array"}
    return {id(p.attribute.array): name for name, p in reversed(leaves.items())}


# --- arguments ----------------------------------------------------------------------------------


def check_arguments(specs: Sequence[Spec], arrays: Sequence[Any]) -> list[np.ndarray]:
    """The arrays of a call as the specs want them; ArgumentError says which one does not fit."""
    if len(arrays) != len(specs):
        names = ", ".join(s.name or f"argument {i}" for i, s in enumerate(specs))
        raise ArgumentError(f"expected {len(specs)} arrays ({names}), got {len(arrays)}")
    found: dict[str, int] = {}
    return [_argument(i, s, a, found) for i, (s, a) in enumerate(zip(specs, arrays, strict=True))]


def _argument(position: int, wanted: Spec, value: Any, found: dict[str, int]) -> np.ndarray:
    label = f"argument {position}" + (f" ({wanted.name})" if wanted.name else "")
    array = np.asarray(value)
    try:
        kind = as_dtype(array.dtype)
    except TypeError:
        raise ArgumentError(f"{label} is {array.dtype}, expected {wanted}") from None
    if _KINDS[kind.kind] > _KINDS[wanted.dtype.kind]:
        raise ArgumentError(f"{label} is {kind} {show(array.shape)}, expected {wanted}")
    if array.ndim != len(wanted.shape):
        raise ArgumentError(f"{label} has shape {show(array.shape)}, expected {wanted}")
    for size, given in zip(wanted.shape, array.shape, strict=True):
        expected = found.setdefault(size.name, given) if isinstance(size, Dim) else size
        if given != expected:
            raise ArgumentError(f"{label} has shape {show(array.shape)}, expected {wanted}")
        if isinstance(size, Dim) and not size.low <= given <= size.high:
            raise ArgumentError(
                f"{label}: the size {size} is {given}, expected {size.low} to {size.high}"
            )
    return array


def sizes_of(specs: Sequence[Spec], arrays: Sequence[np.ndarray]) -> dict[str, int]:
    """What the Dims of the specs are in arrays that fit them."""
    return {
        size.name: given
        for s, array in zip(specs, arrays, strict=True)
        for size, given in zip(s.shape, array.shape, strict=True)
        if isinstance(size, Dim)
    }


# --- modules from text --------------------------------------------------------------------------


def _is_path(text_or_path: str | Path) -> bool:
    if isinstance(text_or_path, Path):
        return True
    return "\n" not in text_or_path and (
        text_or_path.endswith(".mlir") or os.path.exists(text_or_path)
    )


def _parse(text_or_path: str | Path) -> ir.Module:
    name = str(text_or_path) if _is_path(text_or_path) else "<text>"
    if _is_path(text_or_path):
        try:
            Path(text_or_path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ParseError(f"{name}: cannot be read: {error}") from None
    with context(), ir.Location.unknown():
        try:
            if _is_path(text_or_path):
                return ir.Module.parseFile(name)
            return ir.Module.parse(str(text_or_path))
        except ir.MLIRError as error:  # pyright: ignore[reportAttributeAccessIssue]
            lines = [
                f"{name}:{d.location.start_line}:{d.location.start_col}: {d.message}"
                for d in error.error_diagnostics
            ]
            raise ParseError("\n".join(lines) or f"{name}: {error}") from None


def _spec_of(position: int, kind: TensorType, name: str | None) -> Spec:
    """The spec of an argument that is known by its type; each `?` is a Dim of its own."""
    shape = tuple(
        Dim(f"arg{position}_{axis}", 0, 2**31 - 1) if size is None else size
        for axis, size in enumerate(kind.shape)
    )
    return Spec(shape, kind.dtype, name)
