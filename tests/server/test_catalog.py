"""What a server keeps about its datasets: names, identities, and the records that it counts once."""

import fcntl
import gc
import logging
import os
import threading

import pytest

from shuflr import core
from shuflr.errors import DatasetChanged, InputError, UnknownDataset
from shuflr.server.catalog import Catalog, Dataset, parse_spec
from shuflr.server.memory import Memory
from shuflr.server.streaming import DecodedStream, Lines, Plan, Request
from shuflr.server.sums import Sums
from tests.conftest import wait_until
from tests.server.conftest import lines, write_corpus


@pytest.fixture
def path(tmp_path, corpus):
    return write_corpus(tmp_path / "corpus.jsonl.zst", corpus[1])


def counted(path):
    """The dataset opened by a new server whose counting has ended."""
    catalog = Catalog([("corpus", path)])
    assert wait_until(lambda: not catalog._counter.is_alive())
    catalog.close()
    return catalog["corpus"]


@pytest.mark.parametrize("text", ["", "a", "=path", "a=", "a b=path", "ä=path", "a/b=path", "../a=path"])
def test_a_dataset_is_named_by_a_plain_word(text):
    with pytest.raises(InputError):
        parse_spec(text)


def test_a_name_and_a_path_with_equals_signs():
    assert parse_spec(" web-2.1_a =/data/x=y.zst") == ("web-2.1_a", "/data/x=y.zst")


def test_a_name_may_be_given_once_and_a_path_must_be_a_file(path, tmp_path):
    with pytest.raises(InputError, match="twice"):
        Catalog([("a", path), ("a", path)])
    with pytest.raises(FileNotFoundError):
        Catalog([("a", str(tmp_path / "missing"))])
    with pytest.raises(InputError, match="not a regular file"):
        Catalog([("a", str(tmp_path))])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        Catalog([("a", str(tmp_path / "pipe"))])
    with pytest.raises(UnknownDataset):
        Catalog([])["a"]


def test_a_reload_opens_what_changed_and_keeps_the_rest(path, tmp_path):
    other = write_corpus(tmp_path / "other.zst", lines(50))
    catalog = Catalog([("a", path), ("b", other)], count=False)
    before = {dataset.id: dataset for dataset in catalog}
    write_corpus(tmp_path / "new.zst", lines(60))
    os.replace(tmp_path / "new.zst", other)
    with pytest.raises(DatasetChanged):
        Plan(catalog, Request("b"))
    catalog.reload([("a", path), ("b", other), ("c", path)])
    assert catalog["a"] is before["a"] and catalog["b"] is not before["b"] and len(catalog) == 3
    Plan(catalog, Request("b"))
    with pytest.raises(FileNotFoundError):
        catalog.reload([("a", path + ".missing")])
    assert len(catalog) == 3  # the old list stays


def test_records_are_counted_once_and_kept(path, corpus, monkeypatch):
    first = counted(path)
    assert first.records == len(corpus[1])
    assert os.path.getsize(path + ".shuflr-counts") == 56 + 8 * first.frames + 8
    monkeypatch.setattr(core.Work, "decode", None)  # nothing is decoded again
    again = Dataset("corpus", path)
    assert again.records == len(corpus[1])
    assert [again.counts.records(frame) for frame in range(again.frames)] == [
        first.counts.records(frame) for frame in range(first.frames)
    ]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"",
                                    lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:]])  # fmt: skip
def test_counts_that_are_damaged_are_made_again(path, corpus, damage):
    counted(path)
    with open(path + ".shuflr-counts", "rb") as file:
        data = file.read()
    with open(path + ".shuflr-counts", "wb") as file:
        file.write(damage(data))
    assert Dataset("corpus", path).records is None
    assert counted(path).records == len(corpus[1])


def test_counts_of_another_state_of_the_file_are_not_believed(path, corpus):
    counted(path)
    os.utime(path, ns=(1, 1))
    assert Dataset("corpus", path).records is None


def test_counts_that_cannot_be_kept_are_known_all_the_same(path, corpus, monkeypatch, caplog):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shuflr.server.counts.AtomicFile", full)
    with caplog.at_level(logging.WARNING, "shuflr"):
        assert counted(path).records == len(corpus[1])
    assert "cannot keep record counts" in caplog.text and not os.path.exists(path + ".shuflr-counts")


def test_streaming_counts_on_the_way(path, corpus):
    catalog = Catalog([("corpus", path)], count=False)
    stream = DecodedStream(Plan(catalog, Request("corpus")), Memory(), Lines())
    while stream.take(1 << 20):
        pass
    assert catalog["corpus"].records == len(corpus[1])


def test_counting_stops_at_once_and_keeps_what_it_has(tmp_path):
    path = write_corpus(tmp_path / "many.zst", lines(20_000), frame_size=64)
    catalog = Catalog([("corpus", path)])
    catalog.close()
    assert Dataset("corpus", path).counts.missing == catalog["corpus"].counts.missing


def test_of_several_processes_one_counts_and_the_others_take_over(path, corpus, monkeypatch):
    first, second = Dataset("corpus", path), Dataset("corpus", path)
    with open(path, "rb") as counting:
        fcntl.flock(counting, fcntl.LOCK_EX)  # as the process that counts does
        waiting = threading.Thread(target=second.counts.fill, args=(threading.Event(),))
        waiting.start()
        first.counts.complete()
        first.counts._save()
        monkeypatch.setattr(core.Work, "decode", None)
    waiting.join()
    assert second.records == len(corpus[1])


def test_a_reload_counts_what_is_new(path, tmp_path):
    catalog = Catalog([("a", path)])
    other = write_corpus(tmp_path / "other.zst", lines(50))
    catalog.reload([("a", path), ("b", other)])
    assert wait_until(lambda: catalog["b"].records == 50 and catalog["a"].records is not None)
    catalog.close()


def test_records_beyond_16_mib_are_left_out_of_decoded_streams_and_counted(tmp_path):
    long = b"x" * (16 << 20) + b"\n"
    path = write_corpus(tmp_path / "long.zst", [b"a\n", long, b"b\n", b"c\n"], frame_size=1 << 26)
    dataset = counted(path)
    assert dataset.records == 3 and dataset.counts.total(every=True) == 4
    stream = DecodedStream(Plan(Catalog([("corpus", path)]), Request("corpus", epochs=2)), Memory(), Lines())
    out = b"".join(iter(lambda: stream.take(1 << 20), b""))
    assert sorted(out.split()) == [b"a", b"a", b"b", b"b", b"c", b"c"] and stream.dropped == 2


def test_sums_are_bounded_and_go_with_their_dataset(tmp_path):
    path = write_corpus(tmp_path / "wide.zst", [os.urandom(4000).hex().encode() + b"\n"] * 3 + lines(5000), 1 << 13)
    dataset = Dataset("corpus", path)
    sums = Sums(limit=200)
    made = [sums.of(dataset, frame) for frame in range(dataset.frames)]
    assert made[0] is not None and None in made and sums.held == sum(len(one) for one in made if one)
    assert sums.of(dataset, 0) == made[0]
    del dataset
    gc.collect()
    assert sums.held == 0


def test_memory_is_lent_in_the_order_it_was_asked_for():
    memory = Memory(limit=100, blocks=10)
    first = memory.lease(80)
    got = []

    def ask(need):
        with memory.turns:
            lease = memory.lease(need)
        got.append(need)
        memory.release(lease)

    first._inside.acquire()  # its holder is busy with it: it cannot be taken back
    threads = []
    for need in (90, 30, 40):
        threads.append(threading.Thread(target=ask, args=(need,)))
        threads[-1].start()
        assert wait_until(lambda: len(memory._waiting) == len(threads))
    assert not got  # 30 would fit beside nothing: who came first is served first
    first._inside.release()
    memory.release(first)
    for thread in threads:
        thread.join()
    assert got[0] == 90 and sorted(got) == [30, 40, 90]


def test_what_nobody_uses_is_given_back(monkeypatch):
    memory = Memory(limit=1 << 30)
    lease = memory.lease(10)
    with lease as block:
        work = core.Work()
        work.load(b"x" * (1 << 20))
        block.swap(work)
        work.gather()
        block.swap(work)
    memory.release(lease)
    assert memory.held >= 1 << 20
    monkeypatch.setattr("shuflr.server.memory._IDLE", -1.0)
    memory.trim()
    assert memory.held == 0
