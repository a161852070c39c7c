"""Fixtures that make a module from a few lines; and no cache, unless a test asks for one."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dodeca.dialect.ops import context
from mlir import ir
from mlir.dialects import func

os.environ["DODECA_CACHE"] = "off"  # what is tested is what is compiled now


def _build(body: Callable[..., Any], *types: str) -> ir.Module:
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            # "4x?xf32" is a tensor, "index" a size
            full = [t if t == "index" else f"tensor<{t}>" for t in types]
            func.FuncOp.from_py_func(*map(ir.Type.parse, full), name="main")(body)
        return module


@pytest.fixture
def build() -> Callable[..., ir.Module]:
    """`build(lambda x: ops..., "4xf32")`: a module with that function of tensors."""
    return _build


@pytest.fixture
def parse() -> Callable[[str], ir.Module]:
    """`parse(text)`: a module from MLIR text."""

    def parse_text(text: str) -> ir.Module:
        with context(), ir.Location.unknown():
            return ir.Module.parse(text)

    return parse_text


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """`module(name)`: a file of bench/ as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "bench"))
    return importlib.import_module
