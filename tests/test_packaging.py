"""What the package's metadata promises: every folder is listed, the extras and the script exist."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def test_every_folder_of_code_is_packaged() -> None:
    """A folder that is not listed imports in an editable install and is missing from the wheel."""
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for top in ("frontend", "dialect", "passes", "runtime")
        for path in (ROOT / top).rglob("*.py")
    }
    assert folders == set(SETUPTOOLS["package-dir"].values())
    assert set(SETUPTOOLS["packages"]) == set(SETUPTOOLS["package-dir"])


def test_every_folder_has_its_package_file() -> None:
    for folder in SETUPTOOLS["package-dir"].values():
        assert (ROOT / folder / "__init__.py").is_file(), folder


def test_only_code_is_in_the_folders() -> None:
    """setuptools packs .py files; another kind of file would need package-data."""
    for folder in SETUPTOOLS["package-dir"].values():
        others = [p.name for p in (ROOT / folder).iterdir() if p.is_file() and p.suffix != ".py"]
        assert not others, f"{folder}: {others}"


def test_the_scripts_can_be_called() -> None:
    for target in PROJECT["project"]["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_what_is_imported_is_the_package() -> None:
    import dodeca

    assert dodeca.__name__ == "dodeca"
    assert Path(dodeca.__file__ or "").parent.name in ("frontend", "dodeca")


@pytest.mark.parametrize("name", ["nn", "models.bert", "activations", "promotion", "explain"])
def test_a_module_can_be_imported_first(name: str) -> None:
    """The modules of the frontend know each other; which is loaded first does not matter."""
    command = [sys.executable, "-c", f"import dodeca.{name}, dodeca as dd; dd.softmax, dd.Tensor"]
    subprocess.run(command, check=True)
