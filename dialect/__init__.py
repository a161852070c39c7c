"""The `dodeca` MLIR dialect: primitives, types, verifier and reference interpreter.

Whatever needs MLIR is imported when it is first asked for; a saved program runs without.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .dtypes import DTYPES, DType, dtype
from .primitives import PRIMITIVES, Primitive

if TYPE_CHECKING:
    from .interpreter import evaluate
    from .ops import TensorType, context
    from .verifier import verify
    from .views import View

# The bindings look for a module with a dialect's classes each time they meet an operation of it. An
# empty one spares them a search of the import path, which was most of the time of any walk.
sys.modules.setdefault("mlir.dialects.dodeca", ModuleType("mlir.dialects.dodeca"))

# Where what needs MLIR is defined.
_IN = dict(TensorType="ops", View="views", context="ops", evaluate="interpreter", verify="verifier")


def __getattr__(name: str) -> Any:
    if name not in _IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_IN[name]}", __name__), name)


__all__ = [
    "DTYPES", "PRIMITIVES", "DType", "Primitive", "TensorType", "View", "context", "dtype",
    "evaluate", "verify",
]  # fmt: skip
