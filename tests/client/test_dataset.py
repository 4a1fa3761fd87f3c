"""`Dataset` against a running server: the same records in the same order over every transport, and where it stands."""

import copy
import gc
import json
import multiprocessing
import os
import pickle
import random
import socket
import threading
from itertools import islice

import pytest

from shuflr import Dataset
from shuflr.client.connect import ConnectionLost
from shuflr.errors import StreamError, TokenError
from tests.conftest import wait_until
from tests.faults.proxy import Fault, Proxy

TRANSPORTS = range(4)
VIA = pytest.mark.parametrize("via", TRANSPORTS, ids=["http", "wire", "http+unix", "wire+unix"])


def no_thread_left():
    return wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("shuflr-")])


@VIA
@pytest.mark.parametrize("mode", [None, "plain-batch", "zstd-batch"])
def test_every_transport_gives_what_the_command_line_gives(served, via, mode):
    dataset = Dataset(served.urls[via], seed=7, epochs=2, mode=mode)
    assert list(dataset) == served.streamed("--seed", "7", "--epochs", "2")
    assert len(dataset) == 6000 and no_thread_left()


@VIA
@pytest.mark.parametrize("shuffle", ["none", "buffer", "index-perm", "frame-pool:8"])
def test_every_order_comes_over_every_transport(served, via, shuffle):
    assert list(Dataset(served.urls[via], seed=3, shuffle=shuffle)) == served.streamed("--seed", "3", "-s", shuffle)


@VIA
def test_a_sample_is_cut_in_each_epoch_over_every_transport(served, via):
    first = served.streamed("--seed", "2")[:100]
    records = list(Dataset(served.urls[via], seed=2, sample=100, epochs=2))
    assert len(records) == 200 and records[:100] == first


@VIA
def test_ranks_share_the_records_among_them(served, via):
    parts = [list(Dataset(served.urls[via], seed=4, rank=rank, world_size=3)) for rank in range(3)]
    assert sorted(sum(parts, [])) == sorted(served.records) and all(parts)


@VIA
@pytest.mark.parametrize("sample", [None, 1000])
def test_it_goes_on_behind_any_record(served, via, sample):
    arguments = {"seed": 5, "epochs": 2, "sample": sample}
    full = list(Dataset(served.urls[via], **arguments))
    for taken in (0, 1, 777, 999, 1000, 1001, 1999, 2000, len(full) - 1, len(full)):
        dataset = Dataset(served.urls[via], **arguments)
        records = iter(dataset)
        head = list(islice(records, taken))
        state = json.dumps(dataset.state_dict())
        records.close()
        assert head + list(Dataset(served.urls[via], **arguments, resume=state)) == full, taken


def test_a_state_goes_from_one_transport_to_another(served):
    full = list(Dataset(served.urls[0], seed=6, epochs=2, sample=1200))
    for taken in (500, 1200, 1500):
        for before, after in ((0, 1), (1, 0)):
            dataset = Dataset(served.urls[before], seed=6, epochs=2, sample=1200)
            head = list(islice(dataset, taken))
            other = Dataset(served.urls[after], seed=6, epochs=2, sample=1200, resume=dataset.state_dict())
            assert head + list(other) == full


def test_a_loaded_state_serves_one_iterator_and_is_what_state_dict_says_until_then(served):
    dataset = Dataset(served.urls[1], seed=1)
    full = list(dataset)
    head = list(islice(dataset, 10))
    state = dataset.state_dict()
    assert state["records"] == len(head) == 10
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state
    assert list(dataset) == full[10:]
    assert list(dataset) == full


def test_batches_are_the_same_records_and_count_as_given_when_they_are_given(served):
    dataset = Dataset(served.urls[1], seed=1)
    batches = dataset.iter_batches(64)
    first = next(batches)
    assert len(first) == 64 and dataset.state_dict()["records"] == 64
    assert sum(batches, first) == list(Dataset(served.urls[1], seed=1))


def test_an_epoch_that_was_set_is_that_epoch_of_the_sequence(served):
    both = served.streamed("--seed", "9", "--epochs", "2")
    for url in served.urls:
        dataset = Dataset(url, seed=9)
        dataset.set_epoch(1)
        assert list(dataset) == both[3000:]
        assert len(dataset) == dataset.stats()["records"] == 3000
        dataset.set_epoch(0)
        assert list(dataset) == both[:3000]


def test_the_state_of_another_sequence_is_refused_with_the_difference(served):
    state = Dataset(served.urls[0], seed=1).state_dict()
    with pytest.raises(TokenError, match="seed was 1 and is 2"):
        Dataset(served.urls[0], seed=2, resume=state)
    with pytest.raises(TokenError, match="not the state"):
        Dataset(served.urls[0], resume="{")


def test_another_dataset_behind_the_same_name_is_refused(served):
    for url in served.urls[:2]:
        state = Dataset(url).state_dict()
        state.update(records=5, in_epoch=5, fingerprint="blake3:" + "0" * 64)
        with pytest.raises(StreamError, match="dataset changed|fingerprint"):
            list(Dataset(url, resume=state))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["ftp://h/x"], ValueError, "scheme"),
        (["http://h/"], ValueError, "names no dataset"),
        (["shuflr://h/x"], ValueError, "no port"),
        (["shuflr+unix://h/x"], ValueError, "unix socket"),
        ([["http://h/x", "http://h/y"]], ValueError, "one dataset"),
        ([], ValueError, "needs a URL"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_at_once(arguments, error, says):
    with pytest.raises(error, match=says):
        Dataset(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"rank": 1}, ValueError), ({"rank": 2, "world_size": 2}, ValueError), ({"world_size": 0}, ValueError),
        ({"seed": -1}, OverflowError), ({"seed": 1 << 64}, OverflowError), ({"epochs": 1 << 32}, OverflowError),
        ({"seed": None}, TypeError), ({"seed": "1"}, TypeError), ({"shuffle": 3}, TypeError),
        ({"timeout": None}, TypeError), ({"timeout": 0}, ValueError), ({"mode": "fast"}, ValueError),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused_at_once(arguments, error):
    with pytest.raises(error):
        Dataset("http://localhost:1/x", **arguments)


def test_what_the_server_refuses_is_an_oserror_with_its_reason_when_the_stream_is_opened(served):
    with pytest.raises(OSError, match="status code 404"):
        iter(Dataset(f"http://{served.http}/other"))
    with pytest.raises(OSError, match="rejected handshake: unknown dataset"):
        iter(Dataset(f"shuflr://{served.wire}/other"))
    with pytest.raises(OSError, match="cannot reach"):
        iter(Dataset("http://127.0.0.1:1/corpus", max_reconnects=0))


def test_the_next_url_is_taken_where_one_does_not_answer(served):
    assert list(Dataset(["shuflr://127.0.0.1:1/corpus", served.urls[1]])) == served.streamed()


def test_a_dataset_pickles_and_copies_and_its_place_does_not_go_along(served):
    dataset = Dataset(served.urls[1], seed=8)
    records = iter(dataset)
    next(records)
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert list(other) == served.streamed("--seed", "8")
    records.close()


def _in_child(dataset, records, answers):
    try:
        next(records)
        answers.put("it went on")
    except OSError as error:
        answers.put(str(error))
    answers.put(list(dataset))


@VIA
def test_a_forked_child_opens_its_own_stream_and_may_not_use_its_parents(served, via):
    """The fork happens while the thread that reads ahead runs."""
    dataset = Dataset(served.urls[via], seed=8)
    records = iter(dataset)
    head = list(islice(records, 10))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(dataset, records, answers))
    child.start()
    assert "belongs to process" in answers.get(timeout=60)
    assert answers.get(timeout=60) == served.streamed("--seed", "8")
    child.join(60)
    assert head + list(records) == served.streamed("--seed", "8")  # the parent's is as it was


def test_an_iterator_that_is_left_closes_its_connection_and_ends_the_thread(served):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for url in served.urls:
        records = iter(Dataset(url, epochs=0))
        next(records)
        del records
        untouched = iter(Dataset(url, epochs=0))
        del untouched
    assert no_thread_left()
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the bell of the reading thread stays


def test_many_streams_are_read_in_turn_by_one_thread(served):
    datasets = [Dataset(served.urls[seed % 2], seed=seed) for seed in range(40)]
    streams = [iter(dataset) for dataset in datasets]
    rounds = [[next(stream) for stream in streams] for _ in range(200)]
    assert len([t for t in threading.enumerate() if t.name.startswith("shuflr-")]) == 1
    for seed in (0, 1, 39):
        assert [records[seed] for records in rounds] == served.streamed("--seed", str(seed))[:200]
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("scheme", ["http", "shuflr"])
def test_a_hundred_cuts_leave_the_sequence_as_it_is(served, scheme):
    """B18: a dropped connection is no end, and costs nothing but itself."""
    draw = random.Random(scheme)
    target = served.http if scheme == "http" else served.wire

    def fault(number):
        if number >= 100:
            return Fault("pass")
        return Fault(draw.choice(("cut", "reset")), draw.randrange(600, 4000))

    with Proxy((target.split(":")[0], int(target.split(":")[1])), fault) as proxy:
        dataset = Dataset(f"{scheme}://{proxy.address}/corpus", seed=11, epochs=40, max_reconnects=1000)
        assert list(dataset) == served.streamed("--seed", "11", "--epochs", "40")
        assert dataset.stats()["reconnects"] >= 100 and proxy.connections > 100


def through(served, scheme, fault):
    host, port = (served.http if scheme == "http" else served.wire).split(":")
    return Proxy((host, int(port)), lambda number: fault)


@pytest.mark.parametrize("scheme", ["http", "shuflr"])
def test_a_stream_that_just_stops_is_an_error_and_not_an_end(served, scheme):
    with through(served, scheme, Fault("cut", 9000)) as proxy:
        dataset = Dataset(f"{scheme}://{proxy.address}/corpus", max_reconnects=0)
        with pytest.raises(ConnectionLost):
            list(dataset)


def test_a_damaged_byte_on_the_wire_is_found_before_its_records_and_the_stream_goes_on(served):
    for after in (1000, 4000, 8000):
        fault = Fault("flip", after, bit=3)
        host, port = served.wire.split(":")
        with Proxy((host, int(port)), lambda number, f=fault: f if number == 0 else Fault("pass")) as proxy:
            dataset = Dataset(f"shuflr://{proxy.address}/corpus", seed=2)
            assert list(dataset) == served.streamed("--seed", "2") and dataset.stats()["reconnects"] == 1


def test_a_damaged_byte_over_http_is_reported_at_the_latest_at_the_end(served):
    with through(served, "http", Fault("flip", 30000, bit=3)) as proxy:
        with pytest.raises(StreamError):
            list(Dataset(f"http://{proxy.address}/corpus", max_reconnects=0))


@pytest.mark.parametrize("scheme", ["http", "shuflr"])
def test_a_connection_that_falls_silent_is_replaced(served, scheme):
    with through(served, scheme, Fault("hold", 8000)) as proxy:
        dataset = Dataset(f"{scheme}://{proxy.address}/corpus", seed=2, read_timeout=0.3)
        assert list(dataset) == served.streamed("--seed", "2") and dataset.stats()["reconnects"] >= 1


@pytest.mark.parametrize("scheme", ["http", "shuflr"])
def test_a_server_that_stays_silent_is_an_error_after_the_time_outs(served, scheme):
    """B17: one read time-out, one attempt to connect again, and no more."""
    host, port = (served.http if scheme == "http" else served.wire).split(":")
    with Proxy((host, int(port)), lambda number: Fault("hold", 0 if number else 4000)) as proxy:
        with pytest.raises(ConnectionLost, match="time-out"):
            list(Dataset(f"{scheme}://{proxy.address}/corpus", read_timeout=0.3, timeout=0.3))
        assert proxy.connections == 2


@pytest.mark.parametrize("scheme", ["http", "shuflr"])
def test_a_stream_in_crumbs_is_the_same_stream(served, scheme):
    with through(served, scheme, Fault("crumbs", 0)) as proxy:
        records = list(islice(Dataset(f"{scheme}://{proxy.address}/corpus", seed=3), 200))
        assert records == served.streamed("--seed", "3")[:200]


class Answers:
    """A server that answers each connection with the next of some bytes, and closes it."""

    def __init__(self, *answers):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/corpus"
        self._thread = threading.Thread(target=self._serve, args=(answers,), daemon=True)
        self._thread.start()

    def _serve(self, answers):
        for answer in answers:
            connection, _ = self._listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._listener.close()
        self._thread.join(10)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_server_that_is_full_is_asked_again_when_it_said():
    full = b"HTTP/1.1 503 Full\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
    with Answers(full, CHUNKED + b"4\r\na\nb\n\r\n0\r\n\r\n") as server:
        dataset = Dataset(server.url)
        assert list(dataset) == [b"a", b"b"] and dataset.stats()["reconnects"] == 1


@pytest.mark.parametrize("length", [b"-5", b"+4", b"0x4", b"1_0", b"", b"g", b"1" * 40])
def test_a_chunk_whose_length_is_no_number_is_no_data(length):
    with Answers(CHUNKED + length + b"\r\nsome\n\r\n0\r\n\r\n") as server:
        with pytest.raises(ConnectionLost, match="length of a chunk"):
            list(Dataset(server.url, max_reconnects=0))


def test_the_last_line_of_a_failed_stream_is_its_error_and_a_record_like_it_before_the_end_is_data():
    line = b'{"_shuflr_error":"io","detail":"x"}\n'
    body = line + b"a\n" + line
    with Answers(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)) as server:
        records = iter(Dataset(server.url))
        assert [next(records), next(records)] == [line[:-1], b"a"]
        with pytest.raises(StreamError, match="server error"):
            next(records)
