"""What a layer that mixes many streams does: 156 `Dataset` objects over 62 datasets in one process, record by record.

    python benchmarks/many_datasets.py            raw frames over the wire, and HTTP; two minutes
    python benchmarks/many_datasets.py --short    fewer of both for a moment, judged by memory and not by speed

Each stream gives its first record, then all are read round-robin, one record of each in turn, as often as they give in
`--seconds`. Beside it the same loop over one stream. Records of about 1 KiB; each stream has a seed, and no end.
Client and server are processes of their own; memory is the peak of each. Required on both transports: all first records
within 5 s, then 0.9 of one stream's rate, client within 512 MiB, server within 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from corpus import SHUFLR, corpus, timed
from serving import Server, serving

OBJECTS, DATASETS = 156, 62
FIRST_ROUND_S = 5.0
SHARE = 0.9
CLIENT_MIB, SERVER_MIB = 512.0, 1024.0
THREADS = 16


def read(urls: list[str], turns: int, seconds: float) -> dict[str, float]:
    """Iterates a stream of each URL, round-robin; with one URL it takes every one of the `turns` of a round."""
    from shuflr import Dataset

    began = time.perf_counter()
    streams = [iter(Dataset(url, seed=seed, epochs=0)) for seed, url in enumerate(urls)]
    for stream in streams:
        next(stream)
    first = time.perf_counter() - began
    in_turn = streams * (turns // len(streams))
    rounds, content, began = 0, 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for stream in in_turn:
            content += len(next(stream))
        rounds += 1
    wall = time.perf_counter() - began
    return {
        "first": first,
        "rate": rounds * len(in_turn) / wall,
        "megabytes": content / wall / 1e6,
        "threads": threading.active_count(),
        "peak": peak_mib(os.getpid()),
    }


def peak_mib(pid: int) -> float:
    """The most memory that a process has held."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def in_a_process(urls: list[str], turns: int, seconds: float) -> dict[str, float]:
    given = json.dumps([urls, turns, seconds])
    ran = subprocess.run([sys.executable, __file__, "--read"], input=given, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(ran.stderr[-3000:])
    answer: dict[str, float] = json.loads(ran.stdout)
    return answer


def files(folder: Path, count: int, megabytes: int) -> dict[str, Path]:
    """Seekable files of the same text, each with an identity of its own."""
    plain = corpus(folder, 1024, megabytes)
    first = folder / "d0.jsonl.zst"
    timed([*SHUFLR, "convert", str(plain), "-o", str(first)])
    plain.unlink()
    made = {"d0": first}
    for number in range(1, count):
        made[f"d{number}"] = folder / f"d{number}.jsonl.zst"
        made[f"d{number}"].write_bytes(first.read_bytes())
    return made


def compare(transport: str, server: Server, names: list[str], objects: int, seconds: float, judged: bool) -> list[str]:
    """Prints a line for one transport; what falls short."""
    urls = [server.url(transport, names[number % len(names)]) for number in range(objects)]
    alone = in_a_process(urls[:1], objects, seconds)
    found: dict[str, Any] = in_a_process(urls, objects, seconds)
    server_mib = sum(peak_mib(pid) for pid in server.processes())
    share = found["rate"] / alone["rate"]
    print(
        f"{transport:<6} {alone['rate']:>12,.0f} {found['rate']:>12,.0f} {share:>6.2f} {found['first']:>8.2f} s "
        f"{found['peak']:>8.0f} MiB {server_mib:>8.0f} MiB {found['threads']:>8}",
        flush=True,
    )
    short = []
    if found["peak"] > CLIENT_MIB:
        short.append(f"{transport}: the client held {found['peak']:.0f} MiB")
    if found["threads"] > THREADS:
        short.append(f"{transport}: the client had {found['threads']} threads")
    if server_mib > SERVER_MIB:
        short.append(f"{transport}: the server held {server_mib:.0f} MiB")
    if judged and found["first"] > FIRST_ROUND_S:
        short.append(f"{transport}: {found['first']:.1f} s until each had given a record")
    if judged and share < SHARE:
        short.append(f"{transport}: {share:.2f} of one stream's rate")
    return short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0, help="of reading")
    parser.add_argument("--megabytes", type=int, default=16, help="of each dataset")
    parser.add_argument("--transports", nargs="+", choices=["wire", "http"], default=["wire", "http"])
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(*json.loads(sys.stdin.read()))))
        return 0
    objects, datasets, seconds, megabytes = OBJECTS, DATASETS, options.seconds, options.megabytes
    if options.short:
        objects, datasets, seconds, megabytes = 24, 8, 1.0, 4
    short = []
    print(f"{objects} streams over {datasets} datasets of {megabytes} MB, {seconds:.0f} s each")
    print(
        f"{'':<6} {'one alone/s':>12} {'all/s':>12} {'share':>6} {'first round':>10} {'client':>12} {'server':>12} "
        f"{'threads':>8}"
    )
    with tempfile.TemporaryDirectory() as name:
        made = files(Path(name), datasets, megabytes)
        for transport in options.transports:
            with serving(made) as server:
                short += compare(transport, server, list(made), objects, seconds, not options.short)
    for line in short:
        print("short:", line)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
