"""`dodeca db`: what it says of a model, and how sure that is; and its errors, in one line."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import dodeca as dd
import pytest
from dodeca.command import main
from dodeca.database_command import (
    arguments_in_words,
    duration,
    how_sure,
    kernels_of,
    measured,
    plain,
)
from dodeca.runtime.database import Choice, Database, Key, Part
from dodeca.runtime.identity import compiler_version, device_in_words, identity

KERNELS = """module {
  func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
    %0 = call @k0_sum(%arg0) {dodeca.predicted = 1.500000e-05 : f64} : (tensor<8xf32>) -> tensor<f32>
    %1 = call @k0_sum(%arg0) {dodeca.predicted = 1.500000e-05 : f64} : (tensor<8xf32>) -> tensor<f32>
    %2 = call @k1_mul(%arg0, %0) : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
    return %2 : tensor<8xf32>
  }
  func.func private @k0_sum(%arg0: tensor<8xf32>) -> tensor<f32> attributes {dodeca.schedule = {lanes = 8 : i64, tiles = {d0 = 4 : i64}}} {
  }
}
"""  # noqa: E501
KEY = Key("3fa9c0ffee00", "f32[4x8]", "fast", "cpu", identity("cpu", 2), compiler_version())
CHOICE = Choice(
    *(KEY, "sentence_embedding", KERNELS, 0.0241, 0.03, 0.025, 214, 60.0),
    created=1.7e9,
    samples=41,
    parts=(Part("k0_sum", "77aa", "f32[8]", 1.25e-5, 0.02, 21, 40),),
)
ELSEWHERE = replace(KEY, device='{"core":"znver9","kind":"cpu","model":"A CPU","threads":4}')


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("DODECA_CACHE", str(tmp_path / "cache"))
    return Database(strict=True)


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> list[str]:
    """The lines that `dodeca db` prints, or its one line of an error."""
    assert main(["db", *words]) == status
    out, err = capsys.readouterr()
    lines = (err if status else out).splitlines()
    assert not (out if status else err)
    assert not status or len(lines) == 1
    return lines


def test_show_says_how_fast_a_model_is_and_how_sure_that_is(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    database.choose(CHOICE)
    database.choose(replace(CHOICE, key=ELSEWHERE, seconds=0.0182, samples=0))
    machine = device_in_words(KEY.device)
    assert said(capsys, "show", "embed") == said(capsys, "show", "3fa9")
    assert said(capsys, "show", "sentence_embedding") == [
        "sentence_embedding: f32[4x8]; fast, cpu; graph 3fa9c0ffee00",
        f"On this machine ({machine}) the best of 214 candidates takes 24.1 ms ± 3 % (the median "
        "of 41 calls, measured on 14 November 2023, in a search of 60 s).",
        "The second best takes 25.0 ms ± 3 %: 900 µs more, not larger than the noise, so this is "
        "not sure.",
        "Kernel by kernel:",
        "  k0_sum  12.5 µs ± 2 % of 21 samples, the best of 40 schedules, predicted 15.0 µs, "
        "2 launches",
        "          lanes = 8, tiles = {d0 = 4}",
        "  k1_mul  1 launch",
        "Known besides, and not used here:",
        "  another machine: A CPU (znver9), 4 threads: the best of 214 candidates takes 18.2 ms ± "
        "3 % (measured on 14 November 2023, in a search of 60 s)",
    ]


def test_show_of_a_model_of_other_machines_alone(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    database.choose(replace(CHOICE, key=ELSEWHERE))
    database.choose(replace(CHOICE, key=replace(KEY, compiler="0.1", graph="77")))
    lines = said(capsys, "show", "embed")
    nothing = "Nothing that was measured holds for this machine and this version of dodeca."
    assert lines.count(nothing) == 2
    assert not [line for line in lines if line.startswith("On this machine")]
    assert [line[:40] for line in lines if line.startswith("  ")] == [
        "  another machine: A CPU (znver9), 4 thr",
        "  another version of dodeca: 0.1: the be",
    ]


def test_what_was_imported_is_said_to_be(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.choose(CHOICE)
    database.choose(replace(CHOICE, key=ELSEWHERE))
    database.add_trials(KEY, [("a", "ok", 1.0, 0.1, 3, 1.0)])
    file = str(tmp_path / "file")
    (line,) = said(capsys, "export", file, "--name", "embed")
    assert line.startswith(f"{file} is written")
    database.close()
    database.path.unlink()  # pyright: ignore[reportOptionalMemberAccess]
    assert said(capsys, "import", file) == [
        "Taken for this machine: 1 model and 1 trial.",
        "Kept and not used here: 1 model and 0 trials of another machine: A CPU (znver9), "
        "4 threads.",
    ]
    assert said(capsys, "import", file)[1] == "Left, for what is here is as new: 2 models."
    assert "It was not measured here but imported, from file." in said(capsys, "show", "embed")


def test_list_bugs_and_path(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "list") == ["Nothing was tuned yet."]
    assert said(capsys, "bugs") == ["No search has met a bug of the compiler."]
    assert said(capsys, "path") == [str(database.path)]
    database.choose(CHOICE)
    database.choose(replace(CHOICE, key=ELSEWHERE, name="b", created=1.8e9))
    database.add_bug(KEY, "a", "wrong", "differs\nby 1", "/tmp/a.mlir")
    first, second = said(capsys, "list")
    assert first.endswith("2027-01-15  fast, cpu; another machine: A CPU (znver9), 4 threads")
    assert second.split() == [
        *("sentence_embedding", "3fa9c0ffee00", "24.1", "ms", "2023-11-14", "fast,", "cpu;"),
        *device_in_words(KEY.device).split(),
    ]
    first, second = said(capsys, "bugs")
    assert first.endswith("  wrong (cpu, fast): differs")
    assert second.endswith(": dodeca check /tmp/a.mlir")


def test_errors_are_one_line(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "show", "x", status=1) == [
        "dodeca db: nothing is known of 'x'; nothing was tuned"
    ]
    database.choose(CHOICE)
    (line,) = said(capsys, "show", "x", status=1)
    assert line.endswith("'x'; sentence_embedding was tuned")
    (line,) = said(capsys, "import", str(tmp_path / "none"), status=1)
    assert "cannot be read: No such file" in line
    (tmp_path / "file").write_text("{}")
    (line,) = said(capsys, "import", str(tmp_path / "file"), status=1)
    assert "nothing was imported" in line
    (line,) = said(capsys, "export", str(tmp_path / "out"), "--name", "x", status=1)
    assert "nothing of that name" in line


def test_without_a_cache_there_is_nothing_to_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DODECA_CACHE", "off")
    assert said(capsys, "list", status=1) == ["dodeca db: nothing is kept, for DODECA_CACHE is off"]


@pytest.mark.parametrize("words", [[], ["db"], ["nothing"], ["db", "show"], ["db", "list", "x"]])
def test_a_wrong_command_line_has_status_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: dodeca" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ({"runner_up": 0.0}, "No other program was compared with it."),
        ({"runner_up": 0.0255}, "so this is not sure."),  # 1.4 ms more; the noise is 1.49 ms
        ({"runner_up": 0.0257}, "larger than the noise, so this is sure."),
        ({"runner_up": 0.0255, "runner_up_noise": 0.02}, "than the noise, so this is sure."),
        ({"runner_up": 0.03, "runner_up_noise": 0.2}, "so this is not sure."),
        ({"runner_up": 0.0241}, "which is faster is not sure."),
    ],
)
def test_how_sure(change: dict[str, float], end: str) -> None:
    assert how_sure(replace(CHOICE, **change)).endswith(end)


def test_one_candidate_is_no_best() -> None:
    said = measured(replace(CHOICE, candidates=1, samples=1, budget=0.0))
    assert said == "it takes 24.1 ms ± 3 % (the median of 1 call, measured on 14 November 2023)"


def test_the_kernels_of_a_real_module_are_read() -> None:
    compiled = dd.compile(lambda x, w: dd.relu(x @ w), dd.spec((32, 64)), dd.spec((64, 16)))
    (kernel,) = kernels_of(compiled.ir("kernels"))
    assert [kernel.name] == [each.name for each in compiled.kernels]
    assert kernel.launches == 1 and 1e-7 < kernel.predicted < 1e-4
    assert "tiles = {d0 = " in kernel.schedule and "i64" not in kernel.schedule


@pytest.mark.parametrize("text", ["", "call @", "call @k(%0) {dodeca.predicted = e} : x", "\x1b"])
def test_a_text_that_is_no_module_does_no_harm(text: str) -> None:
    for kernel in kernels_of(text):
        assert kernel.in_words(None) == "1 launch"


def test_arguments_in_words() -> None:
    graph = dd.trace(lambda x, y: x @ y, dd.spec((32, 64)), dd.spec((64, 16), "float16"))
    found = str(graph).partition("@")[2].partition(" {\n")[0]
    assert arguments_in_words(found) == "x f32[32x64], y f16[64x16]"
    weight = '(%arg0: tensor<8xf32>, %arg1: tensor<f64> {dodeca.weight = "w"}) -> tensor<8xf32>'
    assert arguments_in_words(weight) == "f32[8]"
    assert arguments_in_words("128 tokens\x07") == "128 tokens?"
    assert len(arguments_in_words("x" * 1000)) == 200


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0.0, "0.00 ns"), (3.14159e-7, "314 ns"), (1e-6, "1.00 µs"), (2.41e-2, "24.1 ms")),
        *((0.9996, "1000 ms"), (1.0, "1.00 s"), (4321.0, "4321 s")),
    ],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_nothing_that_steers_a_terminal_is_printed() -> None:
    assert plain("a\x1b[2J\nb é") == "a?[2J?b é"


def test_the_command_loads_no_compiler(tmp_path: Path, database: Database) -> None:
    """It starts quickly, and runs where MLIR does not."""
    database.choose(CHOICE)
    database.close()
    script = """
import sys
from dodeca.command import main
assert main(["db", "show", "embed"]) == 0
heavy = {"mlir", "egglog.bindings"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "24.1 ms" in done.stdout


def test_a_reader_that_is_gone_is_no_error(database: Database) -> None:
    command = [sys.executable, "-m", "dodeca.command", "db", "path"]
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=buffered) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (1, b"")
