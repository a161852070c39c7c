"""dodeca: a tensor compiler that finds fast code by search.

    import dodeca as dd

    attend = dd.compile(
        lambda q, k, v: dd.softmax(q @ k.mT * 0.125) @ v,
        *[dd.spec((12, 512, 64)) for _ in range(3)],
    )
    attend(q, k, v)  # numpy arrays in and out

`Tensor` and the functions here follow the Python array API standard.
"""

from __future__ import annotations

from . import bindings as bindings  # before anything that needs MLIR: it says what is missing

# isort: split

from .tensor import Tensor  # first, for it loads the modules that complete it

# isort: split

from . import models, nn, safetensors
from .activations import (
    gelu,
    layer_norm,
    leaky_relu,
    log_softmax,
    relu,
    rms_norm,
    sigmoid,
    silu,
    softmax,
    softplus,
)
from .arithmetic import add, multiply, negative, positive, reciprocal, rsqrt, sqrt, square, subtract
from .comparison import (
    abs,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    clip,
    equal,
    greater,
    greater_equal,
    invert,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    not_equal,
    sign,
    where,
)
from .compile import Search, Specialised, compile, jit
from .convolution import avg_pool2d, conv2d, max_pool2d
from .creation import (
    arange,
    asarray,
    astype,
    bitcast,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from .dialect import DTYPES, DType, dtype
from .dialect.errors import (
    ArgumentError,
    CompileError,
    DtypeError,
    Error,
    ParseError,
    ShapeError,
    TargetError,
    VerifyError,
)
from .division import ceil, divide, floor, floor_divide, fmod, remainder, round, trunc
from .explain import egraph_picture, explain, why_not
from .indexing import embedding, gather, one_hot, take
from .linalg import einsum, matmul, outer, tensordot, vecdot
from .movement import (
    broadcast_arrays,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    matrix_transpose,
    meshgrid,
    moveaxis,
    pad,
    permute_dims,
    repeat,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    tile,
    transpose,
    tril,
    triu,
    unstack,
)
from .powers import power
from .promotion import result_type
from .reductions import (
    all,
    any,
    argmax,
    argmin,
    cumulative_sum,
    logsumexp,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from .shapes import Dim
from .sorting import argsort, sort, topk
from .trace import Graph, Spec, spec, trace
from .transcendental import (
    cos,
    cosh,
    erf,
    exp,
    exp2,
    expm1,
    log,
    log1p,
    log2,
    log10,
    sin,
    sinh,
    tan,
    tanh,
)

# numpy's and torch's other names for the same functions
absolute = abs
concatenate = concat
cumsum = cumulative_sum
mod = remainder
permute = permute_dims
pow = power
take_along_axis = gather

float32, float16, bfloat16, float64 = (
    DTYPES[n] for n in ("float32", "float16", "bfloat16", "float64")
)
int8, uint8, int32, int64 = (DTYPES[n] for n in ("int8", "uint8", "int32", "int64"))
bool = DTYPES["bool"]

inf = float("inf")
nan = float("nan")
pi = 3.141592653589793
e = 2.718281828459045
newaxis = None

__all__ = [
    "ArgumentError",
    "CompileError",
    "DType",
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
