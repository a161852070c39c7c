"""A smoke test of an installed dodeca, run by a Python that has nothing but the wheel:

    cd elsewhere && venv/bin/python -I .../tests/smoke.py

Every file of the package is there, a function compiles and agrees with numpy, and the tool runs.
"""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def packaged() -> None:
    """Every file in the repository's folders is in the installed package."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    installed = {str(file) for file in metadata.files("dodeca") or []}
    missing = [
        f"{package}: {path.name}"
        for package, folder in folders["package-dir"].items()
        for path in (ROOT / folder).iterdir()
        if path.is_file() and f"{package.replace('.', '/')}/{path.name}" not in installed
    ]
    assert not missing, f"not in the wheel: {', '.join(missing)}"


def compiles() -> None:
    """`softmax(x @ x.T)` on this CPU against numpy."""
    import dodeca as dd
    import numpy as np

    home = Path(dd.__file__).resolve()
    assert not home.is_relative_to(ROOT), f"{home} is the repository, not the wheel"
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    compiled = dd.compile(lambda x: dd.softmax(x @ x.T, axis=-1), dd.spec((8, 8)))
    powers = np.exp(x @ x.T - (x @ x.T).max(axis=-1, keepdims=True))
    expected = powers / powers.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(compiled(x)), expected, rtol=1e-5, atol=1e-6)


def tool() -> None:
    """The console script is installed beside Python, and lists the passes."""
    script = Path(sys.executable).parent / "dodeca-opt"
    done = subprocess.run([script, "--list-passes"], capture_output=True, text=True, check=True)
    assert "dodeca-verify" in done.stdout


if __name__ == "__main__":
    packaged()
    compiles()
    tool()
    print("smoke test: the wheel is whole, compiles and runs")
