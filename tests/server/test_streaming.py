"""A served stream is the order's own sequence, from any record on, whatever the client takes and the memory allows."""

import gzip
import random
import threading

import pytest

from shuflr import core
from shuflr.errors import DatasetChanged, InputError, Overloaded, UnknownDataset
from shuflr.order import Options, open_order
from shuflr.order.position import Position
from shuflr.records.sieve import Partition
from shuflr.server.catalog import Catalog
from shuflr.server.memory import Memory
from shuflr.server.streaming import Batches, Buffers, DecodedStream, Lines, Plan, RawStream, Request
from shuflr.wire import Decoder, EpochBoundary, PlainBatch, RawFrame, ServerHello, StreamClosed
from tests.server.conftest import lines, write_corpus

MODES = ["chunk-shuffled", "none", "buffer:50", "reservoir:70", "index-perm", "frame-pool:5"]
SHAPES = [{}, {"epochs": 3}, {"epochs": 2, "sample": 37}, {"rank": 1, "world_size": 3, "epochs": 2}]


def expected(path, request):
    """The records of each epoch, by the orders themselves."""
    partition = Partition.of(request.rank, request.world_size) if request.rank is not None else Partition()
    order = open_order(path, request.shuffle, Options(seed=request.seed, partition=partition))
    epochs = []
    for epoch in range(request.epochs):
        found = b"".join(bytes(block.data) for block in order.epoch(Position(epoch))).splitlines(True)
        sampled = request.sample is not None and not request.shuffle.startswith("reservoir")
        epochs.append(found[: request.sample] if sampled else found)
    return epochs


def drained(stream, draw=None, disturb=None):
    """All bytes of a stream whose client takes as many at a time as `draw` says, none among them."""
    out = bytearray()

    def write(view):
        count = len(view) if draw is None else min(len(view), draw.choice((0, 1, 100, 1000, 10_000)))
        out.extend(view[:count])
        return count

    while stream.offer(write):
        if disturb is not None:
            disturb(stream)
    stream.close()
    return bytes(out)


def messages(data):
    decoder = Decoder(ServerHello)
    decoder.feed(data)
    found = []
    while (message := decoder.next()) is not None:
        found.append(message)
    assert decoder.pending == 0
    return found


def catalog_of(path, **options):
    return Catalog([("corpus", path)], **{"count": False, **options})


def request_of(mode, shape, **more):
    return Request("corpus", seed=7, shuffle=mode, **{**shape, **more})


def opened(catalog, request, form=None, memory=None):
    return DecodedStream(Plan(catalog, request), memory or Memory(), form or Lines())


@pytest.fixture(scope="module")
def catalog(corpus):
    return catalog_of(corpus[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lines_are_the_orders_own(catalog, corpus, mode, shape):
    request = request_of(mode, shape)
    records = [record for epoch in expected(corpus[0], request) for record in epoch]
    stream = opened(catalog, request)
    assert drained(stream, random.Random(1)) == b"".join(records)
    assert (stream.records, stream.epochs) == (len(records), request.epochs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batches_hold_the_same_records_and_count_them(catalog, corpus, mode, shape):
    request = request_of(mode, shape)
    epochs = expected(corpus[0], request)
    got = messages(drained(opened(catalog, request, Batches(7)), random.Random(2)))
    wanted = []
    number = 0
    for epoch, records in enumerate(epochs):
        for at in range(0, len(records), 7):
            wanted.append(PlainBatch.of(number, epoch, [record[:-1] for record in records[at : at + 7]]))
            number += 1
        wanted.append(EpochBoundary(epoch, len(records)))
    wanted.append(StreamClosed(sum(map(len, epochs)), len(epochs)))
    assert got == wanted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stream_resumes_at_any_record(catalog, corpus, mode, shape):
    request = request_of(mode, shape)
    records = [record for epoch in expected(corpus[0], request) for record in epoch]
    first = len(records) // request.epochs
    for skip in {0, 1, 17, first - 1, first, first + 1, len(records) - 1, len(records), len(records) + 5}:
        stream = opened(catalog, request._replace(skip=skip))
        assert drained(stream) == b"".join(records[skip:]), skip
        assert stream.resumed_at == skip
        if skip <= len(records):
            assert (stream.records, stream.epochs) == (len(records), request.epochs)


@pytest.mark.parametrize("mode", ["none", "buffer:50", "reservoir:70"])
@pytest.mark.parametrize("form", ["plain", "gzip", "unaligned"])
def test_other_files_resume_as_well(tmp_path, mode, form):
    records = lines(400, seed=3)
    path = tmp_path / "corpus"
    if form == "plain":
        path.write_bytes(b"".join(records))
    elif form == "gzip":
        path.write_bytes(gzip.compress(b"".join(records)))
    else:
        write_corpus(path, records, frame_size=100, aligned=False)
    request = request_of(mode, {"epochs": 3, "rank": 1, "world_size": 2})
    whole = [record for epoch in expected(str(path), request) for record in epoch]
    for skip in (0, 5, len(whole) // 3, 2 * len(whole) // 3 + 1, len(whole)):
        assert drained(opened(catalog_of(str(path)), request._replace(skip=skip))) == b"".join(whole[skip:]), skip


@pytest.mark.parametrize("mode", MODES)
def test_a_block_that_was_taken_back_is_made_again(catalog, corpus, mode):
    """Whoever keeps the server waiting loses the block, at any byte of it, and misses nothing."""
    request = request_of(mode, {"epochs": 2})
    draw = random.Random(4)
    memory = Memory()

    def steal(stream):
        if stream._lease is not None and draw.random() < 0.3:
            stream._lease.touched = 0.0
            with memory._lock:
                memory._take_back()

    plain = drained(opened(catalog, request, Batches(7)))
    assert drained(opened(catalog, request, Batches(7), memory), draw, steal) == plain
    assert memory.held == memory._unused


def test_a_stalled_stream_makes_room_for_others(catalog, corpus):
    memory = Memory(blocks=1)
    stalled = opened(catalog, request_of("chunk-shuffled", {}), memory=memory)
    assert stalled.offer(lambda view: 10)
    other = opened(catalog, request_of("chunk-shuffled", {}), memory=memory)
    assert drained(other) == b"".join(record for epoch in expected(corpus[0], other.plan.request) for record in epoch)
    assert drained(stalled) == b"".join(expected(corpus[0], stalled.plan.request)[0])[10:]


def test_taking_copies_for_edges_whose_writes_block(catalog, corpus):
    stream = opened(catalog, request_of("chunk-shuffled", {}))
    pieces = []
    while piece := stream.take(1000):
        assert len(piece) <= 1000
        pieces.append(piece)
    assert b"".join(pieces) == b"".join(expected(corpus[0], stream.plan.request)[0])


def raw_records(found, skip_in_frame=0):
    """What a client makes of raw frames: decoded, split, shuffled, the first ones dropped."""
    work, records = core.Work(), []
    for message in found:
        if isinstance(message, RawFrame):
            work.decode(message.data)
            work.split(message.key)
            records += bytes(work.gather()).splitlines(True)
    return records[skip_in_frame:]


@pytest.mark.parametrize("shape", [{}, {"epochs": 3}, {"rank": 2, "world_size": 3, "epochs": 2}], ids=str)
def test_raw_frames_hold_the_same_records(catalog, corpus, shape):
    request = request_of("chunk-shuffled", shape)
    records = [record for epoch in expected(corpus[0], request) for record in epoch]
    for skip in (None, 0, 1, 333, len(records) // request.epochs, len(records) - 1, len(records)):
        stream = RawStream(Plan(catalog, request._replace(skip=skip)), Memory(), Buffers())
        found = messages(drained(stream, random.Random(skip)))
        assert raw_records(found, stream.skip_in_frame or 0) == records[skip or 0 :]
        assert found[-1] == StreamClosed(len(records), request.epochs)


def test_a_raw_sample_ends_with_the_frame_that_reaches_it(catalog, corpus):
    request = request_of("chunk-shuffled", {"sample": 30, "epochs": 2})
    found = messages(drained(RawStream(Plan(catalog, request), Memory(), Buffers())))
    frames = [message for message in found if isinstance(message, RawFrame)]
    ends = [message for message in found if isinstance(message, EpochBoundary)]
    assert sum(end.records for end in ends) == len(raw_records(frames))
    for end, epoch in zip(ends, expected(corpus[0], request)):
        assert 30 <= end.records < 60
        assert raw_records(frames)[:30] == epoch
        frames = frames[next(i for i in range(9) if len(raw_records(frames[:i])) == end.records) :]


def test_large_frames_go_out_in_pieces_with_the_right_checksum(tmp_path):
    content = random.Random(5).randbytes(3_000_000).replace(b"\n", b" ") + b"\n"
    path = write_corpus(tmp_path / "large.zst", [content], frame_size=1 << 20)
    for draw in (None, random.Random(6)):
        stream = RawStream(Plan(catalog_of(path), Request("corpus")), Memory(), Buffers())
        frame, *_ = messages(drained(stream, draw))
        assert bytes(core.Work().decode(frame.data)) == content


@pytest.mark.parametrize("mode", ["chunk-shuffled", "frame-pool:5"])
def test_resuming_in_a_file_that_nobody_counted_looks_no_further_than_it_has_to(tmp_path, corpus, mode):
    path = write_corpus(tmp_path / "c.zst", corpus[1])
    catalog = catalog_of(path)
    request = request_of(mode, {"epochs": 2})
    stream = opened(catalog, request._replace(skip=100))
    assert 0 < catalog["corpus"].frames - catalog["corpus"].counts.missing < catalog["corpus"].frames // 2
    first, second = expected(path, request)
    assert drained(stream) == b"".join(first[100:] + second)


def test_fragments_are_not_skipped_by_the_server(tmp_path):
    """Records of a file that was not cut at records run on into others in every order of its own."""
    path = write_corpus(tmp_path / "c.zst", lines(200), frame_size=100, aligned=False)
    stream = opened(catalog_of(path), request_of("chunk-shuffled", {"skip": 50}))
    assert stream.resumed_at is None
    assert drained(stream) == drained(opened(catalog_of(path), request_of("chunk-shuffled", {})))


def test_lengths_are_known_once_records_are_counted(tmp_path, corpus):
    path = write_corpus(tmp_path / "c.zst", corpus[1])
    catalog = catalog_of(path)
    for mode in MODES:
        assert Plan(catalog, request_of(mode, {"epochs": 2})).total_records is None
    catalog["corpus"].counts.fill(threading.Event())
    for mode in MODES:
        for shape in SHAPES:
            request = request_of(mode, shape)
            assert Plan(catalog, request).total_records == sum(map(len, expected(path, request))), (mode, shape)
    assert Plan(catalog, request_of("none", {"epochs": 0})).total_records is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", ["replaced", "truncated", "overwritten", "removed"])
def test_a_changed_file_ends_its_streams_without_a_wrong_byte(tmp_path, corpus, mode, change):
    path = write_corpus(tmp_path / "c.zst", corpus[1])
    request = request_of(mode, {"epochs": 50})
    stream = opened(catalog_of(path), request)
    out = bytearray()

    def write(view):
        out.extend(view)
        return len(view)

    assert stream.offer(write)
    if change == "replaced":
        write_corpus(tmp_path / "new.zst", lines(1000, seed=9))
        (tmp_path / "new.zst").rename(path)
    elif change == "truncated":
        with open(path, "r+b") as file:
            file.truncate(1000)
    elif change == "overwritten":
        (tmp_path / "c.zst").write_bytes((tmp_path / "c.zst").read_bytes()[::-1])
    else:
        (tmp_path / "c.zst").unlink()
    with pytest.raises(DatasetChanged, match="dataset changed"):
        while stream.offer(write):
            pass
    stream.close()
    records = [record for epoch in expected(corpus[0], request) for record in epoch]
    assert b"".join(records).startswith(out)


def test_raw_frames_of_a_changed_file_end_as_well(tmp_path, corpus):
    path = write_corpus(tmp_path / "c.zst", corpus[1])
    stream = RawStream(Plan(catalog_of(path), Request("corpus")), Memory(), Buffers())
    assert stream.offer(len)
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(DatasetChanged):
        while stream.offer(len):
            pass


@pytest.mark.parametrize(
    "request_, error, why",
    [
        (Request("other"), UnknownDataset, "unknown dataset: other"),
        (Request("corpus", shuffle="sideways"), InputError, "unknown shuffle mode"),
        (Request("corpus", rank=3, world_size=3), InputError, "below the world size"),
        (Request("corpus", rank=3), InputError, "together"),
        (Request("corpus", fingerprint="blake3:00"), DatasetChanged, "dataset changed"),
        (Request("corpus", shuffle="buffer:0"), InputError, "at least 1"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_sentence(catalog, request_, error, why):
    with pytest.raises(error, match=why):
        DecodedStream(Plan(catalog, request_), Memory(), Lines())


def test_an_order_that_holds_too_much_is_refused(catalog):
    stream = opened(catalog, request_of("buffer:50", {}), memory=Memory(limit=1 << 20))
    with pytest.raises(Overloaded, match="would hold"):
        stream.offer(len)
    stream.close()


def test_an_endless_stream_of_nothing_ends(tmp_path):
    path = write_corpus(tmp_path / "empty.zst", [])
    for mode in MODES:
        stream = opened(catalog_of(path), request_of(mode, {"epochs": 0}), Batches(7))
        assert messages(drained(stream)) == [EpochBoundary(0, 0), StreamClosed(0, 1)]
    assert messages(drained(RawStream(Plan(catalog_of(path), Request("corpus", epochs=0)), Memory(), Buffers()))) == [
        EpochBoundary(0, 0), StreamClosed(0, 1),
    ]  # fmt: skip


def test_an_endless_stream_resumes_far_out(catalog, corpus):
    request = request_of("chunk-shuffled", {"epochs": 0})
    skip = 1_000_000 * len(corpus[1]) + 3
    stream = opened(catalog, request._replace(skip=skip))
    order = open_order(corpus[0], "chunk-shuffled", Options(seed=7))
    data = b"".join(bytes(block.data) for block in order.epoch(Position(1_000_000))).splitlines(True)
    assert stream.take(100) == b"".join(data[3:])[:100]
