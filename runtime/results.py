"""How results are put together, as plain data: what a file keeps of a function's return value.

    >>> described(lambda results: {"a": results[0], "b": (results[1],)}, 2)
    ['dict', [['a', 0], ['b', ['tuple', [1]]]]]
    >>> assembled(['dict', [['a', 0], ['b', ['tuple', [1]]]]], 2)([x, y])
    {'a': x, 'b': (y,)}

A structure is a result, or a tuple, named tuple, list or dict of structures.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

from ..dialect.errors import ArgumentError, ParseError

_DEEPEST = 64
Assemble = Callable[[list[Any]], Any]


class _Place:
    """Stands for a result, to see where it ends up. Nothing can be computed with it."""

    def __init__(self, position: int):
        self.position = position


def described(assemble: Assemble | None, count: int) -> Any:
    """The structure that a function makes of `count` results; None if they are given as they are.

    ArgumentError for a function that does more than to put results into tuples, lists and dicts.
    """
    if assemble is None:
        return None
    try:
        made = assemble([_Place(i) for i in range(count)])
    except Exception as error:
        raise ArgumentError(
            f"save: the results are put together by a function that a file cannot keep: {error}"
        ) from None
    return _described(made, "the result")


def _described(value: Any, where: str) -> Any:
    if isinstance(value, _Place):
        return value.position
    if isinstance(value, dict):
        for key in value:
            if not (key is None or isinstance(key, bool | int | float | str)):
                kind = type(key).__name__
                raise ArgumentError(f"save: {where} has a key that a file cannot keep: a {kind}")
        return [
            "dict",
            [[key, _described(part, f"{where}[{key!r}]")] for key, part in value.items()],
        ]
    if isinstance(value, list | tuple):
        parts = [_described(part, f"{where}[{i}]") for i, part in enumerate(value)]
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return ["named", parts, type(value).__name__, list(fields)]
        return ["list" if isinstance(value, list) else "tuple", parts]
    raise ArgumentError(f"save: {where} is a {type(value).__name__}, which a file cannot keep")


def assembled(tree: Any, count: int) -> Assemble | None:
    """The function that a structure stands for; ParseError if it is none of `count` results.

    A named tuple is of a new type, with the name and the fields of the one that was described.
    """
    if tree is None:
        return None
    build = _build(tree, count, _DEEPEST)
    return lambda results: build(results)


def _build(tree: Any, count: int, left: int) -> Callable[[Sequence[Any]], Any]:
    wrong = ParseError(f"results: {str(tree)[:80]!r} is not a structure of {count} results")
    if isinstance(tree, int) and not isinstance(tree, bool) and 0 <= tree < count:
        return lambda results: results[tree]
    if not isinstance(tree, list) or len(tree) < 2 or not isinstance(tree[1], list) or not left:
        raise wrong
    kind, parts, *rest = tree
    if kind == "dict" and not rest:
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in parts):
            raise wrong
        keys = [key for key, _ in parts]
        if any(isinstance(key, list | dict) for key in keys):
            raise wrong
        inside = [_build(part, count, left - 1) for _, part in parts]
        return lambda results: {k: build(results) for k, build in zip(keys, inside, strict=True)}
    inside = [_build(part, count, left - 1) for part in parts]
    if kind in ("list", "tuple") and not rest:
        make = list if kind == "list" else tuple
        return lambda results: make(build(results) for build in inside)
    if kind == "named" and len(rest) == 2:
        named = _named(*rest)
        if named is not None and len(named._fields) == len(inside):
            return lambda results: named(*(build(results) for build in inside))
    raise wrong


def _named(name: Any, fields: Any) -> Any:
    """A type of named tuples; None if Python does not allow the names."""
    if not isinstance(name, str) or not isinstance(fields, list):
        return None
    if not all(isinstance(field, str) for field in fields):
        return None
    try:
        return namedtuple(name, fields)  # which checks that each is a name
    except ValueError:
        return None
