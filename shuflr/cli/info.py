"""`shuflr info`: what a seekable file holds, at the cost of its seek table."""

import argparse
import json

from shuflr.records.seekable import SeekableFile
from shuflr.records.seektable import SeekTable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a seekable zstd file or its URL")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def facts_json(name: str, size: int, table: SeekTable) -> str:
    """The facts as one line of JSON, field for field as the public program prints them."""
    sizes = sorted(table.decompressed)
    stored, decoded = table.offsets[-1], sum(sizes)
    return (
        f'{{"file":{json.dumps(name, ensure_ascii=False)},"format":"zstd-seekable","frames":{table.frames},'
        f'"compressed_bytes":{size},"decompressed_bytes":{decoded},"ratio":{decoded / stored if stored else 0:.3f},'
        f'"checksums":{str(table.has_checksums).lower()},"frame_size_min":{sizes[0] if sizes else 0},'
        f'"frame_size_max":{sizes[-1] if sizes else 0},"frame_size_median":{sizes[len(sizes) // 2] if sizes else 0}}}'
    )


def run(arguments: argparse.Namespace) -> int:
    file = SeekableFile(arguments.file)
    line = facts_json(arguments.file, file.source.size, file.table)
    if arguments.json:
        print(line)
        return 0
    facts = json.loads(line)
    rows = {
        "file": arguments.file,
        "format": facts["format"],
        "frames": facts["frames"],
        "compressed": f"{facts['compressed_bytes']} bytes",
        "decompressed": f"{facts['decompressed_bytes']} bytes ({facts['ratio']:.3f}x)",
        "frame size": f"{facts['frame_size_min']} to {facts['frame_size_max']} bytes, "
        f"median {facts['frame_size_median']}",
        "checksum": "one for each frame" if facts["checksums"] else "none",
        "seekable": "yes",
    }
    for key, value in rows.items():
        print(f"{key + ':':<16}{value}")
    return 0
