"""Bytes on disk: what is written is read back, what is damaged is found, and nothing is half there."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import stat
import struct

import pytest
import zstandard

from shuflr import core
from shuflr.cli import run
from shuflr.errors import DataError, InputError, NotSeekable, OversizedRecord, Truncated
from shuflr.records.atomic import AtomicFile, CannotCreate
from shuflr.records.codecs import ChunkReader, decoded
from shuflr.records.filters import Filter, filtered
from shuflr.records.inputs import Input, as_seekable, read_chunks
from shuflr.records.parquet import json_lines
from shuflr.records.seekable import SeekableFile
from shuflr.records.seektable import encode_seek_table, read_seek_table
from shuflr.records.sidecar import PLAIN, load_index, plain_index, seekable_index
from shuflr.records.sieve import Limits, Partition, Sieve, whole_records
from shuflr.records.source import LocalFile, RemoteFile
from shuflr.records.verification import verify_frames
from shuflr.records.writer import write_seekable

LINES = b"".join(b'{"n":%d,"pad":"%s"}\n' % (i, b"x" * (i % 90)) for i in range(3000))


def written(tmp_path, data=LINES, name="c.jsonl.zst", **options):
    path = tmp_path / name
    with open(path, "wb", buffering=0) as out:
        write_seekable(io.BytesIO(data), out, **options)
    return path


def content(path):
    file, work = SeekableFile(path), core.Work()
    return [bytes(file.decode(i, work)) for i in range(file.frames)]


# -- the writer


@pytest.mark.parametrize("size", [1, 2, 7, 64, 5000, 1 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_frames_end_with_the_first_record_end_at_or_behind_their_size(tmp_path, size, threads):
    frames = content(written(tmp_path, LINES[:20000], frame_size=size, threads=threads))
    assert b"".join(frames) == LINES[:20000] + (b"" if LINES[:20000].endswith(b"\n") else b"\n")
    for frame in frames[:-1]:
        assert frame.endswith(b"\n") and len(frame) >= size
        assert b"\n" not in frame[size - 1 : -1]


def test_frames_do_not_depend_on_how_the_bytes_arrive(tmp_path):
    whole = content(written(tmp_path, LINES, frame_size=700))
    for step in (1, 13, 4096):
        path = tmp_path / f"{step}.zst"
        with open(path, "wb", buffering=0) as out:
            pieces = (LINES[i : i + step] for i in range(0, len(LINES), step))
            write_seekable(ChunkReader(pieces), out, frame_size=700)
        assert content(path) == whole


def test_unaligned_frames_are_exact_and_nothing_is_added(tmp_path):
    frames = content(written(tmp_path, b"abc\ndefg", frame_size=3, aligned=False))
    assert frames == [b"abc", b"\nde", b"fg"]


def test_any_zstd_program_reads_what_is_written(tmp_path):
    path = written(tmp_path, frame_size=4000)
    with open(path, "rb") as file:
        assert zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read() == LINES


EDGES = [b"", b"\n", b"a", b"\xff\xfe\x00\r\n\xef\xbb\xbf\n\n\n", "\u2028\u2029\x85\n".encode()]


@pytest.mark.parametrize("data", EDGES)
def test_bytes_pass_untouched_but_for_a_missing_last_line_feed(tmp_path, data):
    added = b"" if not data or data.endswith(b"\n") else b"\n"
    assert b"".join(content(written(tmp_path, data))) == data + added


def test_a_record_of_a_hundred_megabytes_makes_a_frame_of_its_own(tmp_path):
    giant = b"x" * 100_000_000 + b"\n"
    path = written(tmp_path, b"a\n" + giant + b"b\n", level=1)
    file = SeekableFile(path)
    assert list(file.table.decompressed) == [100_000_003, 2]
    stored = written(tmp_path, b"a\n" + giant, name="d.zst", level=1)
    sieve = Sieve(Limits(16 << 20, core.SKIP), Partition())
    out = b"".join(bytes(block.data) for block in whole_records(Input(str(stored)).chunks(), sieve))
    assert (out, sieve.dropped) == (b"a\n", 1)


def test_bad_parameters_are_refused(tmp_path):
    for options in ({"frame_size": 0}, {"frame_size": 1 << 32}, {"level": 0}, {"level": 23}):
        with pytest.raises(InputError):
            written(tmp_path, **options)


# -- the seek table


def table_of(data):
    return read_seek_table(len(data), lambda offset, length: data[offset : offset + length])


def test_the_empty_file_is_seventeen_bytes():
    assert encode_seek_table([], True).hex() == "5e2a4d18090000000000000080b1ea928f"
    assert table_of(encode_seek_table([], True)).frames == 0


@pytest.mark.parametrize("checksums", [True, False])
def test_a_seek_table_survives_the_round_trip(checksums):
    entries = [(3, 10, 7), (4, 20, 8)]
    table = table_of(b"abcdefg" + encode_seek_table(entries, checksums))
    assert list(table.offsets) == [0, 3, 7]
    assert list(table.decompressed) == [10, 20]
    assert list(table.checksums) == ([7, 8] if checksums else [])


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: good[:-1],
        lambda good: good[:16],
        lambda good: b"x" + good,  # frames no longer sum to the file
        lambda good: good[1:],
        lambda good: good[:-5] + b"\x81" + good[-4:],  # a reserved bit
        lambda good: good[:-9] + struct.pack("<I", 2**32 - 1) + good[-5:],  # more frames than the file can hold
        lambda good: good[:7] + b"\0" + good[8:],  # the skippable magic
        lambda good: good[:11] + b"\xff" + good[12:],  # its size
        lambda good: good[:15] + bytes(4) + good[19:],  # a frame of no bytes
    ],
)
def test_a_seek_table_that_contradicts_itself_or_the_file_is_not_believed(damage):
    good = b"abcdefg" + encode_seek_table([(3, 10, 7), (4, 20, 8)], True)
    with pytest.raises(NotSeekable):
        table_of(damage(good))


def test_a_frame_that_decodes_to_another_size_than_the_table_says_is_damage(tmp_path):
    frame, checksum = core.Work().compress(b"abc\n", 3)
    for size in (0, 3, 5, 2**32 - 1):
        path = tmp_path / "lie.zst"
        path.write_bytes(bytes(frame) + encode_seek_table([(len(frame), size, checksum)], True))
        with pytest.raises(DataError):
            SeekableFile(path).decode(0, core.Work())


def test_every_flipped_bit_of_a_small_file_is_found_by_verify(tmp_path):
    good = written(tmp_path, b"one\ntwo\nthree\n", frame_size=5).read_bytes()
    unnoticed = 0
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path = tmp_path / "bad.zst"
        path.write_bytes(bad)
        try:
            found = verify_frames(SeekableFile(path), False, 1)
        except NotSeekable:
            continue
        if found.good:
            unnoticed += 1  # a bit that no decoder reads: the content is the same
            assert b"".join(content(path)) == b"one\ntwo\nthree\n"
    assert unnoticed <= 20


# -- inputs

PACKERS = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("name", PACKERS)
def test_members_are_read_one_after_the_other_and_cuts_are_seen(name):
    pack = PACKERS[name]
    data = pack(LINES) + pack(b"") + pack(b"last\n")

    def read(data, step=1000):
        return b"".join(bytes(chunk) for chunk in read_chunks(decoded(io.BytesIO(data)), step))

    assert read(data) == LINES + b"last\n"
    assert read(data, 1 << 20) == LINES + b"last\n"
    for cut in (len(data) - 1, len(data) // 2, 70):
        with pytest.raises(Truncated):
            read(data[:cut])
    bad = bytearray(data)
    bad[len(pack(LINES)) // 2] ^= 0xFF
    if name != "zstd":  # a plain zstd frame carries no checksum here
        with pytest.raises(Truncated):
            read(bytes(bad))


def test_padding_between_members_is_passed_over():
    data = gzip.compress(b"a\n") + bytes(512) + gzip.compress(b"b\n") + bytes(7)
    assert b"".join(bytes(chunk) for chunk in read_chunks(decoded(io.BytesIO(data)))) == b"a\nb\n"


def test_a_zstd_stream_may_begin_with_a_skippable_frame():
    data = struct.pack("<II", 0x184D2A53, 4) + b"meta" + zstandard.ZstdCompressor().compress(b"a\n")
    assert b"".join(bytes(chunk) for chunk in read_chunks(decoded(io.BytesIO(data)))) == b"a\n"


@pytest.mark.parametrize("offset", [0, 1, 699, 700, 5000, len(LINES) - 1, len(LINES), len(LINES) + 9])
def test_an_input_can_be_read_from_any_offset(tmp_path, offset):
    plain = tmp_path / "p.jsonl"
    plain.write_bytes(LINES)
    packed = tmp_path / "p.gz"
    packed.write_bytes(gzip.compress(LINES))
    for path in (plain, packed, written(tmp_path, frame_size=700)):
        assert b"".join(bytes(chunk) for chunk in Input(str(path)).chunks(offset)) == LINES[offset:]


def test_urls_are_read_like_files(tmp_path):
    import fsspec

    path = written(tmp_path, frame_size=700)
    with fsspec.open("memory://shuflr/c.jsonl.zst", "wb") as file:
        file.write(path.read_bytes())
    remote = SeekableFile("memory://shuflr/c.jsonl.zst")
    assert isinstance(remote.source, RemoteFile)
    assert len(remote.fingerprint) == 32
    assert bytes(remote.decode(3, core.Work())) == content(path)[3]
    assert b"".join(bytes(chunk) for chunk in Input("memory://shuflr/c.jsonl.zst").chunks()) == LINES


def test_a_file_opened_here_may_be_used_in_another_process(tmp_path):
    file = pickle.loads(pickle.dumps(SeekableFile(written(tmp_path, frame_size=700))))
    assert bytes(file.decode(0, core.Work())) == content(tmp_path / "c.jsonl.zst")[0]
    child = os.fork()
    if child == 0:
        try:
            ok = all(bytes(file.decode(i, core.Work())) for i in range(file.frames))
        finally:
            os._exit(0 if ok else 1)
    got = [bytes(file.decode(i, core.Work())) for i in range(file.frames)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert got == content(tmp_path / "c.jsonl.zst")


def test_a_read_that_the_system_cuts_short_goes_on(tmp_path, monkeypatch):
    path = written(tmp_path, frame_size=700)
    want = content(path)
    whole_preadv, whole_pread = os.preadv, os.pread
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: whole_preadv(fd, [views[0][:31]], at))
    monkeypatch.setattr(os, "pread", lambda fd, length, at: whole_pread(fd, min(length, 7), at))
    assert content(path) == want


def test_parquet_rows_become_values_where_the_public_program_gives_up(tmp_path):
    import datetime
    import decimal

    import pyarrow as pa
    import pyarrow.parquet as pq

    nested = pa.struct([("b", pa.int8()), ("a", pa.list_(pa.float32()))])
    table = pa.table(
        {
            "when": pa.array([1, None], pa.timestamp("ns", "UTC")),
            "day": pa.array([datetime.date(2024, 2, 29), None]),
            "price": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "kind": pa.array(["a", "b"]).dictionary_encode(),
            "nested": pa.array([{"b": 1, "a": [1.5, None]}, None], nested),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "clock": pa.array([1_500_000, None], pa.time64("us")),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    assert b"".join(json_lines(str(tmp_path / "t.parquet"))).decode().splitlines() == [
        '{"clock":"00:00:01.5","day":"2024-02-29","kind":"a","map":{"k":1},"nested":{"a":[1.5,null],"b":1},'
        '"price":"1.50","when":"1970-01-01T00:00:00.000000001Z"}',
        '{"clock":null,"day":null,"kind":"b","map":{},"nested":null,"price":null,"when":null}',
    ]


def test_parquet_is_found_behind_urls_and_on_the_hub(tmp_path, monkeypatch):
    import fsspec
    import huggingface_hub
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = fsspec.filesystem("memory")
    for name, ids in (("b", [3]), ("a", [1, 2])):
        pq.write_table(pa.table({"id": ids}), tmp_path / "t.parquet")
        files.pipe_file(f"/datasets/user/repo/data/{name}.parquet", (tmp_path / "t.parquet").read_bytes())
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", lambda: files)
    monkeypatch.setattr(files, "glob", lambda pattern, glob=files.glob: glob("/" + pattern))
    assert b"".join(Input("hf://user/repo").chunks()) == b'{"id":1}\n{"id":2}\n{"id":3}\n'
    assert b"".join(Input("memory://datasets/user/repo/data/b.parquet").chunks()) == b'{"id":3}\n'
    with pytest.raises(FileNotFoundError):
        list(Input("hf://user/other").chunks())
    with pytest.raises(InputError):
        list(Input("hf://user").chunks())


def test_a_damaged_table_or_an_unknown_scheme_is_an_error_with_a_name(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 this is not one PAR1")
    assert run(["-s", "none", str(tmp_path / "bad.parquet")]) == 65
    assert run(["-s", "none", "nosuch://host/file"]) == 64
    assert run(["-s", "chunk-shuffled", "nosuch://host/file"]) == 64


def test_what_a_saturate_run_landed_is_an_input_with_one_line_for_each_id_that_succeeded(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def part(number, ids, errors, texts):
        table = pa.table({"id": ids, "error": pa.array(errors, pa.string()), "text": pa.array(texts, pa.string())})
        pq.write_table(table, tmp_path / f"part-1700000000000-{number:06d}-{number:08x}.parquet")

    (tmp_path / "_manifest").mkdir()
    part(0, ["a", "b", "c"], [None, "boom", "boom"], ["one", None, None])
    part(1, ["b", "a"], [None, None], ["two", "one again"])
    out = tmp_path / "corpus.jsonl.zst"
    assert run(["convert", str(tmp_path), "-o", str(out)]) == 0
    assert b"".join(content(out)) == b'{"id":"a","text":"one again"}\n{"id":"b","text":"two"}\n'


# -- the sieve


def sifted(chunks, limits=Limits(), partition=Partition()):  # noqa: B008
    sieve = Sieve(limits, partition)
    return b"".join(bytes(block.data) for block in whole_records(chunks, sieve)), sieve.dropped


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 100])
def test_whole_records_come_out_however_the_chunks_fall(step):
    data = b"1\n22\n333\n\n4444\n\n\nlast"
    chunks = [data[i : i + step] for i in range(0, len(data), step)]
    assert sifted(chunks) == (data + b"\n", 0)
    assert sifted(chunks, Limits(4, core.SKIP)) == (b"1\n22\n333\n\n\n\nlast\n", 1)
    assert sifted(chunks, Limits(3, core.SKIP)) == (b"1\n22\n\n\n\n", 3)
    assert sifted(chunks, Limits(3, core.PASSTHROUGH)) == (data + b"\n", 0)
    assert sifted(chunks, partition=Partition(1, 3))[0] == b"22\n4444\nlast\n"
    assert sifted(chunks, Limits(4, core.SKIP), Partition(0, 2))[0] == b"1\n333\n\n"
    with pytest.raises(OversizedRecord) as caught:
        sifted(chunks, Limits(4, core.FAIL))
    assert (caught.value.offset, caught.value.length) == (10, 5)


@pytest.mark.parametrize("rank, world", [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0), (0, -3), (5, 3)])
def test_a_rank_that_does_not_exist_is_refused(rank, world):
    with pytest.raises(InputError):
        Partition.of(rank, world)


# -- filters


def test_filters_draw_then_gate_then_limit():
    lines = [b"%03d\n" % i for i in range(100)]

    def kept(**rules):
        return b"".join(bytes(b) for b in filtered([bytearray(b"".join(lines))], Filter(**rules), core.key_of_u64(42)))

    draws = core.Draws(core.key_of_u64(42))
    chosen = [line for line in lines if draws.u64() < int(0.25 * 2**64)]
    assert kept(sample_rate=0.25) == b"".join(chosen)
    assert kept(sample_rate=0.25, limit=3) == b"".join(chosen[:3])
    assert kept(sample_rate=1) == b"".join(lines)
    assert kept(sample_rate=0) == kept(limit=0) == b""
    assert kept(max_entropy=1.0) == b"".join(line for line in lines if len(set(line)) == 2)
    with pytest.raises(InputError):
        kept(sample_rate=1.5)


# -- indexes


def test_an_index_is_kept_and_used_until_the_file_changes(tmp_path, caplog):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"a\nbb\nccc")
    file = LocalFile(path)
    first = plain_index(file)
    assert [first.offsets[i] for i in range(4)] == [0, 2, 5, 8]
    beside = path.with_name(path.name + PLAIN.suffix)
    stamp = beside.stat().st_mtime_ns
    assert plain_index(LocalFile(path)).count == 3
    assert beside.stat().st_mtime_ns == stamp
    path.write_bytes(b"a\nbb\nccc\nd\n")
    assert plain_index(LocalFile(path)).count == 4
    assert "another state" in caplog.text or not caplog.records


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:20], lambda data: b"X" + data[1:],
                                    lambda data: data[:8] + b"\2" + data[9:], lambda data: data + b"\0",
                                    lambda data: data[:48] + b"\xff" * 8 + data[56:]])  # fmt: skip
def test_an_index_that_is_not_whole_is_built_again(tmp_path, damage):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"a\nbb\n")
    file = LocalFile(path)
    plain_index(file)
    beside = path.with_name(path.name + PLAIN.suffix)
    good = beside.read_bytes()
    beside.write_bytes(damage(good))
    assert load_index(str(beside), PLAIN, good[16:48]) is None
    assert plain_index(file).count == 2
    assert beside.read_bytes() == good


def test_an_index_that_cannot_be_kept_is_used_from_memory(tmp_path):
    path = written(tmp_path, frame_size=700)
    index = seekable_index(SeekableFile(path), str(tmp_path / "no" / "such" / "folder"), threads=2)
    assert index.count == 3000


# -- atomic files


@pytest.mark.parametrize("nameless", [True, False])
def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch, nameless):
    if not nameless:
        monkeypatch.setattr("shuflr.records.atomic._unnamed", lambda folder: None)
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with pytest.raises(RuntimeError), AtomicFile(target) as output:
        output.file.write(b"half")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    with AtomicFile(target) as output:
        output.file.write(b"new")
        assert target.read_bytes() == b"old"
        output.commit()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_output_that_cannot_be_created_says_so(tmp_path):
    with pytest.raises(CannotCreate):
        AtomicFile(tmp_path / "no" / "such" / "folder")
    with AtomicFile("/dev/null") as output:
        output.file.write(b"gone")
        output.commit()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_seekable_file_is_recognised_and_others_are_not(tmp_path):
    assert as_seekable(str(written(tmp_path))) is not None
    plain = tmp_path / "plain.zst"
    plain.write_bytes(zstandard.ZstdCompressor().compress(LINES))
    assert as_seekable(str(plain)) is None
    assert as_seekable("-") is None
