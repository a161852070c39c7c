"""`dodeca db`: what the tuning database knows, in words.

dodeca db show sentence_embedding     what a model runs with, how fast, and how sure that is
dodeca db list                        all models
dodeca db export FILE [--name NAME]   for another machine;  dodeca db import FILE
dodeca db bugs                        what the compiler did wrong;  dodeca db path
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from .dialect.errors import Error
from .runtime.database import Choice, Database, Part, apart
from .runtime.identity import compiler_version, device_in_words

if TYPE_CHECKING:
    from .runtime.database_export import Imported


def main(words: Sequence[str]) -> int:
    """Run `dodeca db` with these words; the exit status."""
    options = _parser().parse_args(words)
    with Database(strict=True) as database:
        if database.path is None:
            raise Error("nothing is kept, for DODECA_CACHE is off")
        print("\n".join(options.run(database, options)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dodeca db", description="The tuning database.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[..., Iterator[str]], name: str, what: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=what, description=what)
        made.set_defaults(run=run)
        return made

    model = "a model's name, a part of it, or the beginning of a graph's hash"
    show = command(_show, "show", "what a model runs with, how fast that is, and how sure")
    show.add_argument("model", metavar="MODEL", help=model)
    command(_list, "list", "all models that were tuned")
    command(_bugs, "bugs", "what the compiler did wrong during a search")
    export = command(_export, "export", "write a file for another machine")
    export.add_argument("file", metavar="FILE")
    export.add_argument("--name", metavar="MODEL", help=f"only this: {model}")
    take = command(_import, "import", "take in a file that was exported")
    take.add_argument("file", metavar="FILE")
    command(_path, "path", "where the database is")
    return parser


# --- show -----------------------------------------------------------------------------------------


def _show(database: Database, options: argparse.Namespace) -> Iterator[str]:
    found = database.choices(options.model)
    if not found:
        known = ", ".join(sorted({plain(choice.name) for choice in database.choices()}))
        raise Error(f"nothing is known of {options.model!r}; {known or 'nothing'} was tuned")
    compiler = compiler_version()

    def program(choice: Choice) -> tuple[str, ...]:
        key = choice.key
        return choice.name, key.graph, key.arguments, key.precision, key.target

    for number, (_, group) in enumerate(groupby(sorted(found, key=program), program)):
        choices = list(group)
        if number:
            yield ""
        yield heading(choices[0])
        here = [choice for choice in choices if not apart(choice.key, compiler)]
        for choice in here:
            yield from described(choice)
        if not here:
            yield "Nothing that was measured holds for this machine and this version of dodeca."
        elsewhere = [choice for choice in choices if choice not in here]
        if elsewhere:
            yield "Known besides, and not used here:"
        for choice in elsewhere:
            yield f"  {plain(apart(choice.key, compiler))}: {measured(choice)}"


def heading(choice: Choice) -> str:
    """Which program it is."""
    key = choice.key
    names = f"{plain(choice.name)}: {arguments_in_words(key.arguments)}"
    return f"{names}; {key.precision}, {key.target}; graph {key.graph[:12]}"


def described(choice: Choice) -> Iterator[str]:
    """What this machine runs with, in sentences and a line for each kernel."""
    yield f"On this machine ({plain(device_in_words(choice.key.device))}) {measured(choice)}."
    yield how_sure(choice)
    if choice.origin:
        yield f"It was not measured here but imported, from {plain(choice.origin)}."
    kernels = kernels_of(choice.kernels)
    if kernels:
        yield "Kernel by kernel:"
    parts = {part.kernel: part for part in choice.parts}
    width = max((len(kernel.name) for kernel in kernels), default=0)
    for kernel in kernels:
        yield f"  {kernel.name:{width}}  {kernel.in_words(parts.get(kernel.name))}"
        if kernel.schedule:
            yield f"  {'':{width}}  {plain(kernel.schedule)}"


def measured(choice: Choice) -> str:
    """The result of a search."""
    of = f"the best of {choice.candidates} candidates" if choice.candidates > 1 else "it"
    calls = f"the median of {_count(choice.samples, 'call')}, " if choice.samples else ""
    day = time.strftime("%d %B %Y", time.localtime(choice.created)).lstrip("0")
    searched = f", in a search of {choice.budget:.4g} s" if choice.budget else ""
    return f"{of} takes {spread(choice.seconds, choice.noise)} ({calls}measured on {day}{searched})"


def how_sure(choice: Choice) -> str:
    """Whether the best candidate's lead is more than the noise of both measurements."""
    if not choice.runner_up:
        return "No other program was compared with it."
    noise = choice.runner_up_noise or choice.noise  # they ran in turns, on the same machine
    gap = choice.runner_up - choice.seconds
    larger = gap > choice.noise * choice.seconds + noise * choice.runner_up
    second = f"The second best takes {spread(choice.runner_up, noise)}"
    if gap <= 0:
        return f"{second}, no more than the best: which is faster is not sure."
    if larger:
        return f"{second}: {duration(gap)} more, which is larger than the noise, so this is sure."
    return f"{second}: {duration(gap)} more, not larger than the noise, so this is not sure."


@dataclass(frozen=True)
class KernelText:
    """What the text of a module of kernels says of one."""

    name: str
    launches: int
    predicted: float  # seconds of a launch, by the cost model
    schedule: str

    def in_words(self, part: Part | None) -> str:
        """How long it takes, by a measurement if there is one."""
        words = []
        if part is not None:
            samples = f" of {_count(part.samples, 'sample')}" if part.samples else ""
            words += [f"{spread(part.seconds, part.noise)}{samples}"]
            words += [f"the best of {_count(part.candidates, 'schedule')}"]
        if self.predicted:
            words += [f"predicted {duration(self.predicted)}"]
        return ", ".join([*words, _count(self.launches, "launch")])


_CALL = re.compile(r"call @([\w.$-]+)\([^()]*\)(?: \{([^{}]*)\})?")
_PREDICTED = re.compile(r"dodeca\.predicted = ([\d.eE+-]+)")
_FUNCTION = re.compile(
    r"func\.func private @([\w.$-]+)\(.*?dodeca\.schedule = \{(.*)\}\} \{$", re.M
)


def kernels_of(text: str) -> list[KernelText]:
    """The kernels of a module in the order of their calls. It is read without MLIR, which takes
    longer to load than this command takes; what does not look like a kernel is left out."""
    schedules = {name: words.replace(" : i64", "") for name, words in _FUNCTION.findall(text)}
    calls: dict[str, list[float]] = {}
    for name, attributes in _CALL.findall(text):
        found = _PREDICTED.search(attributes)
        calls.setdefault(name, []).append(_number(found[1]) if found else 0.0)
    return [KernelText(k, len(v), v[0], schedules.get(k, "")) for k, v in calls.items()]


# --- the other commands ---------------------------------------------------------------------------


def _list(database: Database, _: argparse.Namespace) -> Iterator[str]:
    choices, compiler = database.choices(), compiler_version()
    width = max((len(plain(choice.name)) for choice in choices), default=0)
    for choice in choices:
        key, day = choice.key, time.strftime("%Y-%m-%d", time.localtime(choice.created))
        where = plain(apart(key, compiler)) or device_in_words(key.device)
        name, taken = f"{plain(choice.name):{width}}", f"{duration(choice.seconds):>8}"
        yield f"{name}  {key.graph[:12]}  {taken}  {day}  {key.precision}, {key.target}; {where}"
    if not choices:
        yield "Nothing was tuned yet."


def _bugs(database: Database, _: argparse.Namespace) -> Iterator[str]:
    found = database.bugs()
    for bug in found:
        day = time.strftime("%Y-%m-%d", time.localtime(bug.created))
        message = plain(bug.message.partition("\n")[0]) or "no message"
        yield f"{day}  {bug.status} ({bug.key.target}, {bug.key.precision}): {message}"
        yield f"    repeat with: dodeca check {plain(bug.reproducer)}"
    if not found:
        yield "No search has met a bug of the compiler."


def _export(database: Database, options: argparse.Namespace) -> Iterator[str]:
    database.export(options.file, options.name)
    yield f"{options.file} is written; `dodeca db import` on another machine takes it."


def _import(database: Database, options: argparse.Namespace) -> Iterator[str]:
    yield from imported(database.import_(options.file))


def imported(summary: Imported) -> Iterator[str]:
    """What became of a file's contents."""

    def counted(choices: int, trials: int) -> str:
        return f"{_count(choices, 'model')} and {_count(trials, 'trial')}"

    yield f"Taken for this machine: {counted(summary.choices, summary.trials)}."
    if summary.older:
        yield f"Left, for what is here is as new: {_count(summary.older, 'model')}."
    for why, choices, trials in summary.apart:
        yield f"Kept and not used here: {counted(choices, trials)} of {plain(why)}."


def _path(database: Database, _: argparse.Namespace) -> Iterator[str]:
    yield str(database.path)


# --- words ----------------------------------------------------------------------------------------

_ARGUMENT = re.compile(r"%\w+: tensor<((?:[\d?]+x)*)(\w+)>(?: \{((?:[^{}\"]|\"[^\"]*\")*)\})?")


_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def arguments_in_words(text: str) -> str:
    """The arguments of a key, weights left out: `x f32[32x64]` for MLIR, else as they are."""
    found = []
    for sizes, dtype, attributes in _ARGUMENT.findall(text):
        if "dodeca.weight" not in attributes:
            name = re.search(r'dodeca\.name = "([^"]*)"', attributes)
            found.append(f"{name[1] + ' ' if name else ''}{dtype}[{sizes.rstrip('x')}]")
    words = plain(", ".join(found) or text)
    return words if len(words) <= 200 else f"{words[:197]}..."


def duration(seconds: float) -> str:
    """A time in a unit that suits it, with three digits."""
    unit, size = next((u for u in _UNITS if seconds >= u[1]), _UNITS[-1])
    number = seconds / size
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"


def spread(seconds: float, noise: float) -> str:
    """A time and its noise."""
    return f"{duration(seconds)} ± {100 * noise:.2g} %"


def plain(text: str) -> str:
    """The text without what would steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _count(number: int, what: str) -> str:
    plural = what + ("es" if what.endswith("ch") else "s")
    return f"{number} {what if number == 1 else plural}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
