"""What a query asks for, by tables."""

import pytest

from shuflr.errors import InputError
from shuflr.server.query import parameters, parse_query
from shuflr.server.streaming import Request


@pytest.mark.parametrize("query, found", [
    (b"", {}),
    (b"a", {}),
    (b"a=", {b"a": ""}),
    (b"=a", {b"": "a"}),
    (b"a=1&a=2", {b"a": "2"}),
    (b"a=b=c", {b"a": "b=c"}),
    (b"&&a=1&", {b"a": "1"}),
    (b"a=x+y%20z", {b"a": "x y z"}),
    (b"a=%2B", {b"a": "+"}),
    (b"a=%", {b"a": "%"}),
    (b"a=%zz", {b"a": "%zz"}),
    (b"a=%ff", {b"a": "\ufffd"}),
    (b"%61=1", {b"%61": "1"}),
    (b"a=%c3%a4", {b"a": "ä"}),
])  # fmt: skip
def test_pairs(query, found):
    assert parameters(query) == found


@pytest.mark.parametrize("query, request_", [
    (b"", Request("d")),
    (b"seed=18446744073709551615", Request("d", seed=2**64 - 1)),
    (b"seed=007", Request("d", seed=7)),
    (b"seed=%2B7", Request("d", seed=7)),
    (b"seed=" + b"0" * 5000 + b"7", Request("d", seed=7)),
    (b"shuffle=none&epochs=0", Request("d", shuffle="none", epochs=0)),
    (b"sample=0", Request("d", sample=0)),
    (b"rank=1&world_size=3", Request("d", rank=1, world_size=3)),
    (b"skip=12&fingerprint=blake3:ab", Request("d", skip=12, fingerprint="blake3:ab")),
    (b"client_id=x&buffer_size=no&Seed=x", Request("d")),
])  # fmt: skip
def test_requests(query, request_):
    assert parse_query("d", query) == request_


@pytest.mark.parametrize("query, why", [
    (b"seed=", "bad seed: cannot parse integer from empty string"),
    (b"seed=x", "bad seed: invalid digit found in string"),
    (b"seed=-1", "bad seed: invalid digit found in string"),
    (b"seed=+1", "bad seed: invalid digit found in string"),
    (b"seed=%2B", "bad seed: invalid digit found in string"),
    (b"seed=1.0", "bad seed: invalid digit found in string"),
    ("seed=١".encode(), "bad seed: invalid digit found in string"),
    (b"seed=18446744073709551616", "bad seed: number too large to fit in target type"),
    (b"seed=" + b"9" * 9000, "bad seed: number too large to fit in target type"),
    (b"epochs=4294967296", "bad epochs: number too large to fit in target type"),
    (b"skip=x", "bad skip: invalid digit found in string"),
    (b"rank=0", "rank and world_size must be specified together"),
    (b"world_size=2", "rank and world_size must be specified together"),
])  # fmt: skip
def test_complaints(query, why):
    with pytest.raises(InputError) as raised:
        parse_query("d", query)
    assert str(raised.value) == why
