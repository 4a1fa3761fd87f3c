"""What a client's own process does in client_rates.py and pair.py: iterate one stream and say how that went.

    python benchmarks/iterate.py MODULE URL EPOCHS [--shuffle ORDER] [--digest]

It needs nothing but the client, so it runs in the environment of either. Prints JSON: seconds to the first record and
in all, processor seconds of the process from before the stream was opened, records; with `--digest` instead the SHA-256
of the records, each followed by LF.
"""

import argparse
import hashlib
import importlib
import json
import time
from collections.abc import Iterable


def iterate(dataset: "Iterable[bytes]") -> "dict[str, float]":
    cpu, began = time.process_time(), time.perf_counter()
    records = iter(dataset)
    next(records)
    first = time.perf_counter() - began
    count = 1
    for _ in records:
        count += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"first": first, "wall": wall, "cpu": cpu, "records": count}


def digest(dataset: "Iterable[bytes]") -> "dict[str, object]":
    hashed, count = hashlib.sha256(), 0
    for record in dataset:
        hashed.update(record + b"\n")
        count += 1
    return {"digest": hashed.hexdigest(), "records": count}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("url")
    parser.add_argument("epochs", type=int)
    parser.add_argument("--shuffle", default="chunk-shuffled")
    parser.add_argument("--digest", action="store_true")
    options = parser.parse_args()
    make = importlib.import_module(options.module).Dataset
    dataset = make(options.url, epochs=options.epochs, shuffle=options.shuffle)
    print(json.dumps(digest(dataset) if options.digest else iterate(dataset)))


if __name__ == "__main__":
    main()
