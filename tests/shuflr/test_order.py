"""Who comes next: every record once, the same way every time, and from any place on."""

import gzip
import io
import json
import random
from collections import Counter

import pytest

from shuflr import core
from shuflr.errors import DataError, InputError, OversizedRecord, TokenError
from shuflr.order import Options, Position, blocks, open_order
from shuflr.order.chunk_shuffled import frame_order
from shuflr.order.frame_pool import FramePool
from shuflr.order.quality import analyze, forecasts, likeness, recommended
from shuflr.order.seeds import epoch_seed, frame_key, perm_key
from shuflr.order.token import position_of, token_of
from shuflr.records.seekable import SeekableFile
from shuflr.records.sidecar import plain_index, seekable_index
from shuflr.records.sieve import Limits, Partition
from shuflr.records.source import LocalFile
from shuflr.records.writer import write_seekable

LINES = [b'{"n":%d,"pad":"%s"}\n' % (i, b"x" * (i * 7 % 50)) for i in range(2000)]
SEEKABLE_MODES = ["none", "buffer:50", "reservoir:60", "chunk-shuffled", "index-perm", "frame-pool:4", "frame-pool:999"]
PLAIN_MODES = ["none", "buffer:50", "reservoir:60", "index-perm"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("order")
    (folder / "plain.jsonl").write_bytes(b"".join(LINES))
    (folder / "packed.gz").write_bytes(gzip.compress(b"".join(LINES)))
    with open(folder / "c.jsonl.zst", "wb", buffering=0) as out:
        write_seekable(io.BytesIO(b"".join(LINES)), out, frame_size=1500)
    return folder


def cases():
    return [("c.jsonl.zst", mode) for mode in SEEKABLE_MODES] + [("plain.jsonl", mode) for mode in PLAIN_MODES] + [
        ("packed.gz", mode) for mode in ("none", "buffer:50", "reservoir:60")
    ]  # fmt: skip


def records(order, epochs=1, sample=None, start=None):
    out = b"".join(bytes(block.data) for block in blocks(order, epochs, sample, start))
    return [line + b"\n" for line in out.split(b"\n")[:-1]]


@pytest.mark.parametrize("name, mode", cases())
def test_every_record_comes_once_and_the_same_way_with_any_number_of_threads(place, name, mode):
    first = records(open_order(place / name, mode, Options(seed=7)))
    assert records(open_order(place / name, mode, Options(seed=7, threads=3, ahead=5))) == first
    if mode.startswith("reservoir"):
        assert len(first) == 60 and set(first) <= set(LINES)
    else:
        assert Counter(first) == Counter(LINES)
    if mode == "none":
        assert first == LINES
    else:
        assert first != LINES
        assert records(open_order(place / name, mode, Options(seed=8))) != first


@pytest.mark.parametrize("name, mode", cases())
def test_a_stream_goes_on_from_any_record_exactly(place, name, mode):
    order = open_order(place / name, mode, Options(seed=7))
    whole = records(order, epochs=2)
    count = len(whole) // 2
    points = sorted({0, 1, count - 1, count, *random.Random(mode).sample(range(count), 6)})
    tokens, seen = {}, 0
    for block in order.epoch(Position()):
        for point in points:
            if seen <= point <= seen + block.records:
                tokens[point] = token_of(order, block.after(point - seen))
        seen += block.records
    assert seen == count and len(tokens) == len(points)
    for point, token in tokens.items():
        fresh = open_order(place / name, mode, Options(seed=7))
        position = position_of(token, fresh)
        assert (position.epoch, position.record) == (0, point)
        assert records(fresh, epochs=2, start=position) == whole[point:]


@pytest.mark.parametrize("mode", ["chunk-shuffled", "frame-pool:4", "index-perm"])
def test_the_second_resume_and_later_epochs_are_exact_too(place, mode):
    order = open_order(place / "c.jsonl.zst", mode, Options(seed=3))
    whole = records(order, epochs=3)
    out, position = [], None
    draw = random.Random(1)
    while len(out) < len(whole):
        step = draw.randint(1, 900)
        for block in blocks(order, epochs=3, start=position):
            taken = min(step, block.records)
            out += [line + b"\n" for line in bytes(block.first(taken).data).split(b"\n")[:-1]]
            position, step = block.after(taken), step - taken
            if step == 0:
                break
    assert out == whole


@pytest.mark.parametrize("name, mode", cases())
def test_ranks_share_the_records_without_gap_or_overlap(place, name, mode):
    if mode.startswith("reservoir"):
        return
    parts = [records(open_order(place / name, mode, Options(seed=7, partition=Partition(r, 3)))) for r in range(3)]
    assert Counter(sum(parts, [])) == Counter(LINES)
    if mode == "index-perm":
        whole = records(open_order(place / name, mode, Options(seed=7)))
        assert parts == [whole[r::3] for r in range(3)]


@pytest.mark.parametrize("mode", ["none", "buffer:50", "chunk-shuffled", "frame-pool:4"])
@pytest.mark.parametrize("start", [0, 3, 333])
def test_oversized_records_are_counted_and_do_not_disturb_a_resume(place, mode, start):
    options = Options(seed=7, limits=Limits(40, core.SKIP))
    order = open_order(place / "c.jsonl.zst", mode, options)
    whole = records(order)
    assert Counter(whole) == Counter(line for line in LINES if len(line) <= 40)
    assert order.dropped == len(LINES) - len(whole)
    seen = 0
    for block in order.epoch(Position()):
        if seen + block.records >= start:
            position = block.after(start - seen)
            break
        seen += block.records
    assert records(open_order(place / "c.jsonl.zst", mode, options), start=position) == whole[start:]
    with pytest.raises(OversizedRecord):
        records(open_order(place / "c.jsonl.zst", mode, options._replace(limits=Limits(40, core.FAIL))))


def test_a_token_of_another_stream_is_refused_with_the_difference(place):
    order = open_order(place / "c.jsonl.zst", "frame-pool:4", Options(seed=7))
    token = token_of(order, Position(0, 5, 0, 5))
    assert position_of(token, order) == Position(0, 5, 0, 5)
    others = {
        "seed": open_order(place / "c.jsonl.zst", "frame-pool:4", Options(seed=8)),
        "parameters": open_order(place / "c.jsonl.zst", "frame-pool:5", Options(seed=7)),
        "mode": open_order(place / "c.jsonl.zst", "chunk-shuffled", Options(seed=7)),
        "another state of the input": open_order(place / "plain.jsonl", "index-perm", Options(seed=7)),
        "another set of parameters": open_order(
            place / "c.jsonl.zst", "frame-pool:4", Options(seed=7, partition=Partition(0, 2))
        ),
    }
    for text, other in others.items():
        with pytest.raises(TokenError, match=text):
            position_of(token, other)
    for bad in ("", "x", token[:-9], "e30"):
        with pytest.raises(TokenError):
            position_of(bad, order)


def test_epochs_differ_and_an_endless_stream_of_nothing_ends(place, tmp_path):
    order = open_order(place / "c.jsonl.zst", "chunk-shuffled", Options(seed=7))
    both = records(order, epochs=2)
    assert both[:2000] != both[2000:] and Counter(both[:2000]) == Counter(both[2000:])
    assert records(order, epochs=0, sample=4500)[:4000] == both
    with open(tmp_path / "empty.zst", "wb", buffering=0) as out:
        write_seekable(io.BytesIO(b""), out)
    for mode in SEEKABLE_MODES:
        assert records(open_order(tmp_path / "empty.zst", mode), epochs=0) == []


def test_the_frames_of_a_pool_are_the_shuffled_frames_dealt_evenly(place):
    file = SeekableFile(place / "c.jsonl.zst")
    order = FramePool(file, 4, 7, Limits(), Partition())
    pools = order.pools(0)
    assert sum(pools, []) == frame_order(7, 0, file.frames, Partition())
    assert {len(pool) for pool in pools} <= {3, 4}
    drawn = [json.loads(line)["n"] for line in records(order)]
    place_of = {}
    work = core.Work()
    for frame in range(file.frames):
        for line in bytes(file.decode(frame, work)).splitlines():
            place_of[json.loads(line)["n"]] = frame
    at = 0
    for pool in pools:
        size = sum(1 for frame in place_of.values() if frame in pool)
        assert {place_of[n] for n in drawn[at : at + size]} == set(pool)
        at += size


def test_keys_are_the_published_ones():
    assert perm_key(42, 1).hex() == "ba5a72cba347eea0c5f10089e42d38ef7dc2a1ff929ace0e1d6a84358e4391a6"
    assert frame_key(42, 0, 0).hex() == "d7d3f79f60d824bcc933a486736c7639975f1409ad6c9ea3bcbbc9657575e088"
    assert (epoch_seed(42, 0), epoch_seed(42, 1)) == (42, 5984894764693162234)


@pytest.mark.parametrize(
    "mode", ["", "bogus", "chunk-rr", "buffer:", "buffer:x", "buffer:-1", "buffer:0", "none:3", "frame-pool:0"]
)
def test_modes_that_do_not_exist_are_refused_before_anything_is_read(place, mode):
    with pytest.raises(InputError):
        open_order(place / "c.jsonl.zst", mode)


@pytest.mark.parametrize("mode", ["chunk-shuffled", "frame-pool:4"])
def test_modes_that_need_frames_say_how_to_get_them(place, mode):
    for name in ("plain.jsonl", "packed.gz"):
        with pytest.raises(InputError, match="shuflr convert"):
            open_order(place / name, mode)
    with pytest.raises(InputError):
        open_order("-", mode)
    with pytest.raises(InputError, match="convert"):
        open_order(place / "packed.gz", "index-perm")


def test_a_forged_index_is_an_error_and_never_a_crash(place):
    file = SeekableFile(place / "c.jsonl.zst")
    path = place / "c.jsonl.zst.shuflr-idx-zst"
    seekable_index(file, rebuild=True)
    good = path.read_bytes()
    for at, value in ((56, 2**32 - 1), (60, 2**32 - 1), (64, 2**32 - 1), (64, 0), (60, 10**6)):
        path.write_bytes(good[:at] + value.to_bytes(4, "little") + good[at + 4 :])
        with pytest.raises(DataError):
            records(open_order(place / "c.jsonl.zst", "index-perm"))
    path.write_bytes(good)
    plain = LocalFile(place / "plain.jsonl")
    path = place / "plain.jsonl.shuflr-idx"
    plain_index(plain, rebuild=True)
    good = path.read_bytes()
    for at, value in ((64, 2**63), (64, 0), (72, 1)):
        path.write_bytes(good[:at] + value.to_bytes(8, "little") + good[at + 8 :])
        with pytest.raises(DataError):
            records(open_order(place / "plain.jsonl", "index-perm"))
    path.write_bytes(good)


def test_a_flipped_bit_is_found_before_its_frame_is_handed_out(place, tmp_path):
    good = (place / "c.jsonl.zst").read_bytes()
    file = SeekableFile(place / "c.jsonl.zst")
    bad = bytearray(good)
    bad[file.table.offsets[5] + file.table.compressed[5] // 2] ^= 4
    (tmp_path / "bad.zst").write_bytes(bad)
    frame = bytes(file.decode(5, core.Work()))
    for mode in SEEKABLE_MODES:
        got = []
        with pytest.raises(DataError):
            for block in open_order(tmp_path / "bad.zst", mode, Options(seed=1)).epoch(Position()):
                got += bytes(block.data).splitlines()
        if not mode.startswith(("buffer", "frame-pool", "index-perm")):
            assert not set(got) & set(frame.splitlines()[1:-1])


def test_a_sorted_corpus_is_told_from_a_mixed_one(tmp_path):
    draw = random.Random(5)
    by_source = [b'{"s":"%s","v":"%s"}\n' % (bytes([97 + s]) * 8, bytes([97 + s]) * draw.randint(5, 90))
                 for s in range(10) for _ in range(300)]  # fmt: skip
    mixed = draw.sample(by_source, len(by_source))
    found = {}
    for name, lines in (("sorted", by_source), ("mixed", mixed)):
        with open(tmp_path / name, "wb", buffering=0) as out:
            write_seekable(io.BytesIO(b"".join(lines)), out, frame_size=3000)
        file = SeekableFile(tmp_path / name)
        found[name] = analyze(file, 32)
        table = forecasts(file, found[name])
        assert [row.memory_bytes for row in table[:-1]] == sorted(row.memory_bytes for row in table[:-1])
        chosen = recommended(table).order
        assert (chosen == "chunk-shuffled") == (name == "mixed")
    assert found["sorted"].likeness > 0.8 > 0.1 > found["mixed"].likeness
    assert not found["sorted"].safe
    assert likeness([]) == likeness([[[1.0], [1.0]], [[1.0], [1.0]]]) == 0.0
