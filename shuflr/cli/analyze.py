"""`shuflr analyze`: how alike the frames of a file are, which order would mix it well enough, and what that costs."""

import argparse
import json

from shuflr.cli.options import COUNT
from shuflr.order.quality import BATCH, Analysis, Forecast, analyze, forecasts, recommended
from shuflr.records.inputs import require_seekable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="a seekable zstd file")
    add("--sample-chunks", type=COUNT, default=32, metavar="N", help="frames looked at (default 32)")
    add("--strict", action="store_true", help="exit with 3 when the verdict is unsafe")
    add("--json", action="store_true", help="one line of JSON")
    add("--orders", action="store_true", help="with --json: also what each order would give and cost")


def run(arguments: argparse.Namespace) -> int:
    file = require_seekable(arguments.file, "analyze")
    found = analyze(file, arguments.sample_chunks)
    table = forecasts(file, found)
    if arguments.json:
        line = _json(arguments.file, found)
        if arguments.orders:
            orders = [row._asdict() for row in table]
            more = {"batch": BATCH, "orders": orders, "recommended": recommended(table).order}
            line = line[:-1] + "," + json.dumps(more, separators=(",", ":"))[1:]
        print(line)
    else:
        print(_text(arguments.file, found, table))
    return 3 if arguments.strict and not found.safe else 0


def _json(name: str, found: Analysis) -> str:
    """The facts as the public program prints them, field for field."""
    numbers = ",".join(
        f'"{key}":{getattr(found, key):.6f}'
        for key in (
            "byte_kl_max", "byte_kl_mean", "byte_js_max", "byte_js_mean", "frame_entropy_mean", "reclen_cv"
        )
    )  # fmt: skip
    return (
        f'{{"file":{json.dumps(name, ensure_ascii=False)},"total_frames":{found.total_frames},'
        f'"sampled_frames":{found.sampled_frames},"total_records_sampled":{found.records},'
        f'"mean_record_len_bytes":{found.mean_record_len:.3f},{numbers},'
        '"thresholds":{"byte_kl_unsafe":0.1,"byte_js_unsafe":0.1,"reclen_cv_unsafe":0.5},'
        f'"verdict":"{"safe" if found.safe else "unsafe"}"}}'
    )


def _qualifier(value: float, threshold: float) -> str:
    if value > threshold:
        return "SKEWED"
    return "uniform" if value < threshold / 2 else "mild drift"


def _text(name: str, found: Analysis, table: "list[Forecast]") -> str:
    lines = [
        f"file:           {name}",
        f"frames:         {found.sampled_frames} of {found.total_frames} looked at",
        f"records:        {found.records} in them, {found.mean_record_len:.1f} bytes on average",
        f"byte KL:        max {found.byte_kl_max:.4f}, mean {found.byte_kl_mean:.4f} nats"
        f" ({_qualifier(found.byte_kl_max, 0.1)})",
        f"byte JS:        max {found.byte_js_max:.4f}, mean {found.byte_js_mean:.4f} nats"
        f" ({_qualifier(found.byte_js_max, 0.1)})",
        f"record length:  varies by {found.reclen_cv:.3f} between frames ({_qualifier(found.reclen_cv, 0.5)})",
        f"likeness:       {found.likeness:.4f} (share of the records' variety that lies between frames)",
        f"verdict:        {'safe' if found.safe else 'unsafe'} for chunk-shuffled",
        "",
        f"In a batch of {BATCH} records:",
        f"{'order':<16}{'frames':>8}{'chi-square':>12}{'if sorted':>11}{'memory':>12}",
    ]
    lines += [
        f"{row.order:<16}{row.distinct_frames:>8.1f}{row.chi_square:>12.2f}{row.chi_square_sorted:>11.1f}"
        f"{row.memory_bytes / 2**20:>8.0f} MiB"
        for row in table
    ]
    lines += ["", f"recommended:    {recommended(table).order}"]
    return "\n".join(lines)
