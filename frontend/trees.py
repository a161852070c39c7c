"""The structure of a function's results: a tensor, or tuples, lists and dicts of structures.

A tree has the position of a result where the structure has the result.

    >>> flatten({"a": x, "b": (y, z)})
    ([x, y, z], {'a': 0, 'b': (1, 2)})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .dialect.errors import Error
from .tensor import Tensor


def flatten(value: Any) -> tuple[list[Tensor], Any]:
    """The tensors of a structure in order, and its tree; Error for a leaf that is not a Tensor."""
    found: list[Tensor] = []
    return found, _walk(value, "", found)


def _walk(value: Any, path: str, found: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        found.append(value)
        return len(found) - 1
    if isinstance(value, dict):
        return {key: _walk(part, f"{path}[{key!r}]", found) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [_walk(part, f"{path}[{i}]", found) for i, part in enumerate(value)]
        return _like(value, parts)
    what = f"result{path}" if path else "the result"
    raise Error(
        f"trace: {what} is {value!r} ({type(value).__name__}); "
        "expected a Tensor, or a tuple, list or dict of Tensors"
    )


def _like(value: Any, parts: list[Any]) -> Any:
    """The parts in the kind of sequence that `value` is; a named tuple takes them one by one."""
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def unflatten(tree: Any, results: Sequence[Any]) -> Any:
    """The structure of a tree with these results."""
    if isinstance(tree, int):
        return results[tree]
    if isinstance(tree, dict):
        return {key: unflatten(part, results) for key, part in tree.items()}
    return _like(tree, [unflatten(part, results) for part in tree])
