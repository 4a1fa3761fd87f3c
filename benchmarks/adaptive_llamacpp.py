"""Does `pump` with `Auto` deliver on a real llama.cpp server what the best fixed window delivers there?

    python benchmarks/adaptive_llamacpp.py [--seconds 20] [--rounds 3]

llama.cpp's own server (four slots, one thread) on a tiny random model, in the virtual environment that the interop
tests make. They share the machine's cores, so what one and the same window delivers drifts by a fifth within minutes:
every fixed window runs once, to find the best; then each run of Auto stands between two of that one and is compared
with their mean, and the median of its rounds counts. Exits 1 when Auto delivers less than 0.95 of the best fixed
window, with the engine's gauges or without.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from saturate import Auto, Fixed, pump  # noqa: E402
from tests.interop import peers  # noqa: E402

SLOTS = 4
FIXED = (1, 2, 4, 8, 16, 32)
REQUIRED = 0.95


def rate(endpoint: str, window: object, metrics: bool, seconds: float, folder: str) -> tuple[float, int]:
    """(rows a second, final window) of a run that is fed for `seconds`."""
    until = time.monotonic() + seconds

    def rows():
        n = 0
        while time.monotonic() < until:
            n += 1
            yield {"text": f"say number {n}"}

    def to_request(row):
        messages = [{"role": "user", "content": row["text"]}]
        return {"model": "tiny", "messages": messages, "max_tokens": 48, "ignore_eos": True}

    started = time.monotonic()
    stats = pump(
        rows(),
        to_request,
        lambda response: {"answer": response["choices"][0]["message"]["content"]},
        endpoint,
        tempfile.mkdtemp(dir=folder),
        window=window,
        signal_source="auto" if metrics else "none",
    )
    return stats.rows_processed / (time.monotonic() - started), stats.final_limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    python = peers.peer_python("llamacpp")
    interop = ROOT / "tests" / "interop"
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "tiny.gguf")
        variables = peers.environment_variables()
        subprocess.run([python, str(interop / "llamacpp_model.py"), model], check=True, env=variables, cwd=folder)
        server = subprocess.Popen(
            [python, str(interop / "llamacpp_server.py"), model, str(SLOTS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables,
            cwd=folder,
            text=True,
        )
        try:
            endpoint = server.stdout.readline().strip() + "/v1"
            fixed = {n: rate(endpoint, Fixed(n), True, arguments.seconds, folder)[0] for n in FIXED}
            best = max(fixed, key=lambda n: fixed[n])
            before = rate(endpoint, Fixed(best), True, arguments.seconds, folder)[0]
            shares: dict[str, list[float]] = {"Auto gauges": [], "Auto blind": []}
            final: dict[str, int] = {}
            for _ in range(arguments.rounds):
                for name, of_rounds in shares.items():
                    got, final[name] = rate(endpoint, Auto(), name == "Auto gauges", arguments.seconds, folder)
                    after = rate(endpoint, Fixed(best), True, arguments.seconds, folder)[0]
                    of_rounds.append(2 * got / (before + after))
                    before = after
        finally:
            server.terminate()
            server.wait(timeout=20)
    print(f"llama.cpp with {SLOTS} slots; runs of {arguments.seconds:g} s\n")
    print("| window | rows/s |\n|---|---|")
    for n, got in fixed.items():
        print(f"| Fixed {n} | {got:.1f} |")
    print(f"\n| client | of Fixed {best} before and after it | rounds | final window |\n|---|---|---|---|")
    for name, of_rounds in shares.items():
        rounds = " ".join(f"{share:.3f}" for share in of_rounds)
        print(f"| {name} | {statistics.median(of_rounds):.3f} | {rounds} | {final[name]} |")
    short = [name for name, of_rounds in shares.items() if statistics.median(of_rounds) < REQUIRED]
    print(f"\nrequired {REQUIRED} of Fixed {best}: {'falls short: ' + ', '.join(short) if short else 'met'}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
