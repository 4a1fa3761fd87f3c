"""Where a request spends its time: in the batching engine, or asleep for a fixed latency.

The pure engine gets its clock and its thread here. A handler thread submits a `Ticket` and blocks on the ticket's own
gate until its work is done, so that finishing 64 requests in one step wakes exactly those 64 threads.

Invariants: a ticket's gate is opened once, by whoever takes it out of the work (the engine's step, an abort, the end);
the engine thread sleeps until the next step ends, and without a limit while there is nothing to do.
"""

from __future__ import annotations

import threading
import time
from typing import Optional, Protocol

from saturate.simulate.engine import Engine, Job
from saturate.simulate.metrics import Gauges


class Ticket(Job):
    """A request at work. `aborted` is set before its gate opens when it will get no answer."""

    __slots__ = ("aborted", "gate")

    def __init__(self, prompt: int, output: int) -> None:
        super().__init__(prompt, output)
        self.aborted = False
        self.gate = threading.Lock()  # a bare lock, held until the work is done: the cheapest event there is
        self.gate.acquire()


class Work(Protocol):
    """What serves tickets."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Abort every ticket, and every later one at once; end the thread."""

    def submit(self, ticket: Ticket, cap: Optional[int]) -> bool:
        """Take a ticket in, unless `cap` or more are in already (False)."""

    def wait(self, ticket: Ticket, timeout: Optional[float] = None) -> bool:
        """Block until the ticket is done or aborted; False when `timeout` seconds passed first.

        Work that has neither a queue nor progress to look at may ignore the timeout.
        """

    def abort(self, ticket: Ticket) -> None:
        """Take the ticket out, if it is still in, and wake its thread."""

    def abort_all(self) -> None: ...

    def waiting(self, ticket: Ticket) -> bool:
        """Whether the ticket is still queued."""

    def made(self, ticket: Ticket) -> int:
        """Tokens made for the ticket so far."""

    def gauges(self) -> Gauges: ...

    def set_slowdown(self, factor: float) -> None:
        """Make all work take `factor` times as long, from the next step (or request) on."""


class EngineWork:
    """The continuous-batching engine on the real clock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wake = threading.Condition(threading.Lock())  # also guards the engine
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="simulate-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._abort_all()
            self._wake.notify()
        self._thread.join()

    def submit(self, ticket: Ticket, cap: Optional[int]) -> bool:
        with self._wake:
            engine = self._engine
            if cap is not None and engine.load >= cap:
                return False
            if self._stopping:
                ticket.aborted = True
                ticket.gate.release()
                return True
            idle = engine.step_ends is None
            engine.offer(ticket, time.monotonic())
            if idle:
                self._wake.notify()
        return True

    def wait(self, ticket: Ticket, timeout: Optional[float] = None) -> bool:
        return ticket.gate.acquire(timeout=-1 if timeout is None else timeout)

    def abort(self, ticket: Ticket) -> None:
        with self._wake:
            if self._engine.cancel(ticket):
                ticket.aborted = True
                ticket.gate.release()

    def abort_all(self) -> None:
        with self._wake:
            self._abort_all()

    def _abort_all(self) -> None:
        for job in [*self._engine.queue, *self._engine.running]:
            self._engine.cancel(job)
            if isinstance(job, Ticket):
                job.aborted = True
                job.gate.release()

    def waiting(self, ticket: Ticket) -> bool:
        with self._wake:
            return ticket in self._engine.queue

    def made(self, ticket: Ticket) -> int:
        with self._wake:
            return self._engine.made(ticket)

    def gauges(self) -> Gauges:
        with self._wake:
            engine = self._engine
            return Gauges(
                waiting=len(engine.queue),
                running=len(engine.running),
                kv=min(1.0, engine.kv / engine.kv_tokens) if engine.kv_tokens else 0.0,
                preemptions=engine.preemptions,
                prompt_tokens=engine.prompt_tokens,
                generated_tokens=engine.generated_tokens,
                max_running=engine.max_running,
            )

    def set_slowdown(self, factor: float) -> None:
        with self._wake:
            self._engine.slowdown = factor

    def _run(self) -> None:
        engine = self._engine
        with self._wake:
            while not self._stopping:
                for job in engine.advance(time.monotonic()):
                    if isinstance(job, Ticket):
                        job.gate.release()
                ends = engine.step_ends
                # The deadline is absolute: a late wake-up shortens the next sleep and costs the model nothing.
                self._wake.wait(None if ends is None else max(0.0, ends - time.monotonic()))


class DelayWork:
    """A fixed latency for every request, any number at a time. With 0 a request is answered at once."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._slowdown = 1.0
        self._lock = threading.Lock()
        self._inside: dict[Ticket, None] = {}
        self._stopping = False
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._max_running = 0

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self._stopping = True
        self.abort_all()

    def submit(self, ticket: Ticket, cap: Optional[int]) -> bool:
        with self._lock:
            if cap is not None and len(self._inside) >= cap:
                return False
            self._inside[ticket] = None
            self._max_running = max(self._max_running, len(self._inside))
        if self._stopping:
            self.abort(ticket)
        return True

    def wait(self, ticket: Ticket, timeout: Optional[float] = None) -> bool:
        latency = self._latency_s * self._slowdown
        if latency > 0:
            ticket.gate.acquire(timeout=latency)
        with self._lock:
            if ticket in self._inside:
                del self._inside[ticket]
                self._prompt_tokens += ticket.prompt
                self._generated_tokens += ticket.output
        return True

    def abort(self, ticket: Ticket) -> None:
        with self._lock:
            if ticket in self._inside:
                del self._inside[ticket]
                ticket.aborted = True
                ticket.gate.release()

    def abort_all(self) -> None:
        with self._lock:
            inside = list(self._inside)
        for ticket in inside:
            self.abort(ticket)

    def waiting(self, ticket: Ticket) -> bool:
        return False

    def made(self, ticket: Ticket) -> int:
        return 0

    def gauges(self) -> Gauges:
        with self._lock:
            return Gauges(
                running=len(self._inside),
                prompt_tokens=self._prompt_tokens,
                generated_tokens=self._generated_tokens,
                max_running=self._max_running,
            )

    def set_slowdown(self, factor: float) -> None:
        self._slowdown = factor
