"""The `dodeca` MLIR dialect: primitives, types, verifier and reference interpreter."""

from .dtypes import DTYPES, DType, dtype
from .interpreter import evaluate
from .ops import TensorType, context
from .primitives import PRIMITIVES, Primitive
from .verifier import verify
from .views import View

__all__ = [
    "DTYPES",
    "PRIMITIVES",
    "DType",
    "Primitive",
    "TensorType",
    "View",
    "context",
    "dtype",
    "evaluate",
    "verify",
]
