"""The `dodeca` MLIR dialect: primitives, types, verifier and reference interpreter."""

from .bindings import check_bindings

check_bindings()

from .dtypes import DTYPES, DType, dtype  # noqa: E402
from .interpreter import evaluate  # noqa: E402
from .ops import TensorType, context  # noqa: E402
from .primitives import PRIMITIVES, Primitive  # noqa: E402
from .verifier import verify  # noqa: E402
from .views import View  # noqa: E402

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
