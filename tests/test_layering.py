"""The shape of the code: which folder may import which, how large the core is, what it may name."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("frontend", "dialect", "passes", "runtime")
MAY_IMPORT = {
    "dialect": {"dialect"},
    "passes": {"passes", "dialect"},
    "runtime": {"runtime", "passes", "dialect"},
    "frontend": {"frontend", "runtime", "passes", "dialect"},
}
CORE_LINES = 5_000
FAMILIES = {"passes/blocks": 1_500}  # what some targets add to the core, and how large it may be
# what models are made of; the core may not know any of it
NAMES = """
    softmax attention layernorm layer_norm rmsnorm rms_norm batchnorm batch_norm groupnorm gelu relu
    sigmoid silu swish welford logsumexp cross_entropy conv2d embedding transformer rope
"""
BLOCKS = NAMES.split()


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def package(path: Path) -> list[str]:
    """The parts of the package that a file's relative imports start from."""
    parts = list(path.relative_to(ROOT).parent.parts)
    return ["dodeca", *(parts[1:] if parts[0] == "frontend" else parts)]


def imported(path: Path) -> list[tuple[int, str]]:
    """The line and absolute name of every module that a file imports, wherever in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            here = package(path)
            start = here[: len(here) - node.level + 1] if node.level else []
            base = [*start, *(node.module or "").split(".")] if node.module else start
            found += [(node.lineno, ".".join([*base, alias.name])) for alias in node.names]
    return found


def layer(module: str) -> str | None:
    """The folder that a module of ours lies in; None for the libraries."""
    parts = module.split(".")
    if parts[0] in FOLDERS:
        return f"the folder {parts[0]}, which is no package"
    if parts[0] != "dodeca":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in FOLDERS else "frontend"


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_one_way(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name} from {found}"
        for path in files(folder)
        for line, name in imported(path)
        if (found := layer(name)) is not None and found not in MAY_IMPORT[folder]
    ]
    assert not wrong, "\n".join(wrong)


def test_one_program_of_the_runtime_loads_the_whole_package() -> None:
    """The device check compiles: it asks for `dodeca` by name, and no module imports it."""
    loads = [
        path.name for path in files("runtime") if 'import_module("dodeca")' in path.read_text()
    ]
    assert loads == ["device_check.py"]
    users = [
        path.name
        for folder in FOLDERS
        for path in files(folder)
        for _, name in imported(path)
        if "runtime.device_check" in name
    ]
    assert not users


def test_the_layers_are_read_right() -> None:
    core = ROOT / "passes" / "fuse.py"
    names = [name for _, name in imported(core)]
    assert "dodeca.dialect.ops.TensorType" in names
    assert layer("dodeca.dialect.errors.Error") == "dialect"
    assert layer("dodeca.tensor") == layer("dodeca") == "frontend"
    assert layer("numpy") is None
    assert package(ROOT / "frontend" / "models" / "bert.py") == ["dodeca", "models"]
    assert layer("frontend.nn") not in FOLDERS


def code_lines(path: Path) -> int:
    """Lines that hold code: what is not blank, a comment or a docstring."""
    text = path.read_text()
    written = {i for i, line in enumerate(text.splitlines(), 1) if line.strip()}
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in blank:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len((lines & written) - docstring_lines(text))


def docstring_lines(text: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def test_lines_are_counted_right(tmp_path: Path) -> None:
    path = tmp_path / "six.py"
    path.write_text(
        '"""None.\n\nNone."""\n\n# none\nx = [  # one\n    # none\n    1,\n]\n'
        'def f():\n    """None."""\n    return """five\nsix"""\n'
    )
    assert code_lines(path) == 6


def test_the_core_is_small() -> None:
    """The core, and apart from it each family of targets: who reads the one needs not the other."""
    sizes = {path: code_lines(path) for path in files("dialect") + files("passes")}
    for family, most in {**FAMILIES, "": CORE_LINES}.items():
        own = [path for path in sizes if str(path.parent.relative_to(ROOT)) == family]
        own = own or [path for path in sizes if path.parent.name in ("dialect", "passes")]
        assert sum(sizes[path] for path in own) < most, "\n".join(
            f"{sizes[path]:5} {path.relative_to(ROOT)}" for path in own
        )
    known = {str(ROOT / folder) for folder in (*FAMILIES, "dialect", "passes")}
    assert {str(path.parent) for path in sizes} == known  # nothing is left out


def blocks_named(path: Path) -> list[str]:
    """The identifiers of a file that name a building block of models; comments may name them."""
    named = []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", token.string).lower()
        if token.type == tokenize.NAME and any(f"_{b}_" in f"_{words}_" for b in BLOCKS):
            named.append(f"{path.name}:{token.start[0]}: {token.string}")
    return named


@pytest.mark.parametrize("folder", ["dialect", "passes"])
def test_the_core_knows_no_model(folder: str) -> None:
    named = [line for path in files(folder) for line in blocks_named(path)]
    assert not named, "\n".join(named)


def test_a_block_would_be_seen(tmp_path: Path) -> None:
    path = tmp_path / "pattern.py"
    path.write_text("# softmax\ndef fuse_softmax():\n    return LayerNorm, prelude\n")
    assert blocks_named(path) == ["pattern.py:2: fuse_softmax", "pattern.py:3: LayerNorm"]


def test_no_catch_all_files() -> None:
    vague = {"utils.py", "helpers.py", "common.py", "misc.py"}
    assert not [p for folder in FOLDERS for p in files(folder) if p.name in vague]
