"""dodeca: a tensor compiler that finds fast code by search.

    import dodeca as dd

    attend = dd.compile(
        lambda q, k, v: dd.softmax(q @ k.mT * 0.125) @ v,
        *[dd.spec((12, 512, 64)) for _ in range(3)],
    )
    attend(q, k, v)  # numpy arrays in and out

`Tensor` and the functions here follow the Python array API standard.
"""

# ruff: noqa: F405
from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .runtime.artifact import load as load

# What needs neither MLIR nor a compiler: a saved executable runs with nothing but numpy.
_LIGHT = {
    "load": "runtime.artifact",
    **dict.fromkeys(("DTYPES", "DType", "dtype"), "dialect.dtypes"),
    **dict.fromkeys(
        (
            "ArgumentError",
            "CompileError",
            "DeviceError",
            "DtypeError",
            "Error",
            "ParseError",
            "ShapeError",
            "TargetError",
            "VerifyError",
        ),
        "dialect.errors",
    ),
}
_FUNCTIONS = ("compile", "explain", "trace")  # public names that are modules' names as well


def __getattr__(name: str) -> Any:
    """A public name, when it is first asked for; the first that needs MLIR loads all others."""
    if name in _LIGHT:
        value = getattr(import_module(f".{_LIGHT[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in __all__:
        api = import_module(".api", __name__)
        globals().update({one: getattr(api, one) for one in __all__ if one not in _LIGHT})
        return globals()[name]
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package, whose functions are not hidden by the modules that they are defined in.

    Importing `dodeca.trace` sets the attribute `trace` of its package to the module.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FUNCTIONS or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

__all__ = [
    "ArgumentError",
    "CompileError",
    "DType",
    "DeviceError",
    "Dim",
    "DtypeError",
    "Error",
    "Graph",
    "ParseError",
    "Search",
    "ShapeError",
    "Spec",
    "Specialised",
    "TargetError",
    "Tensor",
    "VerifyError",
    "abs",
    "absolute",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "astype",
    "avg_pool2d",
    "bfloat16",
    "bitcast",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bool",
    "broadcast_arrays",
    "broadcast_to",
    "ceil",
    "clip",
    "compile",
    "concat",
    "concatenate",
    "conv2d",
    "cos",
    "cosh",
    "cumsum",
    "cumulative_sum",
    "divide",
    "dtype",
    "e",
    "egraph_picture",
    "einsum",
    "embedding",
    "equal",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "explain",
    "expm1",
    "eye",
    "flip",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "fmod",
    "full",
    "full_like",
    "gather",
    "gelu",
    "greater",
    "greater_equal",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "invert",
    "isfinite",
    "isinf",
    "isnan",
    "jit",
    "layer_norm",
    "leaky_relu",
    "less",
    "less_equal",
    "linspace",
    "load",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "matmul",
    "matrix_transpose",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "mod",
    "models",
    "moveaxis",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "nn",
    "not_equal",
    "one_hot",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "permute",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "power",
    "prod",
    "reciprocal",
    "relu",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "rms_norm",
    "roll",
    "round",
    "rsqrt",
    "safetensors",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "softmax",
    "softplus",
    "sort",
    "spec",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "topk",
    "trace",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "uint8",
    "unstack",
    "var",
    "vecdot",
    "where",
    "why_not",
    "zeros",
    "zeros_like",
]
