"""A process in which candidates are compiled and run, so that what they break is theirs.

    worker = Worker(Tools(build, cases), Limits(run_seconds=5))
    (answer,) = carry_out([Request("build", (candidate,), seconds=60)], [worker])
    answer.status, answer.value            # "ok", Kernel(...)
    worker.kill()

The parent and the process send each other pickles over a pair of sockets, each after its length.
The process says that it has started a request, and then answers it; when it dies or takes too long
in between, the answer is "crashed" or "hung", and the next request gets a new process. A process
stays warm until it is killed, and ends with its parent.
"""

from __future__ import annotations

import fcntl
import math
import os
import pickle
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BufferedRWPair
from multiprocessing.connection import wait
from typing import Any

from ..dialect.errors import Error
from .checking import Case, Judge, TooSlow
from .program import Kernel, Program
from .timing import (
    UNSURE,
    KernelTimer,
    Timing,
    TimingBuffers,
    alternate,
    time_kernel,
    time_programs,
)
from .trial import Built, Candidate, Task, Trial

START_SECONDS = 120.0  # for a process to be ready: it imports the compiler
TRIES = 3  # of a request whose process ended before it was begun
LONGEST_MESSAGE = 2_000  # characters of an error
KEPT = 512 << 20  # bytes of references, inputs and outputs of tasks that stay open
_LENGTH = struct.Struct("<Q")
_READY, _STARTED = "ready", "started"
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # numpy's, of the reference


@dataclass(frozen=True)
class Tools:
    """What a worker needs of the compiler: functions of a module, which are sent by name."""

    build: Callable[[Candidate], Kernel]
    cases: Callable[[Task], Sequence[Case]]

    def __post_init__(self) -> None:
        for function in (self.build, self.cases):
            name = f"{function.__module__}.{function.__qualname__}"
            if function.__module__ == "__main__" or "<" in name:
                raise Error(f"a worker's tools are functions of a module, not {name}")


@dataclass(frozen=True)
class Limits:
    """What a candidate may use. A process that needs more memory than that gets none."""

    build_seconds: float = 60.0
    run_seconds: float = 20.0  # to be checked in all cases; timing comes on top
    memory_bytes: int = 8 << 30


@dataclass(frozen=True)
class Request:
    """A method of `Examiner`, its arguments, and the seconds that it may take."""

    method: str
    arguments: tuple[Any, ...]
    seconds: float


@dataclass(frozen=True)
class Answer:
    """What came of a request: "ok" and its value; or "failed", "crashed", "hung" and a message.

    "lost": its process ended before the request was begun.
    """

    status: str
    value: Any = None
    message: str = ""
    damaged: bool = False  # whether the memory of the process may be


# --- what is done in the process ----------------------------------------------------------------


class Examiner:
    """Compiles candidates, and measures those of tasks that are open.

    `damaged`: a kernel wrote where it may not, so that nothing in this process can be trusted.
    """

    def __init__(self, tools: Tools):
        self.tools = tools
        self.damaged = False
        self._judges: dict[str, Judge] = {}  # of tasks by key, the last one used last
        self._buffers: dict[str, TimingBuffers] = {}  # of the last task

    def build(self, candidate: Candidate) -> Kernel:
        """Compile a candidate."""
        kernel = self.tools.build(candidate)
        if not isinstance(kernel, Kernel):
            raise Error(f"the build function gave a {type(kernel).__name__}, not a Kernel")
        return kernel

    def open(self, task: Task) -> bool:
        """Make the reference of a task, if it is not there; whether it has an anchor.

        Those that were open longest ago are closed where they take too much memory.
        """
        judge = self._judges.pop(task.key, None)
        if judge is None:
            judge = Judge(self.tools.cases(task), task.threads)
        while sum(one.bytes for one in (judge, *self._judges.values())) > KEPT and self._judges:
            del self._judges[next(iter(self._judges))]
        self._judges[task.key] = judge
        return judge.anchored

    def take_anchor(self, task: Task, kernel: Kernel) -> str:
        """Compare candidates of a task that is open with this kernel too; or why not."""
        return self._judges[task.key].take_anchor(kernel)

    def measure(self, built: Built, seconds: float, limit: float) -> Trial:
        """Check a candidate of the task that is open, and time it.

        One that takes longer than `limit` seconds may be checked in one case only.
        """
        try:
            wrong, kernel = self._verdict(built, limit)
        except TooSlow as slow:
            timing = Timing(slow.seconds, UNSURE, 1)
            return replace(_trial(built.candidate, timing), message="checked in one case only")
        if wrong is not None:
            return wrong
        buffers = self._timing_buffers(built, kernel)
        timing = time_kernel(kernel, built.candidate.task, seconds, limit, buffers)
        return _trial(built.candidate, timing)

    def compare(self, built: Sequence[Built], seconds: float) -> list[Trial]:
        """Check candidates of the task that is open, and time them in turns."""
        trials: list[Trial | None] = []
        timers = []
        for one in built:
            wrong, kernel = self._verdict(one)
            trials.append(wrong)
            if wrong is None:
                buffers = self._timing_buffers(one, kernel)
                timers.append(KernelTimer(kernel, buffers, one.candidate.task.threads))
        timings = iter(alternate([t.sample for t in timers], seconds, until_sure=True))
        return [
            trial or _trial(one.candidate, next(timings))
            for trial, one in zip(trials, built, strict=True)
        ]

    def compare_programs(
        self, programs: Sequence[Program], seconds: float, threads: int | None
    ) -> list[Timing]:
        """Time whole programs in turns."""
        return time_programs(programs, seconds, threads)

    def _verdict(self, built: Built, limit: float = math.inf) -> tuple[Trial | None, Kernel]:
        """A trial if the kernel is wrong, and the kernel."""
        assert built.kernel is not None
        judge = self._judges[built.candidate.task.key]
        said = judge.verdict(built.kernel, limit)
        self.damaged |= judge.damaged
        return (Trial(built.candidate, "wrong", message=said) if said else None), built.kernel

    def _timing_buffers(self, built: Built, kernel: Kernel) -> TimingBuffers:
        """Those of the candidate's task."""
        task = built.candidate.task
        if task.key not in self._buffers:
            self._buffers.clear()  # they are large: first they go
            self._buffers[task.key] = TimingBuffers(kernel, task)
        return self._buffers[task.key]


def _trial(candidate: Candidate, timing: Timing) -> Trial:
    return Trial(candidate, "ok", timing.seconds, timing.noise, timing.samples)


def perform(examiner: Examiner, request: Request) -> Answer:
    """Carry out a request in this process."""
    try:
        value = getattr(examiner, request.method)(*request.arguments)
        return Answer("ok", value, damaged=examiner.damaged)
    except Exception as error:
        return Answer("failed", message=in_words(error))


def in_words(error: Exception) -> str:
    """An error of ours as it is; of any other, what it is too."""
    text = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    return text[:LONGEST_MESSAGE]


def serve(descriptor: int) -> None:
    """The process: answer requests from a socket until it is closed."""
    _end_with_parent()
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        memory, pickled = _receive(stream)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        try:
            examiner = Examiner(pickle.loads(pickled))
        except Exception as error:
            _send(stream, Answer("failed", message=in_words(error)))
            return
        _send(stream, _READY)
        while (request := _receive(stream)) is not None:
            _send(stream, _STARTED)
            answer = perform(examiner, request)
            try:
                _send(stream, answer)
            except (pickle.PicklingError, TypeError, AttributeError, MemoryError) as error:
                _send(stream, Answer("failed", message=in_words(error)))


def _end_with_parent() -> None:
    """End when the parent does, whatever this process does at that time.

    Standard input is a pipe that the parent never writes to. When it is closed the kernel sends
    SIGIO, which ends a process. (PR_SET_PDEATHSIG would end it with the *thread* that began it.)
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGIO])
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | fcntl.FASYNC)
    if select.select([0], [], [], 0)[0]:
        sys.exit()  # it was closed before


def _send(stream: BufferedRWPair, message: Any) -> None:
    stream.write(_framed(message))
    stream.flush()


def _framed(message: Any) -> bytes:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def _receive(stream: BufferedRWPair) -> Any:
    """The next message; None at the end."""
    head = stream.read(_LENGTH.size)
    return pickle.loads(stream.read(*_LENGTH.unpack(head))) if head else None


# --- the parent's side --------------------------------------------------------------------------


class Worker:
    """A process, begun when it is needed, and begun anew after it has ended."""

    def __init__(self, tools: Tools, limits: Limits):
        self._hello = limits.memory_bytes, pickle.dumps(tools)
        self.generation = 0  # how many processes there have been
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()
        self._ended = False
        self._ready = self._started = False
        self._limit = 0.0
        self.deadline = math.inf

    def spawn(self) -> None:
        """Begin a process, if there is none. It is not ready yet."""
        if self._process is not None:
            self._read()
            if not self._ended:
                return
            self.kill()
        self.generation += 1
        self._log = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115 (closed in kill)
        self._socket, theirs = socket.socketpair()
        # the process finds what we find; numpy's threads would run beside those of the kernels
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        environment = {**os.environ, "PYTHONPATH": path, **dict.fromkeys(_POOLS, "1")}
        code = f"from {__name__} import serve; serve({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a terminal's interrupt is for the parent
            )
        self._received, self._ended, self._ready = bytearray(), False, False
        self._write(self._hello)

    def send(self, request: Request) -> None:
        """Send a request, to a new process if there is none."""
        self.spawn()
        self._wait_until_ready()
        self._log.truncate(0)
        self._started, self._limit = False, request.seconds
        self.deadline = time.monotonic() + START_SECONDS
        self._write(request)

    def receive(self) -> Answer | None:
        """The answer to the last request, if it is there, or if there will be none."""
        self._read()
        message = self._message()
        if message == _STARTED:
            self._started = True
            self.deadline = time.monotonic() + self._limit
            message = self._message()
        if isinstance(message, Answer):
            if message.damaged:
                self.kill()
            return message
        if self._ended:
            said = self.kill()
            return Answer("crashed" if self._started else "lost", message=said)
        if time.monotonic() > self.deadline:
            self.kill()
            return Answer("hung", message=f"did not end within {self._limit:g} s")
        return None

    def kill(self) -> str:
        """End the process, if there is one; how it had ended before, in words."""
        process, self._process = self._process, None
        if process is None:
            return ""
        # Until we have waited for it, its number is its own; its children are in its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        code = process.wait()
        self._socket.close()
        with self._log:
            size = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, size - 1_000))
            lines = self._log.read().decode(errors="replace").split("\n")
        last = "; ".join(line.strip() for line in lines if line.strip())[-500:]
        how = f"exit status {code}"
        if code < 0:
            how = f"{signal.Signals(-code).name} ({signal.strsignal(-code)})"
        return f"the process ended with {how}" + (f": {last}" if last else "")

    @property
    def descriptor(self) -> int:
        """What to wait on for an answer."""
        return self._socket.fileno()

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._ready:
            message = self._message()
            if message == _READY:
                self._ready = True
            elif isinstance(message, Answer):
                self.kill()
                raise Error(f"a worker cannot use the tools it was given: {message.message}")
            elif self._ended or time.monotonic() > end:
                said = self.kill()
                raise Error(f"a worker did not start: {said}")
            else:
                wait([self.descriptor], timeout=1)
                self._read()

    def _write(self, message: Any) -> None:
        self._socket.settimeout(START_SECONDS)
        with suppress(OSError):  # it has ended: whoever reads will see
            self._socket.sendall(_framed(message))
        self._socket.settimeout(0)  # reading does not wait

    def _read(self) -> None:
        """Take what has come, without waiting."""
        while not self._ended:
            try:
                data = self._socket.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._received += data
            self._ended = not data

    def _message(self) -> Any:
        """The next whole message of what has come; None if there is none."""
        head = _LENGTH.size
        if len(self._received) < head:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if len(self._received) < head + length:
            return None
        data = bytes(self._received[head : head + length])
        del self._received[: head + length]
        try:
            return pickle.loads(data)
        except Exception:
            self._ended = True  # its memory is damaged
            return None


def carry_out(
    requests: Sequence[Request], workers: Sequence[Worker], tries: int = TRIES
) -> list[Answer]:
    """The answers to requests, in order; each worker has one at a time."""
    answers: list[Answer | None] = [None] * len(requests)
    waiting, busy, lost = deque(range(len(requests))), dict[Worker, int](), Counter[int]()
    try:
        for worker in workers[: len(requests)]:
            worker.spawn()  # all at once, for that takes a while
        while waiting or busy:
            for worker in workers:
                if waiting and worker not in busy:
                    busy[worker] = waiting.popleft()
                    worker.send(requests[busy[worker]])
            soonest = min(worker.deadline for worker in busy)
            wait([w.descriptor for w in busy], max(0.0, soonest - time.monotonic()))
            for worker, number in list(busy.items()):
                answer = worker.receive()
                if answer is None:
                    continue
                del busy[worker]
                lost[number] += answer.status == "lost"
                if answer.status == "lost" and lost[number] < tries:
                    waiting.appendleft(number)
                else:
                    answers[number] = answer
    except BaseException:  # an interrupt, too: answers that come later are nobody's
        for worker in busy:
            worker.kill()
        raise
    return [answer for answer in answers if answer is not None]
