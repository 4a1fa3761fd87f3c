"""A continuous-batching engine as arithmetic: what runs in which step, and when a step ends.

Pure: no thread, no clock, no socket. Time comes in as an argument (seconds, any origin), so a test runs an hour of it
in a moment. The model:

* Requests wait in one FIFO queue; at most `max_num_seqs` run.
* A step gives every running request one token and takes
  ``(step_s + per_seq_s * running) * slowdown + prefill_s * (prompt tokens admitted in this step)`` seconds.
* A running request holds KV for its prompt and for every token it has made. A request is admitted while its prompt
  fits. When the tokens made overflow `kv_tokens`, the youngest running request is preempted: it goes back to the head
  of the queue and starts over. The last one running is never preempted, so the engine always makes progress.

Invariant: steps follow one another without a gap while there is work, each beginning at the exact end of the one
before. Whoever calls `advance` late gets all the steps that are due: throughput follows the model, not the caller.
"""

from __future__ import annotations

from collections import deque
from typing import Optional


class Job:
    """One request in the engine. `prompt` and `output` are token counts."""

    __slots__ = ("arrived", "joined", "output", "prompt")

    def __init__(self, prompt: int, output: int) -> None:
        self.prompt = prompt
        self.output = max(1, output)
        self.arrived = 0.0
        self.joined = -1  # the step count when it began to run; -1 while it does not run


class Engine:
    """Offer jobs, advance time, get the finished ones.

    `step_ends` is when `advance` has something to do next; None when the engine is idle.
    `slowdown` may be changed at any time and holds from the next step on.
    """

    def __init__(
        self,
        max_num_seqs: int = 64,
        step_s: float = 0.010,
        per_seq_s: float = 0.0001,
        prefill_s: float = 0.0,
        kv_tokens: Optional[int] = None,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.step_s = step_s
        self.per_seq_s = per_seq_s
        self.prefill_s = prefill_s
        self.kv_tokens = kv_tokens
        self.slowdown = 1.0
        self.queue: deque[Job] = deque()
        self.running: dict[Job, None] = {}  # in the order they joined, so the youngest is last
        self.step_ends: Optional[float] = None
        self.steps = 0
        self.kv = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.max_running = 0
        self._due: dict[int, list[Job]] = {}  # step count -> jobs that finish with that step, if still running

    @property
    def load(self) -> int:
        """Requests in the house: waiting and running."""
        return len(self.queue) + len(self.running)

    def offer(self, job: Job, now: float) -> None:
        """Queue a job. It can join the first step that begins at `now` or later."""
        job.arrived = now
        self.queue.append(job)
        if self.step_ends is None:
            self._begin(now)

    def cancel(self, job: Job) -> bool:
        """Take a job out, wherever it is. False if it is not here (finished, or never offered)."""
        if job in self.running:
            self._remove(job)
            return True
        try:
            self.queue.remove(job)
        except ValueError:
            return False
        return True

    def made(self, job: Job) -> int:
        """Tokens that a job has so far; 0 while it waits."""
        return self.steps - job.joined if job in self.running else 0

    def advance(self, now: float) -> list[Job]:
        """Do every step that ends by `now`; the jobs that finished, in order."""
        finished: list[Job] = []
        while self.step_ends is not None and self.step_ends <= now:
            ended = self.step_ends
            self._end(finished)
            self._begin(ended)
        return finished

    def _begin(self, at: float) -> None:
        if not self.running:
            if not self.queue:
                self.step_ends = None
                return
            at = max(at, self.queue[0].arrived)
        prefill = 0
        while self.queue and self.queue[0].arrived <= at and self._fits(self.queue[0]):
            job = self.queue.popleft()
            job.joined = self.steps
            self.running[job] = None
            self._due.setdefault(self.steps + job.output, []).append(job)
            self.kv += job.prompt
            prefill += job.prompt
        running = len(self.running)
        self.max_running = max(self.max_running, running)
        self.prompt_tokens += prefill
        self.step_ends = at + (self.step_s + self.per_seq_s * running) * self.slowdown + self.prefill_s * prefill

    def _end(self, finished: list[Job]) -> None:
        made = len(self.running)
        self.steps += 1
        self.kv += made
        self.generated_tokens += made
        for job in self._due.pop(self.steps, ()):
            # A job that was cancelled, or preempted and started over, left this entry behind.
            if job in self.running and job.joined + job.output == self.steps:
                self._remove(job)
                finished.append(job)
        while self.kv_tokens is not None and self.kv > self.kv_tokens and len(self.running) > 1:
            youngest = next(reversed(self.running))
            self._remove(youngest)
            self.queue.appendleft(youngest)
            self.preemptions += 1

    def _fits(self, job: Job) -> bool:
        if len(self.running) >= self.max_num_seqs:
            return False
        return self.kv_tokens is None or not self.running or self.kv + job.prompt + 1 <= self.kv_tokens

    def _remove(self, job: Job) -> None:
        del self.running[job]
        self.kv -= job.prompt + self.steps - job.joined
        job.joined = -1
