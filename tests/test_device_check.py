"""The check of a device: in the simulator, against a driver without a device, and its deadline."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dodeca as dd
import numpy as np
import pytest
from dodeca.runtime import device_check, gpu_runner
from dodeca.runtime.device_cases import CHECKS, SPEEDS, Case
from fake_gpu import LAUNCH, HostDriver


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dodeca.runtime.device_check", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.parametrize("target", ["cuda:sm_90", "hip:gfx942"])
def test_all_small_programs_are_right_in_the_simulator(target: str, tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    ran = run("--simulate", "--target", target, "--json", str(path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(path.read_text())
    assert [row["name"] for row in report["rows"]] == [case.name for case in CHECKS]
    assert all(row["ok"] and row["error"] <= row["tolerance"] for row in report["rows"])
    assert report["simulated"] and report["target"] == target and not report["not reached"]
    assert [*tmp_path.iterdir()] == [path]
    assert f"{len(CHECKS)} of {len(CHECKS)} right" in ran.stdout


def test_without_a_gpu_it_says_so_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("dodeca.runtime.gpu._loads", lambda library: False)
    path = tmp_path / "check.json"
    assert device_check.main(["--json", str(path)]) == 2 and not path.exists()
    said = capsys.readouterr()
    assert not said.out and said.err == (
        "device check: there is no GPU: neither NVIDIA's driver (libcuda) nor AMD's driver "
        "(libamdhip64) is on this machine; --simulate runs the small programs on this CPU\n"
    )


# --- a driver without a device ------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    driver = HostDriver(chips=("sm_90",))
    make = gpu_runner.GpuRunner.__init__

    def made(self: Any, program: Any, weights: Any, _: Any = None) -> None:
        driver.kernels.update(program.kernels)
        make(self, program, weights, driver)

    monkeypatch.setattr(gpu_runner.GpuRunner, "__init__", made)
    return driver


def named(*words: str) -> list[Case]:
    return [case for case in CHECKS if any(word in case.name for word in words)]


def worked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **settings: Any
) -> list[dict[str, Any]]:
    """The rows of a worker."""
    usual = {"target": "cuda:sm_90", "simulate": False, "seconds": 60.0, "only": "", "skip": "[]"}
    monkeypatch.setattr(device_check, "import_module", lambda name: dd)
    assert device_check._work(SimpleNamespace(**{**usual, **settings})) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_worker_checks_and_times(
    driver: HostDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = named("softmax", "several", "gather")
    fast = Case("a product", checks[0].build, checks[0].specs, work=1e6, unit="GB/s", rival="r")
    slow = Case("too long", checks[0].build, checks[0].specs, work=1e20, unit="GB/s", rival="r")
    monkeypatch.setattr(device_check, "CHECKS", tuple(checks))
    monkeypatch.setattr(device_check, "SPEEDS", (fast, slow))
    monkeypatch.setattr(device_check, "installed", lambda: {"torch": "9"})
    monkeypatch.setattr(device_check, "time_torch", lambda case, arrays, limit: 2e-3)
    rows = worked(monkeypatch, capsys, skip=json.dumps(["gather f32"]))
    names = ["softmax f32", "several kernels f32", "a product", "too long"]
    assert [row["begin"] for row in rows[::2]] == names
    softmax, several, product, long = rows[1::2]
    assert softmax["ok"] and several["ok"] and "note" not in several
    assert driver.named("update"), "no call came with arrays on the device"
    launches = len(dd.compile(fast.build(dd), dd.spec(*fast.specs[0]), target="cuda:sm_90").plan)
    assert product["seconds"] == pytest.approx(LAUNCH * launches)
    assert product["rate"] == pytest.approx(1e6 / product["seconds"] / 1e9)
    assert product["torch"] == 2e-3
    assert not long["ok"] and long["late"] and "left out" in long["note"]


def test_a_wrong_result_is_wrong(
    driver: HostDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_check, "CHECKS", tuple(named("transpose")))
    monkeypatch.setattr(device_check, "SPEEDS", ())
    monkeypatch.setattr(driver, "_launch", lambda *_: None)
    row = worked(monkeypatch, capsys)[1]
    assert not row["ok"]


def test_an_error_is_a_row(
    driver: HostDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_check, "CHECKS", tuple(named("transpose", "softmax")))
    monkeypatch.setattr(device_check, "SPEEDS", ())
    driver.fail["load"] = device_check.Error("cuModuleLoadDataEx: no")
    rows = worked(monkeypatch, capsys)
    assert [row["note"] for row in rows[1::2]] == ["Error: cuModuleLoadDataEx: no"] * 2


# --- the process that watches -------------------------------------------------------------------


def test_a_worker_that_hangs_is_ended_at_the_deadline() -> None:
    text = "import time; print('{\"begin\": 1}', flush=True); print('words', flush=True); "
    began = time.monotonic()
    rows = [*device_check._rows([sys.executable, "-c", text + "time.sleep(60)"], began + 2)]
    assert rows == [{"begin": 1}]
    assert time.monotonic() - began < 20


def test_a_worker_that_breaks_is_begun_again_after_the_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[list[str]] = []

    def rows(command: list[str], deadline: float):
        skip = json.loads(command[command.index("--skip") + 1])
        runs.append(skip)
        yield {"begin": "abc"[len(skip)]}
        if len(skip) == 1:
            return  # b breaks the process
        yield {"name": "abc"[len(skip)], "ok": True}

    monkeypatch.setattr(device_check, "_rows", rows)
    options = SimpleNamespace(only="", simulate=True)
    found = device_check._supervised(options, "t", ["a", "b", "c"], time.monotonic() + 60)
    assert [(row["name"], row["ok"]) for row in found] == [("a", True), ("b", False), ("c", True)]
    assert runs == [[], ["a"], ["a", "b"]]


def report(**rows: dict[str, Any]) -> dict[str, Any]:
    listed = [{"name": name.replace("_", " "), **row} for name, row in rows.items()]
    return {"rows": listed, "not reached": []}


def test_what_is_right() -> None:
    good, late = {"ok": True}, {"ok": False, "late": True}
    assert device_check._is_right(report(softmax_f32=good, gemm=late))
    assert not device_check._is_right(report(softmax_f32=late))
    assert not device_check._is_right(report(gemm={"ok": False}))
    assert not device_check._is_right({"rows": [], "not reached": [CHECKS[0].name]})


def test_errors_count_what_is_not_finite() -> None:
    one = np.ones(3, np.float32)
    assert device_check._error([one], [one * 2]) == 0.5
    assert device_check._error([one * np.nan], [one]) == float("inf")


def test_a_row_reads_as_a_line() -> None:
    row = {"name": "gemm", "ok": True, "seconds": 2e-3, "rate": 1.5, "unit": "TFLOP/s"}
    line = device_check._line({**row, "torch": 1e-3, "triton": "no"})
    assert "2.000 ms" in line and "torch 1.000 ms (0.500)" in line and "triton: no" in line


def test_the_tables_have_what_they_promise() -> None:
    names = " ".join(case.name for case in CHECKS)
    for word in ("f32", "f16", "bf16", "int8", "attention", "softmax", "layer norm", "conv2d",
                 "cross entropy", "elementwise", "transpose", "gather", "scatter add"):  # fmt: skip
        assert word in names
    speeds = [case.name for case in SPEEDS]
    assert len({*speeds, *(case.name for case in CHECKS)}) == len(speeds) + len(CHECKS)
    for n in (1024, 4096, 8192):
        assert f"gemm bf16 {n}" in speeds
    for size in (64, 128):
        for length in (2, 8, 16):
            assert {f"attention f16 d{size} {length}k{end}" for end in ("", " causal")} < {*speeds}
    assert any("llama" in name for name in speeds)
    assert all(case.work > 0 and case.rival for case in SPEEDS)
