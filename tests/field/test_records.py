"""What people reported about streaming shuffled records, as far as disk and orders are concerned (cases B1 to B23)."""

import io
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from shuflr import core
from shuflr.errors import InputError, NotSeekable, OversizedRecord, TokenError
from shuflr.order import Options, Position, blocks, open_order
from shuflr.order.token import position_of, token_of
from shuflr.records.inputs import Input, read_chunks
from shuflr.records.seekable import SeekableFile
from shuflr.records.seektable import encode_seek_table
from shuflr.records.sieve import Limits, Partition
from shuflr.records.source import LocalFile
from shuflr.records.writer import write_seekable
from tests.conftest import wait_until

LINES = [b'{"n":%d}\n' % i for i in range(20_000)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("field") / "c.jsonl.zst"
    with open(path, "wb", buffering=0) as out:
        write_seekable(io.BytesIO(b"".join(LINES)), out, frame_size=8000)
    return path


def drawn(order, count=None, start=None, epochs=1):
    """`count` records from a position on, and the token of the place behind them."""
    out, position = [], start or Position()
    for block in blocks(order, epochs, count, start):
        out += [line + b"\n" for line in bytes(block.data).split(b"\n")[:-1]]
        position = block.after(block.records)
    return out, token_of(order, position)


@pytest.mark.parametrize("mode", ["chunk-shuffled", "frame-pool:8", "index-perm", "none"])
def test_b1_b2_a_hundred_resumes_lose_nothing_and_repeat_nothing(corpus, mode):
    whole, _ = drawn(open_order(corpus, mode, Options(seed=1)))
    out, position, draw = [], None, random.Random(2)
    while len(out) < len(whole):
        order = open_order(corpus, mode, Options(seed=1))  # a new process, as far as state goes
        part, token = drawn(order, draw.randint(1, 400), position)
        position = position_of(token, order)
        out += part
    assert out == whole and Counter(out) == Counter(LINES)


@pytest.mark.parametrize("mode", ["chunk-shuffled", "frame-pool:8", "index-perm"])
def test_b3_a_state_is_used_once_and_every_place_has_one(corpus, mode):
    order = open_order(corpus, mode, Options(seed=1))
    whole, end = drawn(order, epochs=2)
    for place in (0, 1, 10_000, 19_999, 20_000):
        start = position_of(drawn(order, place)[1] if place else token_of(order, Position()), order)
        assert drawn(order, start=start, epochs=2)[0] == whole[place:]
    assert drawn(order, start=position_of(end, order), epochs=2)[0] == []


def test_b4_the_state_is_what_was_received_not_what_was_read_ahead(corpus):
    order = open_order(corpus, "chunk-shuffled", Options(seed=1, threads=3, ahead=6))
    whole, _ = drawn(order)
    block = next(iter(order.epoch(Position())))
    place = token_of(order, block.after(3))
    assert drawn(order, start=position_of(place, order))[0] == whole[3:]


def test_b5_b23_going_to_a_place_costs_one_frame_and_opening_costs_the_seek_table(corpus, monkeypatch):
    read = []
    original = LocalFile.read_into
    monkeypatch.setattr(LocalFile, "read_into", lambda self, b, o, n: read.append(n) or original(self, b, o, n))
    order = open_order(corpus, "chunk-shuffled", Options(seed=1))
    assert read == []
    whole, _ = drawn(order)
    assert len(read) == SeekableFile(corpus).frames
    _, token = drawn(order, 15_000)
    read.clear()
    first = next(iter(order.epoch(position_of(token, order))))
    assert bytes(first.data).startswith(whole[15_000])
    assert len(read) == 1


def test_b6_another_world_size_is_exact_or_a_clear_error(corpus):
    half = open_order(corpus, "index-perm", Options(seed=1, partition=Partition(0, 2)))
    _, token = drawn(half, 100)
    with pytest.raises(TokenError, match="parameters"):
        position_of(token, open_order(corpus, "index-perm", Options(seed=1, partition=Partition(0, 4))))


@pytest.mark.parametrize("rank, world", [(-1, 4), (4, 4), (7, 2), (0, 0)])
def test_b10_a_rank_that_does_not_exist_is_an_error_with_a_reason(rank, world):
    with pytest.raises(InputError, match="rank|world"):
        Partition.of(rank, world)


def test_b13_killed_in_the_middle_leaves_nothing_that_disturbs_the_next_run(corpus, tmp_path):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    out = tmp_path / "out.zst"
    out.write_bytes(b"old")
    program = [sys.executable, "-c", "from shuflr.cli import main; main()"]
    convert = [*program, "convert", "-", "-o", str(out)]
    victim = subprocess.Popen(convert, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert victim.stdin is not None
    victim.stdin.write(b"".join(LINES))
    victim.stdin.flush()
    time.sleep(0.5)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert out.read_bytes() == b"old"
    if os.uname().sysname == "Linux":
        assert os.listdir(tmp_path) == ["out.zst"]
    source = tmp_path / "c.jsonl"
    source.write_bytes(b"".join(LINES))
    assert subprocess.run([*program, "convert", str(source), "-o", str(out)], stderr=subprocess.DEVNULL).returncode == 0
    assert SeekableFile(out).frames == 1
    if os.path.isdir("/dev/shm"):
        # Other processes' names may come and go meanwhile; one of ours would stay.
        assert wait_until(lambda: set(os.listdir("/dev/shm")) <= before)


def _child(path, order, queue):
    queue.put([bytes(block.data) for block in order.epoch(Position())])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_b15_processes_share_no_file_position(corpus, method):
    context = multiprocessing.get_context(method)
    order = open_order(corpus, "chunk-shuffled", Options(seed=1))
    queue = context.Queue()
    children = [context.Process(target=_child, args=(corpus, order, queue)) for _ in range(2)]
    for child in children:
        child.start()
    mine = [bytes(block.data) for block in order.epoch(Position())]
    assert [queue.get(timeout=60) for _ in children] == [mine, mine]
    for child in children:
        child.join()
    assert [bytes(block.data) for block in pickle.loads(pickle.dumps(order)).epoch(Position())] == mine


def test_b20_only_the_byte_0a_ends_a_record(tmp_path):
    records = ["a\u2028b\n", "c\u2029d\r\n", "e\x85f\x0b\x0c\x1c\n", "\n", "\ufeffg\x00\n"]
    path = tmp_path / "c.jsonl"
    path.write_bytes("".join(records).encode())
    for mode in ("none", "buffer:2", "index-perm"):
        out = b"".join(bytes(block.data) for block in open_order(path, mode).epoch(Position()))
        assert Counter(out.split(b"\n")[:-1]) == Counter(record.encode()[:-1] for record in records)


def test_b21_a_long_record_passes_up_to_the_cap_and_meets_the_policy_beyond(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"a\n" + b"x" * 5_000_000 + b"\nb\n")

    def out(cap, policy):
        order = open_order(path, "none", Options(limits=Limits(cap, policy)))
        return b"".join(bytes(block.data) for block in order.epoch(Position())), order.dropped

    assert out(5_000_001, core.SKIP) == (path.read_bytes(), 0)
    assert out(5_000_000, core.SKIP) == (b"a\nb\n", 1)
    assert out(5_000_000, core.PASSTHROUGH) == (path.read_bytes(), 0)
    with pytest.raises(OversizedRecord) as caught:
        out(5_000_000, core.FAIL)
    assert (caught.value.offset, caught.value.length) == (2, 5_000_001)


def test_b22_hostile_seek_tables_are_refused_and_all_frames_of_a_stream_are_read(tmp_path):
    frame, checksum = core.Work().compress(b"a\n", 3)
    path = tmp_path / "hostile.zst"
    for table in ([(2**32 - 1, 2, checksum)], [(len(frame), 2, checksum)] * 2, [(1, 2, checksum)]):
        path.write_bytes(bytes(frame) + encode_seek_table(table, True))
        with pytest.raises(NotSeekable):
            SeekableFile(path)
    path.write_bytes(bytes(frame) * 3)
    assert b"".join(bytes(chunk) for chunk in Input(str(path)).chunks()) == b"a\n" * 3
    assert b"".join(bytes(c) for c in read_chunks(Input(str(path)).reader())) == b"a\n" * 3
