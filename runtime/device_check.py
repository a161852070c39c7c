"""Check a GPU: small programs against the interpreter, then large ones for time, in five minutes.

    python -m dodeca.runtime.device_check                   # the first GPU that is here
    python -m dodeca.runtime.device_check --target hip --seconds 120 --json out.json
    python -m dodeca.runtime.device_check --simulate        # without a GPU: the small programs only
    python -m dodeca.runtime.device_check --only gemm       # cases whose names have this word

Exit status: 0 where all that was checked is right, 1 where something is wrong or was not reached,
2 without a device, in one sentence. The cases run in a process of their own, which is ended at the
deadline, and begun again after the case if one brings it down; after each case the JSON file is
replaced as a whole.

This is a program over the whole package, and no part of the runtime: nothing imports it, and it
asks for the package `dodeca` by name when it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..dialect.errors import Error, TargetError
from .device_cases import CHECKS, SPEEDS, Case
from .device_rivals import installed, time_torch, time_triton
from .gpu import VENDORS, device_for, device_target, open_driver

SECONDS = 285  # of the five minutes, so that the table is printed in them too
SIMULATED = "cuda:sm_90"  # the target of a simulation where none is named
LIMIT = 0.3  # seconds for the samples of a figure; a longer run is taken once
NO_DEVICE = 2
Row = dict[str, Any]


def main(words: Sequence[str] | None = None) -> int:
    """Run the check; the exit status."""
    options = _parser().parse_args(words)
    if options.worker:
        return _work(options)
    try:
        target, facts = _chosen(options)
    except TargetError as error:
        print(f"device check: {error}", file=sys.stderr)
        return NO_DEVICE
    report = _new_report(target, facts, options.simulate)
    names = [case.name for case in _cases(options)]
    print(f"{report['device']}, code for {target}, {options.seconds} s at most", flush=True)
    began = time.monotonic()
    for row in _supervised(options, target, names, began + options.seconds):
        report["rows"].append(row)
        report["seconds"] = round(time.monotonic() - began, 1)
        print(_line(row), flush=True)
        _write(options.json, report)
    done = {row["name"] for row in report["rows"]}
    report["not reached"] = [name for name in names if name not in done]
    _write(options.json, report)
    print(_summary(report, options.json))
    return 0 if _is_right(report) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dodeca.runtime.device_check")
    parser.add_argument("--target", default="", help="cuda, hip or with a chip, cuda:sm_90")
    parser.add_argument("--simulate", action="store_true", help="without a GPU, in the simulator")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to end after")
    parser.add_argument("--json", type=Path, default=Path("device_check.json"))
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip", default="[]", help=argparse.SUPPRESS)
    return parser


def _chosen(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The target, and what is known of its device; TargetError where there is none."""
    if options.simulate:
        return options.target or SIMULATED, {"name": "simulated on this CPU"}
    families = [options.target] if options.target else list(VENDORS)
    missing = []
    for name in families:
        try:
            target = name if ":" in name else device_target(name)
            driver = open_driver(target)
            facts = driver.facts(device_for(driver, target))
            return target, vars(facts)
        except TargetError as error:
            missing.append(error)
    if len(missing) == 1:
        raise missing[0]
    if all("is not on this machine" in str(error) for error in missing):
        drivers = " nor ".join(f"{row.name}'s driver ({row.library})" for row in VENDORS.values())
        text = f"there is no GPU: neither {drivers} is on this machine"
        raise TargetError(f"{text}; --simulate runs the small programs on this CPU")
    raise TargetError("; ".join(map(str, missing)))


def _cases(options: argparse.Namespace) -> list[Case]:
    table = CHECKS if options.simulate else (*CHECKS, *SPEEDS)
    return [case for case in table if options.only in case.name]


# --- the process that watches -------------------------------------------------------------------


def _supervised(
    options: argparse.Namespace, target: str, names: Sequence[str], deadline: float
) -> Iterator[Row]:
    """The rows of workers until all cases are done or the time is up."""
    left = list(names)
    while left and time.monotonic() < deadline:
        skip = json.dumps([name for name in names if name not in left])
        command = [
            sys.executable, "-m", "dodeca.runtime.device_check", "--worker", "--target", target,
            "--only", options.only, "--skip", skip, "--seconds", f"{deadline - time.monotonic()}",
            *(["--simulate"] if options.simulate else []),
        ]  # fmt: skip
        begun = ""
        for row in _rows(command, deadline):
            if "begin" in row:
                begun = row["begin"]
                continue
            left.remove(row["name"])
            yield row
        if begun not in left:
            if not begun:  # it cannot even start: its own words were on standard error
                return
            continue
        left.remove(begun)
        late = time.monotonic() >= deadline
        note = "not finished in time" if late else "the process ended in this case"
        yield {"name": begun, "ok": False, "late": late, "note": note}


def _rows(command: Sequence[str], deadline: float) -> Iterator[Row]:
    """What a worker prints, until it ends or the time is up; then it is ended."""
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while (wait := deadline - time.monotonic()) > 0:
            try:
                line = lines.get(timeout=wait)
            except queue.Empty:
                return
            if line is None:
                return
            if line.startswith("{"):
                yield json.loads(line)
    finally:
        if worker.poll() is None:
            worker.kill()
        with suppress(subprocess.TimeoutExpired):  # one that a driver does not let go is left
            worker.wait(5)
        reader.join(5)
        if worker.stdout is not None and not reader.is_alive():
            worker.stdout.close()


def _new_report(target: str, facts: dict[str, Any], simulated: bool) -> dict[str, Any]:
    try:
        own = version("dodeca")
    except PackageNotFoundError:
        own = "unknown"
    return {
        "device": facts["name"],
        "facts": facts,
        "target": target,
        "simulated": simulated,
        "versions": {"dodeca": own, **installed()},
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": 0.0,
        "rows": [],
        "not reached": [],
    }


def _write(path: Path, report: dict[str, Any]) -> None:
    """Replace the file as a whole."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(report, indent=1))
    os.replace(beside, path)


def _line(row: Row) -> str:
    """A row of the table."""
    word = "ok" if row["ok"] else "late" if row.get("late") else "WRONG"
    parts = [f"{row['name']:28} {word:5}"]
    if "error" in row:
        parts.append(f"error {row['error']:.1e} of {row['tolerance']:.0e}")
    if "seconds" in row:
        parts.append(f"{row['seconds'] * 1e3:9.3f} ms {row['rate']:9.2f} {row['unit']}")
    for rival in ("torch", "triton"):
        if isinstance(row.get(rival), float):
            parts.append(f"{rival} {row[rival] * 1e3:.3f} ms ({row[rival] / row['seconds']:.3f})")
        elif rival in row:
            parts.append(f"{rival}: {row[rival]}")
    return "  ".join([*parts, *([row["note"]] if "note" in row else [])])


def _is_right(report: dict[str, Any]) -> bool:
    """Whether all was right, and every check was reached; a figure may be late."""
    checks = {case.name for case in CHECKS}
    wrong = [row for row in report["rows"] if not row["ok"]]
    lost = [row["name"] for row in wrong if not row.get("late")]
    return not lost and not checks & {*report["not reached"], *(row["name"] for row in wrong)}


def _summary(report: dict[str, Any], path: Path) -> str:
    rows = report["rows"]
    right = sum(row["ok"] for row in rows)
    text = f"{right} of {len(rows)} right in {report['seconds']} s; written to {path}"
    lost = report["not reached"]
    return f"{text}\nnot reached: {', '.join(lost)}" if lost else text


# --- the process that works ---------------------------------------------------------------------


def _work(options: argparse.Namespace) -> int:
    """Run cases, each announced before and reported after, on a line of JSON."""
    package = import_module("dodeca")  # the compiler: see above
    skipped, deadline = json.loads(options.skip), time.monotonic() + options.seconds
    speeds = {case.name for case in SPEEDS}
    rates: dict[str, float] = {}
    for case in _cases(options):
        if case.name in skipped:
            continue
        _say({"begin": case.name})
        run = _timed if case.name in speeds else _checked
        try:
            row = run(package, case, options, deadline, rates)
        except Exception as error:  # of any library: the row says which, and the check goes on
            row = {"ok": False, "note": f"{type(error).__name__}: {error}"}
        _say({"name": case.name, **row})
    return 0


def _say(row: Row) -> None:
    print(json.dumps(row), flush=True)


def _compiled(package: Any, case: Case, target: str) -> tuple[Any, Any]:
    specs = (package.spec(shape, dtype) for shape, dtype in case.specs)
    graph = package.trace(case.build(package), *specs)
    return graph, package.compile(graph, target=target)


def _checked(
    package: Any, case: Case, options: argparse.Namespace, deadline: float, rates: dict[str, float]
) -> Row:
    """Compare a case with the interpreter: from the host, and from arrays on the device."""
    graph, exe = _compiled(package, case, options.target)
    arrays = case.arrays()
    wanted = _listed(graph.interpret(*arrays, precision="high"))
    results = [_listed(exe.simulate(*arrays) if options.simulate else exe(*arrays))]
    if not options.simulate:
        from .gpu_array import on_device

        session = exe.on_gpu().session
        for _ in range(2):  # the second has other memory for its results, and the same graph
            there = [on_device(session, array) for array in arrays]
            results.append([np.asarray(one) for one in _listed(exe(*there))])
    worst = max(_error(one, wanted) for one in results)
    row: Row = {"ok": worst <= case.tolerance, "error": worst, "tolerance": case.tolerance}
    if any(_differ(one, results[0]) for one in results[1:]):
        row.update(ok=False, note="results differ between runs, or with where the arrays lie")
    return row


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple | list) else [results]


def _error(results: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest distance, by the largest magnitude; infinite where one is not finite."""
    worst = 0.0
    for result, expected in zip(results, wanted, strict=True):
        a, b = (np.asarray(one).astype(np.float64) for one in (result, expected))
        distance = float(np.max(np.abs(a - b), initial=0.0))
        worst = max(worst, distance / max(float(np.max(np.abs(b), initial=0.0)), 1e-30))
        if not np.isfinite(distance):
            return float("inf")
    return worst


def _differ(results: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two runs of a program gave other bits."""
    pairs = zip(results, others, strict=True)
    return any(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in pairs)


def _timed(
    package: Any, case: Case, options: argparse.Namespace, deadline: float, rates: dict[str, float]
) -> Row:
    """Time a case on the device, beside its rivals; one that would take too long is left out."""
    from .gpu_timing import time_plan

    left = deadline - time.monotonic()
    known = rates.get(case.rival)
    if known and 3 * case.work / known > left:
        text = f"left out: it would take about {3 * case.work / known:.0f} s of {left:.0f}"
        return {"ok": False, "late": True, "note": text}
    _, exe = _compiled(package, case, options.target)
    arrays = case.arrays()
    timing = time_plan(exe.on_gpu(), arrays, LIMIT, LIMIT)
    rates[case.rival] = case.work / timing.seconds
    scale = {"TFLOP/s": 1e12, "GB/s": 1e9}[case.unit]
    row: Row = {
        "ok": True,
        "seconds": timing.seconds,
        "noise": timing.noise,
        "samples": timing.samples,
        "rate": case.work / timing.seconds / scale,
        "unit": case.unit,
    }
    del exe  # and the memory that it has
    rivals: dict[str, Callable[..., float | None]] = {"torch": time_torch, "triton": time_triton}
    for name in installed():
        try:
            seconds = rivals[name](case, arrays, LIMIT)
        except Exception as error:
            row[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        if seconds is not None:
            row[name] = seconds
    return row


if __name__ == "__main__":
    try:
        status = main()
    except Error as error:
        sys.exit(f"device check: {error}")
    sys.exit(status)
