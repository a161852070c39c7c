"""The table of our passes.

A pass is one entry: a frozen dataclass of options and a function that changes a module in place.

    @register("dodeca-tile", "Turns comprehensions into tile programs", TileOptions)
    def tile(module: ir.Operation, options: TileOptions) -> None: ...

After each pass the module must verify, by MLIR's rules and by the dialect's; what runs the passes
checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from mlir import ir

from ..dialect.errors import Error


@dataclass(frozen=True)
class NoOptions:
    """The options of a pass that has none."""


@dataclass(frozen=True)
class Pass:
    """One pass, or a name for several.

    `run` changes the module in place, or raises an Error. Without it, `expands`
    gives the text of the pipeline that the name stands for.
    """

    name: str  # "dodeca-verify"
    summary: str
    options: type  # a frozen dataclass; each field, a str, int or bool with a default, is an option
    run: Callable[[ir.Operation, Any], None] | None = None
    expands: Callable[[Any], str] | None = None


PASSES: dict[str, Pass] = {}
Function = TypeVar("Function", bound=Callable[..., Any])


def register(
    name: str, summary: str, options: type = NoOptions, *, expands: bool = False
) -> Callable[[Function], Function]:
    """A decorator that adds a function to the table as the pass `name`.

    With `expands`, the function maps the options to the pipeline's text that `name` stands for.
    """

    def add(function: Function) -> Function:
        if name in PASSES:
            raise Error(f"two passes are called {name}")
        role: dict[str, Any] = {"expands" if expands else "run": function}
        PASSES[name] = Pass(name, summary, options, **role)
        return function

    return add
