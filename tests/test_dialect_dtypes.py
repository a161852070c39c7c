"""The table of dtypes, and what happens when the MLIR bindings are not what they should be."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from dodeca import bindings
from dodeca.dialect import DTYPES, dtype
from dodeca.dialect.errors import DtypeError

LOOKUPS = [
    ("float32", "float32"),
    (np.float16, "float16"),
    (np.dtype("float64"), "float64"),
    (ml_dtypes.bfloat16, "bfloat16"),
    (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
    (bool, "bool"),
    (int, "int64"),
    (float, "float32"),
    ("i4", "int32"),
    (np.uint8, "uint8"),
    (DTYPES["int8"], "int8"),
]


@pytest.mark.parametrize(("value", "name"), LOOKUPS, ids=str)
def test_lookup(value, name) -> None:
    assert dtype(value) is DTYPES[name]


@pytest.mark.parametrize("value", ["float8", np.complex64, np.uint16, object(), None, "", str])
def test_unknown_dtypes(value) -> None:
    with pytest.raises(DtypeError, match=r"unknown dtype .*; dodeca has float32, float16"):
        dtype(value)


@pytest.mark.parametrize("row", DTYPES.values(), ids=str)
def test_rows_agree_with_numpy(row) -> None:
    assert row.bytes == row.numpy.itemsize == np.zeros(1, row.numpy).nbytes
    assert dtype(row.numpy) is row
    assert row.is_float == (row.kind == "float")
    assert np.asarray(row.lowest, row.numpy) <= np.zeros((), row.numpy)
    if row.is_float:
        assert row.lowest == -np.inf
        assert row.wide.itemsize > row.numpy.itemsize
    elif row.kind != "bool":
        assert row.lowest == np.iinfo(row.numpy).min
        assert row.wide == row.numpy


# --- the bindings -------------------------------------------------------------------------------


def import_with(preamble: str, statement: str = "from dodeca import Tensor") -> str:
    """What an import prints on standard error in a process that ran `preamble`."""
    code = f"import sys\n{preamble}\n{statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr


IMPORTS = ["from dodeca import Tensor", "import dodeca.nn", "import dodeca.opt",
           "from dodeca.models.bert import Bert", "import dodeca as dd; dd.compile"]  # fmt: skip


@pytest.mark.parametrize("statement", IMPORTS)
def test_bindings_missing(statement: str) -> None:
    shown = import_with("sys.modules['mlir'] = None", statement)
    assert "ImportError: dodeca needs the upstream MLIR Python bindings, release 22.x" in shown
    assert "pip install 'xtc-mlir-python-bindings" in shown
    assert "the PyPI package `mlir-python-bindings` is an empty placeholder" in shown
    assert "Importing them failed: " in shown


def test_bindings_without_python_passes() -> None:
    shown = import_with(
        "import mlir.passmanager\n"
        "class PassManager: pass\n"
        "mlir.passmanager.PassManager = PassManager\n"
        "from importlib import metadata\n"
        "def none(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.distribution = none\n"
        "metadata.packages_distributions = lambda: {}"
    )
    assert "ImportError: dodeca needs the upstream MLIR Python bindings, release 22.x" in shown
    assert "Found another release, without Python passes." in shown


def test_bindings_of_another_release(monkeypatch) -> None:
    for version in ("21.1.0", "23.0.0"):
        monkeypatch.setattr(bindings, "_version", lambda version=version: version)
        with pytest.raises(ImportError, match=f"release 22.x(.|\\n)*Found release {version}"):
            bindings.check_bindings()
    for version in ("22.9.9", None):  # None: the version says nothing of LLVM's
        monkeypatch.setattr(bindings, "_version", lambda version=version: version)
        bindings.check_bindings()


def test_the_installed_bindings_pass() -> None:
    assert (bindings._version() or "22").split(".")[0] == bindings.NEEDED
    bindings.check_bindings()
