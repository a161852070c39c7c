"""What the tuning database costs: a file of many trials is made, written to and asked.

    python bench/database.py                     a million trials, as a table
    python bench/database.py --records 20000     fewer
    python bench/database.py --write             into docs/tuning.md

The file is new, in a temporary folder, and removed at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dodeca.runtime.database import Choice, Database, Key
from dodeca.runtime.identity import device_in_words, identity
from page import markdown, with_section

Times = tuple[float, float]  # seconds by the clock, and of this process's processor time
PAGE = Path(__file__).resolve().parents[1] / "docs" / "tuning.md"
PER_KEY = 100  # trials of a kernel
BATCH = 8  # trials that a search writes at once
LOOKUPS = 2000
WRITES = 500
PROCESSES = 9
# A process that is to find out what a graph runs with; what any other part needs is loaded before.
PROCESS = """
import dodeca.runtime.cache_folder, dodeca.runtime.program, json, sys, time
now = lambda: (time.perf_counter(), time.process_time())
start = now()
from dodeca.runtime.database import Database, Key
loaded = now()
with Database(sys.argv[1], strict=True) as database:
    assert database.choice(Key(*json.loads(sys.argv[2]))) is not None
    done = now()
print(json.dumps([[b - a for a, b in zip(*pair)] for pair in ((start, loaded), (loaded, done))]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true", help="into docs/tuning.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder) / "tuning.sqlite", options.records)
    day, device = time.strftime("%d %B %Y"), device_in_words(identity("cpu", 2))
    where = f"Measured on {day.lstrip('0')}: {device}; Python {platform.python_version()}, "
    text = f"{where}SQLite {sqlite3.sqlite_version}.\n\n{markdown(rows)}"
    print(text)
    if options.write:
        PAGE.write_text(with_section(PAGE.read_text(), "database", text))


def measure(path: Path, records: int) -> list[list[str]]:
    """The table's rows, of a file with so many trials."""
    device = identity("cpu", threads=2)
    keys = [
        Key(f"{n:064x}", "f32[128x384], f32[384x1536]", "fast", "cpu", device, "0.1.0+0123456789ab")
        for n in range(math.ceil(records / PER_KEY))
    ]
    rng = random.Random(0)
    with Database(path, strict=True) as database:
        start = now()
        for n, key in enumerate(keys):
            database.add_trials(
                key, [trial(rng) for _ in range(min(PER_KEY, records - n * PER_KEY))]
            )
        filled = since(start)
        database.choose(Choice(keys[0], "a model", "x" * 300_000, 0.02, 0.01, 0.021, 200, 60.0))
        asked = [rng.choice(keys) for _ in range(LOOKUPS)]
        best = [seconds(database.best, key) for key in asked]
        choice = [seconds(database.choice, keys[0]) for _ in range(LOOKUPS // 10)]
        all_of = [seconds(database.trials, key) for key in asked[::10]]
        batches = [[trial(rng) for _ in range(BATCH)] for _ in range(WRITES)]
        wrote = [seconds(database.add_trials, rng.choice(keys), batch) for batch in batches]
    bytes_ = path.stat().st_size
    loaded, found = zip(*(process(path, keys[0]) for _ in range(PROCESSES)), strict=True)
    return [
        ["", "median", "99th percentile", "cpu: median", "99th percentile"],
        [f"`best` of a kernel, of {records:,} trials", *in_words(best)],
        [f"all {PER_KEY} trials of a kernel", *in_words(all_of)],
        ["`choice` of a graph, 300 kB of kernels", *in_words(choice)],
        ["`choice` in a new process: opening the file, looking up", *in_words(found)],
        ["... and before that loading the module, with SQLite", *in_words(loaded)],
        [f"`add_trials` of {BATCH}", *in_words(wrote)],
        [f"trials written in a second, {PER_KEY} at once", *rate(records, *filled)],
        [
            f"trials written in a second, {BATCH} at once",
            *rate(BATCH * WRITES, *map(sum, zip(*wrote, strict=True))),
        ],
        ["bytes of the file for a trial", f"{bytes_ / records:.0f}", "", "", ""],
    ]


def trial(rng: random.Random) -> tuple[str, str, float, float, int, float]:
    """A trial as a search writes it."""
    tiles = {f"d{n}": rng.randrange(1, 257) for n in range(3)}
    blocks = {f"d{n}": rng.randrange(1, 257) for n in range(3)}
    schedule = {
        **{"vector": "d1", "tiles": tiles, "blocks": blocks, "order": ["r0", "d0", "d1"]},
        **{"lanes": 8, "reassociate": True, "fold": 0, "serial": rng.randrange(1 << 30)},
    }
    text = json.dumps(schedule, sort_keys=True, separators=(",", ":"))
    taken = rng.lognormvariate(-9, 1)
    return text, "ok", taken, 0.02, rng.randrange(5, 40), taken * rng.uniform(0.5, 2)


def now() -> Times:
    """The clock, and this process's processor time, which a busy machine lengthens less."""
    return time.perf_counter(), time.process_time()


def since(start: Times) -> Times:
    """The seconds from `start` until now, by both."""
    return time.perf_counter() - start[0], time.process_time() - start[1]


def seconds(call: Callable[..., object], *arguments: object) -> Times:
    """How long a call takes."""
    start = now()
    call(*arguments)
    return since(start)


def process(path: Path, key: Key) -> tuple[Times, Times]:
    """What a new process takes to load the module, and to look a choice up."""
    words = json.dumps(list(vars(key).values()))
    command = [sys.executable, "-c", PROCESS, str(path), words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def in_words(times: Sequence[Times]) -> list[str]:
    """Median and 99th percentile, by the clock and by processor time."""
    cells = []
    for column in zip(*times, strict=True):
        ordered = sorted(column)
        late = ordered[math.ceil(0.99 * len(ordered)) - 1]
        cells += [f"{1e3 * t:.3f} ms" for t in (statistics.median(ordered), late)]
    return cells


def rate(count: int, clock: float, cpu: float) -> list[str]:
    """So many in a second."""
    return [f"{count / clock:,.0f}", "", f"{count / cpu:,.0f}", ""]


if __name__ == "__main__":
    main()
