"""What happened to others who stream shuffled records, as it would happen to a server: one test per case."""

import json
import random

import pytest

from shuflr.server.catalog import Catalog, Dataset
from shuflr.server.memory import Memory
from shuflr.server.streaming import DecodedStream, Lines, Plan, Request
from shuflr.wire import StreamError
from tests.server.conftest import lines, write_corpus
from tests.server.wire_client import Client, Serving, records_of


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server of 20,000 records in some 300 frames, and the records."""
    records = lines(20_000, seed=4)
    path = write_corpus(tmp_path_factory.mktemp("field") / "corpus.jsonl.zst", records, frame_size=2048)
    with Serving(path) as serving:
        yield serving, records


def resumed(serving, skip, **asked):
    """The records from a point on, as a client that was told where it starts counts them."""
    with Client(serving.address, skip=skip, **asked) as client:
        hello, *messages = client.rest()
    opened = json.loads(hello.opened)
    assert opened["resumed_at"] == skip
    return records_of(messages)[opened.get("skip_in_frame", 0) :]


@pytest.mark.parametrize("mode", ["raw-frame", "plain-batch"])
def test_b1_b2_no_record_is_lost_or_repeated_by_resuming_again_and_again(served, mode):
    """A second resume began at zero; 1,265 of 20,000 records were lost and 265 came twice."""
    serving, records = served
    draw, got = random.Random(1), []
    while len(got) < len(records):
        got += resumed(serving, len(got), seed=9, mode=mode)[: draw.randrange(1, 4000)]
    assert sorted(got) == sorted(records)
    assert got == resumed(serving, 0, seed=9, mode=mode)


@pytest.mark.parametrize("shuffle", ["chunk-shuffled", "none"])
def test_b5_resuming_costs_the_same_anywhere(tmp_path, monkeypatch, shuffle):
    """Skipping to the position took hours. Here it decodes a frame, wherever that is; input order reads two ahead."""
    path = write_corpus(tmp_path / "corpus.zst", lines(20_000, seed=4), frame_size=2048)
    catalog = Catalog([("corpus", path)], count=False)
    catalog["corpus"].counts.complete()
    decoded = []
    honest = type(catalog["corpus"].file).decode_unchecked
    monkeypatch.setattr(
        "shuflr.records.seekable.SeekableFile.decode_unchecked",
        lambda self, frame, work: decoded.append(frame) or honest(self, frame, work),
    )
    for skip in (1, 10_000, 19_999, 5_000_000 * 20_000 + 19_000):
        decoded.clear()
        request = Request("corpus", shuffle=shuffle, epochs=0, skip=skip)
        stream = DecodedStream(Plan(catalog, request), Memory(), Lines())
        assert stream.take(1)
        stream.close()
        assert len(decoded) <= (1 if shuffle == "chunk-shuffled" else 3), skip


@pytest.mark.parametrize("rank, world", [(3, 3), (7, 2), (0, 0)])
def test_b10_a_rank_that_does_not_exist_gets_a_reason_and_not_everything(served, rank, world):
    with Client(served[0].address, rank=rank, world_size=world) as client:
        (hello,) = client.rest()
    assert hello.status == 1 and b"world size" in hello.opened


def test_b9_the_ranks_together_get_each_record_once(served):
    """Every worker or rank read everything."""
    serving, records = served
    together = []
    for rank in range(5):
        with Client(serving.address, seed=2, rank=rank, world_size=5) as client:
            together += records_of(client.rest())
    assert sorted(together) == sorted(records)


def test_b20_only_a_line_feed_ends_a_record(tmp_path):
    """U+2028 split records."""
    records = [f"{i} a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\r\n".encode() for i in range(50)]
    path = write_corpus(tmp_path / "corpus.zst", records, frame_size=200)
    with Serving(path) as serving:
        for mode in ("raw-frame", "plain-batch"):
            with Client(serving.address, mode=mode) as client:
                got = b"".join(record for record in records_of(client.rest()))
            assert sorted(got.split(b"\n")) == sorted(b"".join(records).split(b"\n"))


@pytest.mark.parametrize("length", [1 << 20, (16 << 20) - 1])
def test_b21_records_up_to_the_cap_arrive_whole(tmp_path, length):
    records = [b"x" * length + b"\n", b"short\n"]
    path = write_corpus(tmp_path / "corpus.zst", records, frame_size=1000)
    with Serving(path) as serving:
        for mode in ("raw-frame", "plain-batch"):
            with Client(serving.address, mode=mode) as client:
                assert sorted(records_of(client.rest())) == sorted(records)


@pytest.mark.parametrize("seed", range(12))
def test_b22_a_hostile_seek_table_is_an_error_and_not_a_crash(tmp_path, seed):
    """Sizes that do not add up, frames of 4 GiB, counts beyond the file."""
    path = write_corpus(tmp_path / "corpus.zst", lines(300), frame_size=500)
    draw = random.Random(seed)
    data = bytearray((tmp_path / "corpus.zst").read_bytes())
    for _ in range(draw.randrange(1, 4)):
        data[len(data) - draw.randrange(1, 300)] = draw.randrange(256)
    (tmp_path / "corpus.zst").write_bytes(data)
    with Serving(path) as serving:
        for asked in ({}, {"capabilities": 6}, {"shuffle": "none"}):
            with Client(serving.address, **asked) as client:
                hello, *messages = client.rest()
            assert hello.status == 1 or messages
            if asked and messages and not isinstance(messages[-1], StreamError):
                assert set(records_of(messages)) <= set(lines(300))


def test_b23_opening_many_datasets_reads_their_tables_and_no_frame(tmp_path, monkeypatch):
    paths = [write_corpus(tmp_path / f"{i}.zst", lines(50, seed=i)) for i in range(62)]
    monkeypatch.setattr("shuflr.core.Work.decode", None)
    catalog = Catalog([(f"d{i}", path) for i, path in enumerate(paths)], count=False)
    assert len({dataset.label for dataset in catalog}) == 62
    assert all(isinstance(dataset, Dataset) and dataset.frames for dataset in catalog)
