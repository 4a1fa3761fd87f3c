"""The codec against the protocol's known answers, the recorded exchanges, and bytes that nobody should send."""

import json
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from shuflr import core
from shuflr.wire import (
    AddCredit,
    Cancel,
    ClientHello,
    Decoder,
    EpochBoundary,
    Heartbeat,
    OpenStream,
    PlainBatch,
    Pong,
    RawFrame,
    ServerHello,
    StreamClosed,
    StreamError,
    StreamOpened,
    WireError,
    ZstdBatch,
    encode,
)

VECTORS = Path(__file__).parent.parent / "vectors"
EXAMPLES = json.loads((VECTORS / "known_answers.json").read_text())["frame_examples"]
RECORDED = json.loads((VECTORS / "recorded" / "wire.json").read_text())

KNOWN = {
    "EpochBoundary(0,3)": EpochBoundary(0, 3),
    "StreamClosed(6,2)": StreamClosed(6, 2),
    "PlainBatch(0,0,[a,bc])": PlainBatch.of(0, 0, [b"a", b"bc"]),
    "Heartbeat(1)": Heartbeat(1),
    "StreamError(8,fatal,'x')": StreamError(8, True, "x"),
    "AddCredit(65536)": AddCredit(65536),
    "Cancel('bye')": Cancel(b"bye"),
}

EVERY = [
    ServerHello(b"{}", mode=3),
    RawFrame(7, bytes(range(32)), b"stored"),
    ZstdBatch(1, 2, 3, b"packed"),
    *KNOWN.values(),
    Pong(9),
]


def messages(decoder, data, piece=None):
    """What a decoder makes of bytes that come in pieces, with all views copied."""
    found, at = [], 0
    while at < len(data) or not data:
        step = piece() if piece else len(data)
        room = decoder.room()
        part = data[at : at + min(step, len(room))]
        room[: len(part)] = part
        decoder.received(len(part))
        at += len(part)
        while (message := decoder.next()) is not None:
            held = getattr(message, "data", None)
            found.append(message if held is None else replace(message, data=bytes(held)))
        if not data:
            break
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_known_answers(name):
    assert encode(KNOWN[name]).hex() == EXAMPLES[name]
    assert messages(Decoder(ServerHello), bytes.fromhex(EXAMPLES[name])) == [KNOWN[name]]


@pytest.mark.parametrize("seed", range(20))
def test_messages_come_whole_out_of_pieces_of_any_size(seed):
    draw = random.Random(seed)
    sent = draw.choices(EVERY, k=30) + [RawFrame(1, bytes(32), draw.randbytes(draw.randrange(200_000)))]
    draw.shuffle(sent)
    most = draw.choice((1, 7, 1000, 100_000))
    decoder = Decoder(ServerHello)
    assert messages(decoder, b"".join(map(encode, sent)), lambda: draw.randint(1, most)) == sent
    assert decoder.pending == 0


def test_feeding_copies_in_what_is_elsewhere():
    decoder = Decoder(ServerHello)
    decoder.feed(encode(Heartbeat(1)) + encode(Pong(2))[:4])
    assert decoder.next() == Heartbeat(1) and decoder.next() is None
    decoder.feed(encode(Pong(2))[4:])
    assert decoder.next() == Pong(2)


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: entry["name"])
def test_recorded_messages_decode_and_encode_to_the_same_bytes(entry):
    answer = bytes.fromhex(entry.get("server_hex") or "")
    read = messages(Decoder(ServerHello), answer)
    assert b"".join(map(encode, read)) == answer
    if entry.get("messages") and answer:
        assert [message.kind for message in read] == [known["kind"] for known in entry["messages"]]
    if answer and read[0].status == 0:
        opened = StreamOpened.parse(read[0].opened)
        assert opened.encode() == read[0].opened
    assert decoded_request(bytes.fromhex(entry["client_hex"])) == expected_request(entry)


def decoded_request(data):
    try:
        first = messages(Decoder(ClientHello), data)
    except WireError:
        return "undecodable"
    if not first or not isinstance(first[0], ClientHello):
        return "no hello"
    try:
        OpenStream.parse(first[0].open)
    except WireError:
        return "refused"
    return "ok"


def expected_request(entry):
    """What the public server made of what the client sent: it closes in silence, refuses, or answers."""
    hello = (entry.get("messages") or [None])[0]
    if entry["name"] in ("half hello", "nothing", "first message heartbeat"):
        return "no hello"
    if entry["name"] == "bad checksum credit" or hello is None:
        return "undecodable"
    bad_request = hello["status"] == 1 and entry["name"] != "unknown dataset" and "bearer" not in entry["name"]
    return "refused" if bad_request else "ok"


@pytest.mark.parametrize(
    "data, why",
    [
        (b"\x63", "no kind of message 99"),
        (b"\x08", "no kind of message 8"),
        (struct.pack("<BI", 3, (512 << 20) + 1), "beyond"),
        (encode(Heartbeat(1))[:-1] + b"\0", "checksum"),
        (b"\x00" + struct.pack("<I", 3) + b"abc", "at least"),
    ],
)
def test_what_is_not_the_protocol_is_refused_as_soon_as_it_shows(data, why):
    with pytest.raises(WireError, match=why):
        messages(Decoder(ClientHello), data)


def test_a_message_at_the_cap_is_not_beyond_it():
    decoder = Decoder(ClientHello)
    decoder.feed(struct.pack("<BI", 3, 512 << 20))
    assert decoder.next() is None


def test_memory_grows_with_what_arrived_and_not_with_what_was_announced():
    decoder = Decoder(ClientHello)
    decoder.feed(struct.pack("<BI", 0, 512 << 20))
    assert decoder.next() is None
    for _ in range(10):
        room = decoder.room()
        assert len(room) <= 4 * max(decoder.pending, 4096)
        decoder.received(len(room))
        assert decoder.next() is None


def test_a_lower_limit_before_a_peer_is_known():
    decoder = Decoder(ClientHello, limit=1000)
    decoder.feed(struct.pack("<BI", 0, 1001))
    with pytest.raises(WireError, match="beyond"):
        decoder.next()


@pytest.mark.parametrize(
    "message",
    [
        struct.pack("<QII", 0, 0, 1 << 31),
        struct.pack("<QII", 0, 0, 2) + struct.pack("<I", 100) + bytes(20),
        b"short",
    ],
)
def test_a_batch_that_lies_about_its_records_is_refused(message):
    framed = struct.pack("<BI", 3, len(message)) + message
    with pytest.raises(WireError):
        for batch in messages(Decoder(ServerHello), framed + struct.pack("<Q", xxhash.xxh3_64_intdigest(framed))):
            list(batch.unpacked())


@pytest.mark.parametrize(
    "text, why",
    [
        ('{"dataset_id":"a","seed":-1}', "seed"),
        ('{"dataset_id":"a","seed":18446744073709551616}', "seed"),
        ('{"dataset_id":"a","seed":1.0}', "seed"),
        ('{"dataset_id":"a","seed":true}', "seed"),
        ('{"dataset_id":"a","seed":null}', "seed"),
        ('{"dataset_id":"a","epochs":4294967296}', "epochs"),
        ('{"dataset_id":"a","seed":NaN}', "NaN"),
        ('{"dataset_id":"a","dataset_id":"b"}', "twice"),
        ('{"dataset_id":1}', "string"),
        ('{"dataset_id":"a","mode":"fast"}', "mode"),
        ('["a"]', "object"),
        ("[" * 100_000, "parse"),
        ("", "parse"),
    ],
)
def test_a_request_is_strict_json(text, why):
    with pytest.raises(WireError, match=why):
        OpenStream.parse(text.encode())
    with pytest.raises(WireError):
        OpenStream.parse(text.encode("utf-16"))


def test_requests_and_answers_keep_their_extensions():
    request = OpenStream("a", seed=3, epochs=0, skip=7, fingerprint="blake3:00", mode="zstd-batch")
    assert OpenStream.parse(request.encode()) == request
    assert OpenStream("hello", max_batch_records=64).encode() == (
        b'{"dataset_id":"hello","seed":0,"shuffle":"chunk-shuffled","max_batch_records":64}'
    )
    opened = StreamOpened("a", "blake3:00", 3, "none", 64, resumed_at=7, total_records=12)
    assert StreamOpened.parse(opened.encode()) == opened
    assert b"skip_in_frame" not in opened.encode()
    assert StreamOpened.parse(b"anything") is None


def test_checksums_are_those_of_the_xxhash_package():
    data = random.Random(1).randbytes(5000)
    for size in [*range(300), *range(900, 1200), 2047, 2048, 2049, 5000]:
        assert core.xxh3(data[:size]) == xxhash.xxh3_64_intdigest(data[:size]), size


@pytest.mark.parametrize("seed", range(20))
def test_a_checksum_of_pieces_is_that_of_the_whole(seed):
    draw = random.Random(seed)
    data = draw.randbytes(draw.choice((100, 241, 1024, 1025, 4096, 9000)))
    digest, at = core.Xxh3(), 0
    while at < len(data):
        step = draw.choice((1, 63, 64, 500, 1024, 1025, 3000))
        digest.update(data[at : at + step])
        at += step
    assert digest.digest() == xxhash.xxh3_64_intdigest(data)


def test_a_frames_sums_give_the_checksum_under_any_head():
    data = random.Random(2).randbytes(5000)
    for size in [*range(2008, 2200), 3030, 3031, 4055, 5000]:
        head = random.Random(size).randbytes(41)
        sums = core.frame_sums(data[:size])
        assert core.raw_frame_checksum(head, sums, size) == xxhash.xxh3_64_intdigest(head + data[:size]), size
    assert core.frame_sums(data[:2007]) == b""
    with pytest.raises(ValueError):
        core.raw_frame_checksum(bytes(41), b"", 2007)
