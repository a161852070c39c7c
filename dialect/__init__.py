"""The `dodeca` MLIR dialect: primitives, types, verifier and reference interpreter.

What needs MLIR is in modules of its own; a saved program runs without.
"""

import sys
from types import ModuleType

from .dtypes import DTYPES, DType, dtype
from .primitives import PRIMITIVES, Primitive

# The bindings look for a module with a dialect's classes each time they meet an operation of it. An
# empty one spares them a search of the import path, which was most of the time of any walk.
sys.modules.setdefault("mlir.dialects.dodeca", ModuleType("mlir.dialects.dodeca"))

__all__ = ["DTYPES", "PRIMITIVES", "DType", "Primitive", "dtype"]
