"""What the search costs, in small: bench/search.py measures the same of real sizes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
BUSY = 10  # so many times longer a search may take on a machine that does other things too


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/search.py as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("search")


def test_attention_is_searched_quickly(bench: ModuleType) -> None:
    found = bench.fresh("search", bench.ATTENTION)
    assert found["stopped"] == ["saturated"]
    assert found["nodes"] < 2_000
    assert min(found["saturation"], found["cpu"]) < 0.5 * BUSY  # the processor may be another's
    assert found["saturation"] < found["seconds"] and found["peak"] < 2e9
    assert sum(matches for matches, _ in found["rules"].values()) > 0


def test_equal_layers_are_searched_once(bench: ModuleType) -> None:
    found = bench.search("identical_5x8x32x4x64")
    # the first layer, which makes the constants that the others share, and those after it
    assert (found["regions"], found["solved"]) == (5, 2)
    assert found["kernels"] > found["regions"]


def test_nodes_grow_with_the_number_of_layers(bench: ModuleType) -> None:
    runs = {n: bench.saturation(f"distinct_{n}x8x32x4") for n in (2, 4, 6)}
    assert runs[6]["solved"] > runs[4]["solved"] > runs[2]["solved"]
    slope, start, square = bench.fit(runs, [found["nodes"] for found in runs.values()])
    assert square > 0.99 and abs(start) < slope < 3_000


def test_other_hash_seeds_make_the_same_programs(bench: ModuleType) -> None:
    names = "attention_2x24x16", "mlp_8x32x64"
    first, *others = (bench.fresh("digests", *names, seed=seed) for seed in (0, 1, 12345))
    assert sorted(first) == sorted(names) and len(set(first.values())) == 2
    assert all(found == first for found in others)


# --- what the command does with figures


def test_a_line_is_fitted(bench: ModuleType) -> None:
    slope, start, square = bench.fit([1, 2, 4], [5.0, 7.0, 11.0])
    assert (slope, start, square) == pytest.approx((2, 3, 1))
    assert bench.fit([1, 2, 4], [1.0, 9.0, 2.0])[2] < 0.5
    lines = bench.fits(
        {n: dict.fromkeys(("nodes", "saturation", "seconds", "cpu"), 3.0 * n) | {"peak": 5e6 * n}
         for n in (1, 2, 4)}
    )  # fmt: skip
    assert lines[1] == ["e-nodes", "0.00", "3.00", "1.0000"]
    assert lines[-1] == ["peak MB", "0.00", "5.00", "1.0000"]


def test_the_peak_is_this_process_s_alone(bench: ModuleType) -> None:
    held = np.ones(400_000_000, np.uint8)
    found = bench.fresh("memory", "attention_2x64x16")
    assert bench.peak_bytes() > held.nbytes > found["process"] > found["call"] >= 0
    assert found["scratch"] < 4 * 2 * 64 * 64 and found["difference"] < 1e-5


def test_predicted_beside_measured(bench: ModuleType) -> None:
    found = bench.fresh("profile", "mlp_16x32x64", 3)
    assert len(found["launches"]) >= 1
    assert found["predicted"] == pytest.approx(sum(row[2] for row in found["launches"]))
    assert found["measured"] == pytest.approx(sum(row[3] for row in found["launches"]))
    assert found["least"] * 0.999 <= found["mean"] <= found["largest"] * 1.001


def test_the_page_takes_what_was_measured(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = bench.PAGE.read_text(encoding="utf-8")
    for part in bench.PARTS:
        assert page.count(f"<!-- {part} -->\n") == page.count(f"<!-- end of {part} -->") == 1
    monkeypatch.setattr(bench, "PAGE", tmp_path / "search.md")
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["search.py", "--write", "memory"])
    monkeypatch.setitem(bench.PARTS, "memory", lambda: "a table")
    bench.PAGE.write_text(page, encoding="utf-8")
    assert bench.main() == 0
    written = bench.PAGE.read_text(encoding="utf-8")
    assert "\n\na table\n<!-- end of memory -->" in written
    assert written.split("<!-- memory -->")[0] == page.split("<!-- memory -->")[0]


@pytest.mark.parametrize("arguments, message", [
    (["speed"], "no part is called speed; there are saturation, depth"),
    (["--measure", json.dumps(["search", "nothing_3"])], "nothing_3: not a program"),
    (["--measure", json.dumps(["search", "matmul_3"])], "matmul_3: not a program"),
])  # fmt: skip
def test_wrong_arguments_end_in_one_line(arguments: list[str], message: str) -> None:
    command = [sys.executable, str(BENCH / "search.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode and message in done.stderr.splitlines()[-1]
