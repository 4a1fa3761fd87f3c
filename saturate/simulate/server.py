"""The simulated server: its door (a listening socket), its threads, and their end.

One thread accepts connections, opens and closes the door as outages come and go, and notices clients that left; each
connection has a thread; the engine has one (`work`). No event loop.

Invariant: after `stop` nothing is left. Every connection's socket is shut down, which wakes its thread wherever it
blocks, and every thread is joined; a thousand hanging requests end as fast as one.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Optional, Union

from saturate.simulate.conversation import Conversation, House
from saturate.simulate.door import Door
from saturate.simulate.engine import Engine
from saturate.simulate.faults import Faults, Judge
from saturate.simulate.ledger import Ledger
from saturate.simulate.lengths import Lengths
from saturate.simulate.work import DelayWork, EngineWork, Ticket, Work

_ROUND_S = 0.25  # how soon a client that left is noticed


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # the client was faster
        pass


class Simulator:
    """A model server without a model, on a port of its own. A context manager::

        with Simulator(max_num_seqs=8, faults=Faults("error:rate=0.1,status=503")) as server:
            pump(rows, to_request, parse, endpoint=server.endpoint, output="out/")
            assert not server.paid_twice()

    Engine (see `engine`): `max_num_seqs`, `step_s`, `per_seq_s`, `prefill_s` (seconds per prompt token), `kv_tokens`
    (None: no limit). `latency_s` replaces the engine by a fixed latency, for any number of requests at once; 0 answers
    at once. `tokens` is the length of an answer (see `lengths`); a request's `max_tokens` sets it, or cuts it when
    `tokens` is a distribution. `max_model_len`: longer requests get a 400.

    `metrics` and `health` switch these routes on; off, they answer 404. `faults` may be replaced at any time. `record`
    is a file that gets a line per answer (see `ledger`). `abort_on_disconnect`: a request whose client left is taken
    out of the engine, as vLLM does; False goes on with it. `seed` draws the lengths.

    Raises OSError when the port is taken, ValueError for arguments that make no sense.
    """

    def __init__(
        self,
        max_num_seqs: int = 64,
        step_s: float = 0.010,
        per_seq_s: float = 0.0001,
        tokens: Union[int, str, Lengths] = 100,
        kv_tokens: Optional[int] = None,
        metrics: bool = True,
        health: bool = True,
        faults: Optional[Faults] = None,
        port: int = 0,
        host: str = "127.0.0.1",
        record: Optional[Union[str, os.PathLike[str]]] = None,
        latency_s: Optional[float] = None,
        prefill_s: float = 0.0,
        model: str = "simulated",
        max_model_len: Optional[int] = None,
        abort_on_disconnect: bool = True,
        seed: int = 0,
    ) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs={max_num_seqs}: pass at least 1")
        if min(step_s, per_seq_s, prefill_s, latency_s or 0.0) < 0:
            raise ValueError("times are in seconds and not negative")
        lengths = Lengths.read(tokens)
        self._work: Work
        if latency_s is None:
            self._work = EngineWork(Engine(max_num_seqs, step_s, per_seq_s, prefill_s, kv_tokens))
        else:
            self._work = DelayWork(latency_s)
        self._host = host
        self._faults = faults or Faults()
        self._abort_on_disconnect = abort_on_disconnect
        self._door: Optional[Door] = None  # while it runs
        self._lock = threading.Lock()  # guards _conversations and the closing of their sockets
        self._conversations: dict[Conversation, threading.Thread] = {}
        self._ended: deque[threading.Thread] = deque()
        self._ledger = Ledger(None if record is None else os.fspath(record))
        self._house = House(
            work=self._work,
            ledger=self._ledger,
            lengths=lengths,
            model=model,
            max_model_len=max_model_len,
            metrics=metrics,
            health=health,
            judge=Judge(self._faults, time.monotonic()),
            stats=self.stats,
            set_faults=self._replace_faults,
            seed=seed,
        )
        self._reception = threading.Thread(target=self._receive, name="simulate-reception", daemon=True)
        self.port = port

    def start(self) -> Simulator:
        """Take the port and begin to serve. Returns itself. A simulator starts once."""
        door = Door(self._host, self.port)
        try:
            self._ledger.open()
        except OSError:
            door.close()
            raise
        self.port = door.port
        self._door = door
        self._nudge_in, self._nudge_out = socket.socketpair()
        self.faults = self._faults  # their clock starts now
        self._follow_outages(door)
        self._work.start()
        self._reception.start()
        return self

    def stop(self) -> None:
        """Cut every connection and end every thread. Safe to call again."""
        if self._door is None:
            return
        self._house.stopping.set()
        self._nudge()
        self._reception.join()  # from here on there are no new connections
        self._work.stop()
        for thread in self._cut_connections():
            thread.join()
        self._join_the_ended()
        self._door.close()
        self._door = None
        self._nudge_in.close()
        self._nudge_out.close()
        self._ledger.close()

    def __enter__(self) -> Simulator:
        return self.start()

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """``http://HOST:PORT``, the root of /health and /metrics."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def endpoint(self) -> str:
        """``http://HOST:PORT/v1``."""
        return f"{self.url}/v1"

    @property
    def served(self) -> list[str]:
        """The ids answered with a 2xx, in order; an id once per answer."""
        return list(self._ledger.served)

    @property
    def received(self) -> list[str]:
        """The ids of all requests, in order of arrival; an id once per attempt."""
        return list(self._ledger.received)

    def paid_twice(self) -> dict[str, int]:
        """Ids answered with a 2xx more than once, and how often."""
        return self._ledger.paid_twice()

    @property
    def faults(self) -> Faults:
        """The faults in force. Assign to replace them; their seconds and counts start at that moment."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._replace_faults(faults)

    def _replace_faults(self, faults: Faults) -> None:
        self._faults = faults
        self._house.judge = Judge(faults, time.monotonic())
        if self._door is not None:
            self._nudge()  # an outage may begin or end with it

    def _nudge(self) -> None:
        """Make the reception thread go round now."""
        try:
            self._nudge_in.send(b"x", socket.MSG_DONTWAIT)
        except BlockingIOError:  # so full of nudges that it will go round anyway
            pass

    def stats(self) -> dict[str, Any]:
        """What GET /simulate/stats answers: counts of requests and answers, and the engine now."""
        gauges = self._work.gauges()
        served = self.served
        distinct = len(set(served))
        return {
            "received": len(self._ledger.received),
            "served": len(served),
            "distinct": distinct,
            "twice": len(served) - distinct,
            "running": gauges.running,
            "waiting": gauges.waiting,
            "max_running": gauges.max_running,
            "preemptions": gauges.preemptions,
            "connections": len(self._conversations),
            "statuses": {str(status): count for status, count in self._ledger.counts().items()},
        }

    def _receive(self) -> None:
        """Until the end: accept, follow the outages, notice clients that left, join threads that ended."""
        house, door = self._house, self._door
        while door is not None and not house.stopping.is_set():
            self._follow_outages(door)
            poll = select.poll()
            poll.register(self._nudge_out, select.POLLIN)
            if door.is_open:
                poll.register(door.socket, select.POLLIN)
            wait_s = min(_ROUND_S, house.judge.next_change(time.monotonic()))
            for descriptor, _ in poll.poll(wait_s * 1000):
                if descriptor == self._nudge_out.fileno():
                    self._nudge_out.recv(4096)
                else:
                    self._accept_all(door)
            if self._abort_on_disconnect:
                self._abort_the_left()
            self._join_the_ended()

    def _follow_outages(self, door: Door) -> None:
        now = time.monotonic()
        judge = self._house.judge
        self._work.set_slowdown(judge.slowdown(now))
        outage = judge.outage(now)
        refuse = outage is not None and outage.how == "refuse"
        if refuse and door.is_open:
            door.shut()
            self._work.abort_all()
            self._cut_connections()
        elif not refuse and not door.is_open:
            door.open()

    def _accept_all(self, door: Door) -> None:
        while True:
            accepted = door.accept()
            if accepted is None:
                return
            conversation = Conversation(self._house, accepted, self._end)
            thread = threading.Thread(target=conversation.run, name="simulate-connection", daemon=True)
            with self._lock:
                self._conversations[conversation] = thread
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left: this client has to come again
                self._end(conversation)

    def _end(self, conversation: Conversation) -> None:
        """Close a connection's socket: under the lock, so that nobody shuts down a descriptor that is another's now."""
        with self._lock:
            if not conversation.reset:
                _shut_down(conversation.sock)  # closing is not enough when a forked process has a copy
            conversation.sock.close()
            self._ended.append(self._conversations.pop(conversation))

    def _join_the_ended(self) -> None:
        while self._ended:
            thread = self._ended.popleft()
            if thread.ident is not None:
                thread.join()

    def _cut_connections(self) -> list[threading.Thread]:
        """Shut every connection down, which ends its thread soon. Returns these threads."""
        with self._lock:
            for conversation in self._conversations:
                _shut_down(conversation.sock)
            return list(self._conversations.values())

    def _abort_the_left(self) -> None:
        """Take the requests of clients that closed their connection out of the work."""
        at_work = self._house.at_work.copy()
        tickets: dict[int, Ticket] = {}
        poll = select.poll()
        for ticket, sock in at_work.items():
            descriptor = sock.fileno()
            if descriptor >= 0:
                tickets[descriptor] = ticket
                poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(0) if tickets else ():
            ticket = tickets[descriptor]
            try:
                left = not at_work[ticket].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                left = False
            except OSError:
                left = True
            if left:
                self._work.abort(ticket)
