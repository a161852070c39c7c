"""The table of our passes.

A pass is one entry: a frozen dataclass of options and a function that changes a module in place.

    @register("dodeca-tile", "Turns comprehensions into tile programs", TileOptions)
    def tile(module: ir.Operation, options: TileOptions) -> None: ...

After each pass the module must verify, by MLIR's rules and by the dialect's; what runs the passes
checks it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlir import ir

from ..dialect.errors import Error

MODULES = ("fuse", "tile", "lower")  # the modules of this folder that register passes


@dataclass(frozen=True)
class NoOptions:
    """The options of a pass that has none."""


Run = Callable[[ir.Operation, Any], None]
Expand = Callable[[Any], str]


@dataclass(frozen=True)
class Pass:
    """One pass, or a name for several.

    `run` changes the module in place, or raises an Error. Without it, `expands`
    gives the text of the pipeline that the name stands for.
    """

    name: str  # "dodeca-verify"
    summary: str
    options: type  # a frozen dataclass; each field, a str, int or bool with a default, is an option
    run: Run | None = None
    expands: Expand | None = None


PASSES: dict[str, Pass] = {}


def register(name: str, summary: str, options: type = NoOptions) -> Callable[[Run], Run]:
    """A decorator that adds a function to the table as the pass `name`."""

    def add(run: Run) -> Run:
        _enter(Pass(name, summary, options, run))
        return run

    return add


def register_pipeline(
    name: str, summary: str, options: type = NoOptions
) -> Callable[[Expand], Expand]:
    """A decorator for a function from options to the pipeline text that `name` stands for."""

    def add(expands: Expand) -> Expand:
        _enter(Pass(name, summary, options, expands=expands))
        return expands

    return add


def _enter(row: Pass) -> None:
    if row.name in PASSES:
        raise Error(f"two passes are called {row.name}")
    PASSES[row.name] = row


def all_passes() -> dict[str, Pass]:
    """The table with the passes of every module in MODULES, which are imported only now."""
    for module in MODULES:
        importlib.import_module(f".{module}", __package__)
    return PASSES


@register("dodeca-verify", "Checks every rule of the dialect")
def _verify(module: ir.Operation, options: NoOptions) -> None:
    """Nothing to do: the module is verified after every pass of ours, and so after this one."""
