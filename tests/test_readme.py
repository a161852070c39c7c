"""README says what is so: snippets run, and tables and printed output are made from the code.

`python tests/test_readme.py` writes them anew.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest
from dodeca.dialect import DTYPES, PRIMITIVES
from dodeca.passes.targets import TARGETS
from dodeca.runtime.environment import FLAGS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(code: str, names: dict) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), names)
    return printed.getvalue()


def regenerate(text: str) -> str:
    """The text with the first snippet's output and the tables of primitives and variables anew."""
    output = run(snippets(text)[0], {})
    module, result = output.rsplit("}\n", 1)
    text = _replace(text, r"```mlir\n.*?```", f"```mlir\n{module}}}\n```")
    text = _replace(text, r"```\n\[.*?```", f"```\n{result.strip()}\n```")
    primitives = [(p.name, p.summary) for p in PRIMITIVES.values()]
    text = _table(text, "| primitive | meaning |", primitives)
    return _table(text, "| variable | what it says |", list(FLAGS.items()))


def _replace(text: str, pattern: str, by: str) -> str:
    changed, count = re.subn(pattern, lambda _: by, text, count=1, flags=re.DOTALL)
    assert count == 1, pattern
    return changed


def _table(text: str, header: str, rows: list[tuple[str, str]]) -> str:
    body = "".join(f"| `{name}` | {what} |\n" for name, what in rows)
    return _replace(
        text, re.escape(header) + r"\n\|---\|---\|\n(\|.*?\n)*", f"{header}\n|---|---|\n{body}"
    )


def test_output_and_tables_are_real() -> None:
    text = README.read_text()
    assert regenerate(text) == text, "run python tests/test_readme.py"


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    outputs = [run(code, names) for code in snippets(README.read_text())]
    assert len(outputs) == 3
    assert ".target sm_90" in outputs[1]
    assert (tmp_path / "layer-gfx942" / "manifest.json").exists()
    assert (tmp_path / "layer.dodeca").is_file()


def test_targets_dtypes_and_files_are_named() -> None:
    text = README.read_text()
    for name in [*TARGETS, *DTYPES]:
        assert name in text
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / link).exists(), link


def test_every_variable_that_is_read_is_in_the_table() -> None:
    """The environment is read in one place; PATH, which every program reads, is not a setting."""
    for folder in ("frontend", "dialect", "passes", "runtime"):
        for path in (ROOT / folder).rglob("*.py"):
            found = re.findall(r"environ(?:\.get\(|\[)\s*([^,)\]]+)", path.read_text())
            if path.name != "environment.py":
                assert set(found) <= {'"PATH"'}, path


if __name__ == "__main__":
    README.write_text(regenerate(README.read_text()))
