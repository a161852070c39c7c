"""The bar that a search shows: the best time so far, candidates a second, time left."""

from __future__ import annotations

import time

from tqdm import tqdm

from .compile import Search
from .runtime.tuner import Tuner


class Progress:
    """A bar on the standard error, where that is a terminal or `search.progress` asks for it."""

    def __init__(self, search: Search, started: float):
        self._by_time = search.seconds is not None
        total = search.seconds if self._by_time else search.candidates
        hidden = None if search.progress is None else not search.progress
        self._started = started
        bar = (
            "{desc} {bar} {elapsed}<{remaining}{postfix}" if total else "{desc} {elapsed}{postfix}"
        )
        self._bar = tqdm(total=total, desc="search", bar_format=bar, disable=hidden, leave=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def show(self, tuner: Tuner) -> None:
        """Move the bar to where the search is."""
        elapsed = time.monotonic() - self._started
        done = elapsed if self._by_time else tuner.tried
        total = self._bar.total
        self._bar.n = min(done, total) if total else done
        rate = tuner.tried / max(elapsed, 1e-9)
        self._bar.set_postfix_str(  # and draws the bar
            f"best {tuner.seconds * 1e3:.3g} ms, {tuner.tried} candidates, {rate:.1f}/s"
        )
