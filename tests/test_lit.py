"""Runs each file of tests/lit under lit: one test a file, its output shown when it fails."""

import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent / "lit").glob("**/*.mlir"))
LIT = [sys.executable, "-c", "from lit.main import main; main()", "-v"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*LIT, "--param", f"out={tmp_path}", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed: 1" in done.stdout
