"""The benchmark's driver: it times, checks, and says what went wrong."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, str(BENCH / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_dodeca_beside_numpy(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    cases, peers = ["mlp_4x16x32", "attention_2x8x16"], ["dodeca", "numpy"]
    done = bench(
        *("--cases", *cases, "--peers", *peers, "--threads", "1", "--rounds", "1"),
        *("--seconds", "0.01", "--output", str(file)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["case"] for row in rows] == cases
    for row in rows:
        assert list(row["peers"]) == peers
        for facts in row["peers"].values():
            assert facts["median"] >= facts["least"] > 0
            assert facts["difference"] < 1e-5
    header, _, first, _ = done.stdout.splitlines()
    assert [cell.strip() for cell in header.split("|")[1:-1]] == [
        *("case", "dodeca ms", "numpy ms", "ratio", "difference")
    ]
    assert first.split()[1] == cases[0]


@pytest.mark.parametrize("name", ["matmul", "matmul_8", "fft_8", "softmax_axb"])
def test_a_wrong_case_ends_in_one_line(name: str) -> None:
    done = bench("--cases", name, "--peers", "numpy")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{name}: not a case")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/run.py as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("run")


def test_wrong_results_are_errors(driver: ModuleType) -> None:
    expected = np.arange(4.0)
    assert "error" not in driver.compare(np.arange(4, dtype=np.float32), expected)
    assert driver.compare(np.arange(5.0), expected)["error"] == "shape (5,), expected (4,)"
    assert "wrong by" in driver.compare(expected + 1e-2, expected)["error"]
    assert "wrong by" in driver.compare(expected * np.nan, expected)["error"]


def test_a_failed_peer_stays_in_the_table(driver: ModuleType) -> None:
    peers = {"dodeca": {"median": 2e-3, "difference": 0.0}, "numpy": {"error": "no"}}
    (line,) = driver.table([{"case": "c", "peers": peers}], ["dodeca", "numpy"]).splitlines()[2:]
    assert line.split() == ["|", "c", "|", "2.000", "|", "failed", "|", "|", "0.0e+00", "|"]
