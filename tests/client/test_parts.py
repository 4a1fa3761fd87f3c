"""The pure parts of the client: addresses, requests, states, and records out of blocks of bytes."""

import struct

import pytest

from shuflr import core
from shuflr.client.address import parse_address
from shuflr.client.request import Place, Sequence, opening, place_of, query, state_of
from shuflr.errors import DataError, TokenError
from shuflr.wire import PlainBatch, encode


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "dataset", "authority"),
    [
        ("http://h/ID", "h", 80, "", "ID", "h"),
        ("https://h:8443/a/b/ID?x=1#y", "h", 8443, "", "ID", "h:8443"),
        ("shuflr://[::1]:9000/my%2Dset", "::1", 9000, "", "my-set", "[::1]:9000"),
        ("shuflr+unix:///run/a%20b.sock/ID", "", 0, "/run/a b.sock", "ID", "localhost"),
    ],
)
def test_addresses(url, host, port, path, dataset, authority):
    address = parse_address(url)
    assert (address.host, address.port, address.socket_path, address.dataset_id) == (host, port, path, dataset)
    assert address.authority == authority


def test_the_request_is_written_as_the_public_client_writes_it():
    assert query(Sequence("c"), Place()) == "/v1/streams/c?shuffle=chunk-shuffled"
    full = Sequence("c", 5, "none", 0, 9, 1, 2)
    assert query(full, Place(7, 7, "blake3:ab")) == (
        "/v1/streams/c?seed=5&epochs=0&shuffle=none&sample=9&rank=1&world_size=2&skip=7&fingerprint=blake3%3Aab"
    )
    assert opening(Sequence("c"), Place(), None) == (
        b'{"dataset_id":"c","seed":0,"shuffle":"chunk-shuffled","max_batch_records":1024}'
    )


def test_a_state_comes_back_and_nonsense_in_it_is_refused():
    sequence = Sequence("c", 3)
    state = state_of(sequence, Place(10, 4, "blake3:ab"))
    assert place_of(state, sequence) == Place(10, 4, "blake3:ab")
    for wrong in ({"records": -1}, {"records": "x"}, {"in_epoch": 11}, {"version": 2}, {"fingerprint": 3}):
        with pytest.raises(TokenError):
            place_of({**state, **wrong}, sequence)


def test_batches_become_records_and_damage_is_found():
    messages = [encode(PlainBatch.of(i, 0, [b"a" * i, b"", b"\r"])) for i in range(5)]
    whole = b"".join(messages)
    records, used = core.batched(whole + messages[0][:-1])
    assert used == len(whole)
    assert records == [record for i in range(5) for record in (b"a" * i, b"", b"\r")]
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        try:
            found, read = core.batched(bytes(damaged))
        except DataError:
            continue
        assert found == records[: len(found)] and read < len(whole)  # a head that no longer says batch, or says more


def test_lengths_that_lie_are_refused():
    payload = struct.pack("<QII", 0, 0, 2) + struct.pack("<I", 3) + b"abc" + struct.pack("<I", 9)
    framed = struct.pack("<BI", 3, len(payload)) + payload
    with pytest.raises(DataError, match="beyond"):
        core.batched(framed + struct.pack("<Q", core.xxh3(framed)))
    for beyond in range(1, 9):
        with pytest.raises(DataError, match="beyond"):
            core.prefixed(struct.pack("<I", 3 + beyond) + b"abc", 1)
    for data, count in ((b"", 1), (b"\xff\xff\xff\xff", 1), (b"\0\0\0", 1), (b"", -1)):
        with pytest.raises(DataError):
            core.prefixed(data, count)


def test_a_frame_becomes_records_without_their_line_feeds():
    work = core.Work()
    compressed, _ = work.compress(b"a\nbb\r\n\nlast", 3)
    work.decode(bytes(compressed))
    work.split(None)
    assert work.listed() == [b"a", b"bb\r", b"", b"last"]
    assert work.listed(3) == [b"last"] and work.listed(9) == []
