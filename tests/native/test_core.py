"""The compiled core agrees with the published answers, and refuses hostile frames instead of reading past them."""

import hashlib
import json
import os
import random
import select
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
import xxhash
import zstandard

from shuflr import core
from shuflr.errors import DataError, OversizedRecord

VECTORS = Path(__file__).parent.parent / "vectors"
ANSWERS = json.loads((VECTORS / "known_answers.json").read_text())
KEY = bytes(range(32))


def compressed(data: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(3, **options).compress(data)  # type: ignore[arg-type]


def records_of(data: bytes) -> "list[bytes]":
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


@pytest.mark.parametrize("vector", json.loads((VECTORS / "shuffle_vectors.json").read_text())["vectors"], ids=str)
def test_permutations_are_those_of_the_public_client(vector):
    order = list(core.permutation(bytes.fromhex(vector["seed"]), vector["n"]))
    if "permutation" in vector:
        assert order == vector["permutation"]
    else:
        digest = hashlib.sha256("".join(f"{i}\n" for i in order).encode()).hexdigest()
        plain = hashlib.sha256("\n".join(map(str, order)).encode()).hexdigest()
        assert vector["sha256_of_decimal_lines"] in (digest, plain)
        assert order[:16] == vector["first16"] and order[-16:] == vector["last16"]


@pytest.mark.parametrize("n", [0, 1, 2, 33, 1000])
def test_a_permutation_of_64_bit_numbers_is_the_same(n):
    rng, out = core.ffi.new("shuflr_rng *"), core.ffi.new("uint64_t[]", n + 1)
    core.lib.shuflr_rng_init(rng, KEY, 0)
    core.lib.shuflr_permutation_u64(rng, out, n)
    assert list(out)[:n] == list(core.permutation(KEY, n))


def test_words_and_draws_are_the_published_ones():
    draws = core.Draws(bytes(32))
    assert [draws.u32() for _ in range(8)] == ANSWERS["zero_key_first_u32"]
    draws = core.Draws(bytes(32))
    assert [str(draws.u64()) for _ in range(4)] == ANSWERS["zero_key_first_u64"]


def test_a_word_stream_can_start_anywhere():
    draws = core.Draws(KEY)
    for position in range(300):
        assert draws.position == position
        assert core.Draws(KEY, position).u32() == draws.u32()


def test_checksums_agree_with_the_reference_at_every_length():
    data = random.Random(1).randbytes(200) if hasattr(random.Random, "randbytes") else bytes(range(200))
    for n in range(200):
        assert core.xxh64(data[:n]) == xxhash.xxh64_intdigest(data[:n])
        fnv = 0xCBF29CE484222325
        for byte in data[:n]:
            fnv = (fnv ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        assert core.fnv1a_low32(data[:n]) == fnv & 0xFFFFFFFF


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 1000])
def test_every_record_end_is_found_at_every_alignment(length):
    draw = random.Random(length)
    for step in (1, 2, 7, 64, 1000):
        data = bytes(0x0A if draw.randrange(step) == 0 else 0x0B for _ in range(length))
        ends = [i + 1 for i, byte in enumerate(data) if byte == 0x0A]
        assert list(core.record_ends(data)) == ends
        assert core.count_lf(data) == len(ends)
        for n in range(1, len(ends) + 2):
            want = (ends[n - 1], n) if n <= len(ends) else (length, len(ends))
            assert core.after_records(data, n) == want


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\n\n", b"a", b"a\nb", b"a\nb\n", b"x" * 5000 + b"\n" + b"y\n" * 900])
def test_a_frame_is_decoded_split_shuffled_and_gathered(data):
    work = core.Work()
    records = records_of(data)
    order = core.permutation(KEY, len(records))
    work.frame(compressed(data), len(data), 0, core.UNCHECKED, KEY)
    assert bytes(work.block) == b"".join(records[i] for i in order)
    assert (work.records, work.emitted, work.left) == (len(records), len(records), 0)
    work.frame(compressed(data), len(data), 0, core.UNCHECKED, KEY, first=1, limit=2, prefix=True)
    bare = [records[i].rstrip(b"\n") for i in order][1:3]
    assert bytes(work.block) == b"".join(struct.pack("<I", len(record)) + record for record in bare)


def test_several_frames_and_skippable_ones_count_as_one():
    data = struct.pack("<II", 0x184D2A50, 3) + b"abc" + compressed(b"a\n") + compressed(b"b\n")
    assert bytes(core.Work().decode(data, 4)) == b"a\nb\n"


def test_a_frame_that_does_not_declare_its_size_is_decoded_up_to_the_limit():
    data = zstandard.ZstdCompressor(3, write_content_size=False).compress(b"z" * 3_000_000)
    assert len(core.Work().decode(data)) == 3_000_000
    with pytest.raises(DataError):
        core.Work().decode(data, limit=2_999_999)
    with pytest.raises(DataError):
        core.Work().decode(data, size=2_999_999)


@pytest.mark.parametrize("size", [0, 1, 5, 7, 2**32 - 1])
def test_a_size_that_lies_is_refused_before_memory_is_taken(size):
    with pytest.raises(DataError):
        core.Work().decode(compressed(b"abc\ndef"[:6]), size)


def test_every_cut_and_every_flipped_bit_is_found():
    data = b"".join(b'{"n":%d}\n' % i for i in range(40))
    frame, checksum = core.Work().compress(data, 3)
    good = bytes(frame)
    work = core.Work()
    for cut in range(len(good)):
        with pytest.raises(DataError):
            work.frame(good[:cut], len(data), checksum & 0xFFFFFFFF, core.XXH64, KEY)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            work.frame(bytes(bad), len(data), checksum, core.XXH64, KEY)
        except DataError:
            continue
        assert sorted(records_of(bytes(work.block))) == sorted(records_of(data))  # a bit that zstd does not read


def test_oversized_records_are_skipped_counted_failed_or_passed():
    work = core.Work()
    data = b"12345\n1\n123456789\n22\n"
    frame = compressed(data)
    work.frame(frame, len(data), 0, core.UNCHECKED, None, max_line=6, policy=core.SKIP)
    assert (bytes(work.block), work.dropped) == (b"12345\n1\n22\n", 1)
    with pytest.raises(OversizedRecord) as caught:
        work.frame(frame, len(data), 0, core.UNCHECKED, None, max_line=6, policy=core.FAIL)
    assert (caught.value.offset, caught.value.length, bytes(work.block)) == (8, 10, b"12345\n1\n")
    work.frame(frame, len(data), 0, core.UNCHECKED, None, max_line=6, policy=core.PASSTHROUGH)
    assert bytes(work.block) == data


def test_json_syntax_is_checked_without_a_parser():
    good = ["{}", "[]", '{"a":[1,-0.5e+3,true,false,null,"\\u00e9\\n"]}', " 1 ", '"\xff"', "[" * 128 + "]" * 128]
    bad = ["", " ", "{", "[1,]", '{"a"}', '{"a":1,}', "01", "1.", "1e", '"\t"', '"\\x"', "tru", "1 2", "[" * 129, "nan"]
    for text in good:
        json_ok = core.json_fault(text.encode("latin-1"))
        assert json_ok is None, text
    for text in bad:
        assert core.json_fault(text.encode("latin-1")) is not None, text


def test_other_threads_run_while_the_core_works():
    data, turns = bytes(100_000_000), 0
    thread = threading.Thread(target=core.fnv1a_low32, args=(data,))
    thread.start()
    while thread.is_alive():
        turns += 1
    assert turns > 1000


@pytest.mark.parametrize("origin", ["wheel", "system"])
def test_either_zstd_serves(origin, monkeypatch):
    table = core.ffi.new("shuflr_zstd *")
    if origin == "wheel":
        table = core.ffi.new("shuflr_zstd *", core._wheel_addresses())
    elif not core._system_library(table, 1):
        pytest.skip("this system has no libzstd")
    monkeypatch.setattr(core, "_zstd", table)
    data = b"record\n" * 1000
    frame, _ = core.Work().compress(data, 3)
    assert bytes(core.Work().decode(frame, len(data))) == data


def test_a_library_that_is_no_zstd_is_not_taken():
    table = core.ffi.new("shuflr_zstd *")
    assert core.lib.shuflr_zstd_load(b"libm.so.6", table) == 0
    assert core.lib.shuflr_zstd_load(b"no such library", table) == 0


def test_a_gate_lets_in_so_many_in_the_order_they_came():
    gate = core.Gate(2)
    inside, most, order, lock = [0], [0], [], threading.Lock()

    def run(number):
        with gate:
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                order.append(number)
            time.sleep(0.002)
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] <= 2 and sorted(order) == list(range(40))


def test_a_gate_is_entered_when_the_socket_is_ready():
    gate = core.Gate(1)
    here, there = socket.socketpair()
    wake, waker = os.pipe()
    try:
        assert gate.poll(here.fileno(), select.POLLIN, timeout=0.01) == 0
        os.write(waker, b"!")
        assert gate.poll(here.fileno(), select.POLLIN, wake) == 0
        there.send(b"!")
        assert gate.poll(here.fileno(), select.POLLIN, wake) & select.POLLIN
        entered = threading.Event()
        late = threading.Thread(target=lambda: (gate.enter(), entered.set(), gate.leave()))
        late.start()
        assert not entered.wait(0.05)
        gate.leave()
        assert entered.wait(30)
        late.join()
    finally:
        here.close(), there.close(), os.close(wake), os.close(waker)
