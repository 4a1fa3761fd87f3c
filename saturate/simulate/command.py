"""`saturate simulate`: the simulator in a process of its own, until a signal or the end of its parent."""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import sys
import textwrap
from collections.abc import Sequence
from typing import Optional

from saturate.simulate.faults import KINDS, Faults
from saturate.simulate.responses import SHAPES
from saturate.simulate.server import Simulator

_PARENT_PERIOD_S = 0.5
# A thread that waits for the interpreter wakes this often to ask for it. A request is over much sooner than even the
# default of 5 ms, so asking only costs: a third of the CPU per request with 256 busy connections.
_SWITCH_S = 0.05


def _faults_help() -> str:
    lines = ["faults (--fault KIND:name=value,...; may be repeated):"]
    for name, kind in KINDS.items():
        lines.append(f"  {name:<20}{kind.does}")
        if kind.defaults:
            values = (f"{key}={int(value) if value is False else value}" for key, value in kind.defaults.items())
            lines.append(f"  {'':<20}  {','.join(values)}")
    lines += [
        "each also takes start=S,end=S (seconds); those that strike single requests (error to drop_mid_body) take",
        "rate=SHARE of attempts, first=N requests, attempts=N of each id, contains=TEXT in the body, route=END of path",
        "shapes of malformed:",
        *textwrap.wrap(", ".join(SHAPES), 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False),
        "",
        "also: GET /simulate/stats, POST /simulate/faults",
        '      {"faults": ["error:rate=0.1,status=503"], "seed": 0}',
    ]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.description = "A model server without a model: continuous batching in virtual tokens, and faults by flag."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _faults_help()
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0: any free port (default 8000)")
    add("--max-num-seqs", type=int, default=64, metavar="N", help="requests that run at once (default 64)")
    add("--step-s", type=float, default=0.010, metavar="S", help="seconds a step takes (default 0.010)")
    add("--per-seq-s", type=float, default=0.0001, metavar="S", help="and per running request (default 0.0001)")
    add("--prefill-s", type=float, default=0.0, metavar="S", help="and per prompt token that joins (default 0)")
    add("--kv-tokens", type=int, metavar="N", help="KV capacity; above it the youngest is preempted (default: none)")
    add(
        "--tokens",
        default="100",
        metavar="LENGTH",
        help="of an answer: N, uniform:LOW,HIGH, lognormal:MEDIAN,SIGMA or bimodal:SHORT,LONG,SHARE (default 100)",
    )
    add("--max-model-len", type=int, metavar="N", help="longer requests get a 400 (default: no limit)")
    add("--latency-s", type=float, metavar="S", help="a fixed latency instead of the engine; 0 answers at once")
    add("--no-metrics", action="store_true", help="/metrics answers 404")
    add("--no-health", action="store_true", help="/health answers 404")
    add("--finish-abandoned", action="store_true", help="go on with requests whose client left")
    add("--model", default="simulated", metavar="NAME")
    add("--fault", action="append", default=[], metavar="KIND[:...]", help="see below")
    add("--seed", type=int, default=0, metavar="N", help="of lengths and faults (default 0)")
    add("--record", metavar="FILE", help="append a line `id status` per answered request")
    add("--parent-pid", type=int, metavar="PID", help="end when this process is gone")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or the end of the parent, in the main thread. Returns the exit code.

    0 after a clean end; 2 with a sentence on stderr when the arguments make no sense or the port is taken.
    """
    try:
        return _serve(_simulator(arguments), arguments.parent_pid)
    except (ValueError, OSError) as error:
        print(f"saturate simulate: {error}", file=sys.stderr)
        return 2


def _simulator(arguments: argparse.Namespace) -> Simulator:
    return Simulator(
        max_num_seqs=arguments.max_num_seqs,
        step_s=arguments.step_s,
        per_seq_s=arguments.per_seq_s,
        tokens=arguments.tokens,
        kv_tokens=arguments.kv_tokens,
        metrics=not arguments.no_metrics,
        health=not arguments.no_health,
        faults=Faults(*arguments.fault, seed=arguments.seed),
        port=arguments.port,
        host=arguments.host,
        record=arguments.record,
        latency_s=arguments.latency_s,
        prefill_s=arguments.prefill_s,
        model=arguments.model,
        max_model_len=arguments.max_model_len,
        abort_on_disconnect=not arguments.finish_abandoned,
        seed=arguments.seed,
    )


def _serve(server: Simulator, parent: Optional[int]) -> int:
    told, tell = socket.socketpair()
    tell.setblocking(False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        # The handler itself does nothing: the wake-up descriptor gets a byte, whatever the main thread is doing.
        signal.signal(number, lambda *_: None)
    before_descriptor = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with server:
            print(f"saturate simulate: serving on {server.endpoint} (a simulation, no model)", flush=True)
            _wait(told, parent)
    finally:
        sys.setswitchinterval(interval)
        signal.set_wakeup_fd(before_descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        told.close()
        tell.close()
    return 0


def _wait(told: socket.socket, parent: Optional[int]) -> None:
    """Return when a signal was told of, or the parent is gone."""
    child = parent is not None and parent == os.getppid()
    while not select.select([told], [], [], None if parent is None else _PARENT_PERIOD_S)[0]:
        # A child sees its parent change, even when nobody reaps the dead one.
        if parent is not None and (os.getppid() != parent if child else not _alive(parent)):
            return


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="saturate simulate")
    add_arguments(parser)
    return run(parser.parse_args(argv))
