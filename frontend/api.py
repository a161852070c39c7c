"""All of the public names, loaded at once: what `dodeca/__init__.py` gives when one is asked for.

>>> from dodeca.api import softmax

Importing this needs MLIR; `bindings` says what is missing.
"""

# ruff: noqa: F401
from __future__ import annotations

from . import bindings as bindings  # first: it says what is missing

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
    DeviceError,
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
int8, uint8, int16, int32, int64 = (DTYPES[n] for n in ("int8", "uint8", "int16", "int32", "int64"))
bool = DTYPES["bool"]

inf = float("inf")
nan = float("nan")
pi = 3.141592653589793
e = 2.718281828459045
newaxis = None
