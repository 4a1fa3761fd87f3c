"""Corpora for the server's tests: seekable files of many small frames, made in a moment."""

import io
import random

import pytest

from shuflr.records.writer import write_seekable


def lines(count, seed=1, longest=60):
    """Records of random lengths, empty ones and ones with a CR among them."""
    draw = random.Random(seed)
    return [b"%d %s\n" % (i, b"x" * draw.choice((0, 1, 7, draw.randrange(longest)))) for i in range(count)]


def write_corpus(path, records, frame_size=512, **options):
    """The records as seekable zstd at `path`."""
    with open(path, "wb", buffering=0) as out:
        write_seekable(io.BytesIO(b"".join(records)), out, frame_size=frame_size, **options)
    return str(path)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Records in one file of some 60 frames: (path, records)."""
    records = lines(1000)
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl.zst", records), records
