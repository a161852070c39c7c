"""Equations between terms, and what follows from them: congruence closure with a proof forest.

    closure = Closure(pool)            pool: f(a) is 2, f(b) is 3, over a, 0, and b, 1
    closure.enter(2, 3)
    closure.join(0, 1, reason=7)       equation 7 says a = b
    closure.same(2, 3)                 True: equal operands
    closure.reasons([(2, 3)])          {7}

Nieuwenhuis and Oliveras, "Proof-producing congruence closure" (2005).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

COMMUTATIVE = ("sum_of", "product_of", "contract")
Reason = int | tuple[tuple[int, int], ...]  # an equation, or equal operands


class Made(NamedTuple):
    """A node: an operation of `rules.Node`, what it has besides terms (axes, names, numbers), and
    the terms below it, by their numbers or by the names of their classes."""

    op: str
    data: tuple[str, ...]
    below: tuple[Any, ...]

    @staticmethod
    def of(op: str, values: Sequence[Any], sorts: Iterable[str] = ()) -> Made:
        """A node of arguments in their order, none of them terms unless their sorts say so.

        Numbers become texts, so that -0.0 is not 0.0.
        """
        data: list[str] = []
        below: list[Any] = []
        for value, sort in zip(values, sorts or [""] * len(values), strict=True):
            if sort in ("Node", "Vec"):
                below += value if sort == "Vec" else [value]
            else:
                data.append(value.hex() if isinstance(value, float) else str(value))
        return Made(op, tuple(data), tuple(below))

    def over(self, below: Iterable[Any]) -> Made:
        """The node with other terms below it; where they commute, in a fixed order."""
        return self._replace(below=tuple(sorted(below) if self.op in COMMUTATIVE else below))


class Pool:
    """Terms of nodes, each once and under a number; those below a term have smaller numbers."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.sizes: list[int] = []
        self._numbers: dict[Made, int] = {}

    def add(self, made: Made) -> int:
        """The number of a node over terms."""
        made = made.over(made.below)
        number = self._numbers.setdefault(made, len(self.made))
        if number == len(self.made):
            self.made.append(made)
            self.sizes.append(1 + sum(self.sizes[n] for n in made.below))
        return number

    def below(self, roots: Iterable[int]) -> list[int]:
        """These terms and all below them, in order."""
        seen: set[int] = set()
        todo = list(roots)
        while todo:
            n = todo.pop()
            if n not in seen:
                seen.add(n)
                todo += self.made[n].below
        return sorted(seen)


class Closure:
    """Which terms of a pool are equal, by equations and because their operands are equal."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.smallest: dict[int, int] = {}  # of each class, by its root
        self._parent: dict[int, int] = {}
        self._members: dict[int, list[int]] = {}
        self._users: dict[int, list[int]] = {}
        self._nodes: dict[Made, int] = {}  # nodes over roots
        self._edges: dict[int, tuple[int, Reason]] = {}  # the proof forest

    def root(self, n: int) -> int:
        """The term that stands for the class of a term that was entered."""
        while self._parent[n] != n:
            self._parent[n] = n = self._parent[self._parent[n]]
        return n

    def same(self, a: int, b: int) -> bool:
        """Whether two terms that were entered are equal."""
        return self.root(a) == self.root(b)

    def find(self, made: Made) -> int | None:
        """The class of a node over classes, if a term has this node."""
        n = self._nodes.get(self._over_roots(made))
        return None if n is None else self.root(n)

    def _over_roots(self, made: Made) -> Made:
        return made.over(map(self.root, made.below))

    def enter(self, *roots: int) -> None:
        """Take terms in, with all below them."""
        missing = [n for n in roots if n not in self._parent]
        for n in self.pool.below(missing) if missing else ():
            if n in self._parent:
                continue
            self._parent[n] = self.smallest[n] = n
            self._members[n], self._users[n] = [n], []
            made = self.pool.made[n]
            for c in set(map(self.root, made.below)):
                self._users[c].append(n)
            other = self._nodes.setdefault(self._over_roots(made), n)
            if other != n:
                self.join(n, other, self._operands(n, other))

    def _operands(self, a: int, b: int) -> tuple[tuple[int, int], ...]:
        """The pairs of equal operands of two nodes."""
        x, y = self.pool.made[a].below, self.pool.made[b].below
        straight = tuple(zip(x, y, strict=True))
        if all(self.same(*pair) for pair in straight):
            return straight
        return tuple(zip(x, y[::-1], strict=True))

    def join(self, a: int, b: int, reason: Reason) -> None:
        """Make two terms equal, and what follows from it."""
        todo = [(a, b, reason)]
        while todo:
            a, b, reason = todo.pop()
            old, new = self.root(a), self.root(b)
            if old == new:
                continue
            if len(self._members[old]) > len(self._members[new]):
                a, b, old, new = b, a, new, old
            self._link(a, b, reason)
            self._parent[old] = new
            self._members[new] += self._members.pop(old)
            both = self.smallest.pop(old), self.smallest[new]
            self.smallest[new] = min(both, key=lambda n: (self.pool.sizes[n], n))
            users = self._users.pop(old)
            self._users[new] += users
            for n in users:
                other = self._nodes.setdefault(self._over_roots(self.pool.made[n]), n)
                if not self.same(n, other):
                    todo.append((n, other, self._operands(n, other)))

    def _link(self, a: int, b: int, reason: Reason) -> None:
        """Turn the path from `a` up to its tree's root around, and hang it below `b`."""
        n, above, why = a, b, reason
        while True:
            old = self._edges.get(n)
            self._edges[n] = (above, why)
            if old is None:
                return
            above, n, why = n, old[0], old[1]

    def reasons(self, pairs: Iterable[tuple[int, int]]) -> set[int]:
        """The equations that the equality of these pairs was concluded from."""
        found: set[int] = set()
        seen: set[tuple[int, int]] = set()
        todo = list(pairs)
        while todo:
            pair = todo.pop()
            if pair in seen:
                continue
            seen.add(pair)
            for reason in self._path(*pair):
                if isinstance(reason, int):
                    found.add(reason)
                else:
                    todo += reason
        return found

    def _path(self, a: int, b: int) -> Iterator[Reason]:
        """The reasons between two terms of one tree."""
        above = set(self._up(a))
        meeting = next(n for n in self._up(b) if n in above)
        for start in (a, b):
            for n in self._up(start):
                if n == meeting:
                    break
                yield self._edges[n][1]

    def _up(self, n: int) -> Iterator[int]:
        yield n
        while n in self._edges:
            n = self._edges[n][0]
            yield n
