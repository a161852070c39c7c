"""What dodeca is to reach: a limit on its time by that of the best peer, for some of the cases.

>>> goal_of("matmul_512x512x512").verdict({"dodeca": 2.1, "numpy": 2.0, "torch": 2.2})
'nearly'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """dodeca's time by the best peer's is at most `most`, below it if `strict`.

    `of` are the peers that count; () are all. Where a goal allows a case to be a little over it,
    `limit` says how much.
    """

    most: float
    of: tuple[str, ...] = ()
    strict: bool = False
    limit: float | None = None

    def __str__(self) -> str:
        text = f"{'<' if self.strict else '≤'} {self.most:.2f}"
        return f"{text} of {' and '.join(self.of)}" if self.of else text

    def ratio(self, seconds: Mapping[str, float]) -> float | None:
        """The ratio that counts, from the peers' times; None where there are none to compare."""
        others = [t for name, t in seconds.items() if name != "dodeca" and self.counts(name)]
        return seconds["dodeca"] / min(others) if "dodeca" in seconds and others else None

    def counts(self, peer: str) -> bool:
        """Whether the goal is about this peer."""
        return not self.of or peer in self.of

    def verdict(self, seconds: Mapping[str, float]) -> str:
        """`met`, `nearly` (within the limit) or `missed`; nothing without a ratio."""
        ratio = self.ratio(seconds)
        if ratio is None:
            return ""
        if ratio < self.most or (ratio == self.most and not self.strict):
            return "met"
        return "nearly" if self.limit is not None and ratio <= self.limit else "missed"


MATMUL = Goal(1.0, limit=1 / 0.95)
ATTENTION = Goal(0.95)
SENTENCES = Goal(1.0, strict=True)
GOALS = {
    "matmul_256x256x256": MATMUL,
    "matmul_512x512x512": MATMUL,
    "matmul_1024x1024x1024": MATMUL,
    "matmul_2048x2048x2048": MATMUL,
    "linear_1x768x3072": Goal(1 / 1.2, of=("numpy", "onnxruntime")),
    "mlp_128x384x1536": Goal(0.95),
    "attention_12x512x64": ATTENTION,
    "attention_12x2048x64": ATTENTION,
    "softmax_4096x1024": Goal(1.0),
    "layernorm_4096x768": Goal(0.9),
    "gelu_4194304": Goal(1.0),
    "minilm_1x128": SENTENCES,
    "minilm_8x128": SENTENCES,
    "efficientnet_1x224x224": Goal(1.1),
}


def goal_of(case: str) -> Goal | None:
    """The goal of a case, if it has one."""
    return GOALS.get(case)
