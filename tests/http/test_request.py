"""What a user asks for, and the bytes it becomes: made once, so that every retry sends the same."""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from email import message_from_bytes
from email.message import Message
from types import MappingProxyType
from typing import Any

import pytest

from saturate import Request, make_json_request, make_multipart_request
from saturate.http.request import Encoded, encode

ROUTE = "/chat/completions"


def body_of(payload: Any) -> bytes:
    return encode(payload, ROUTE).body


def test_json_is_compact_in_insertion_order_and_its_text_is_literal():
    encoded = encode({"z": 1, "a": ["é", "日本 \u2028"], "emoji": "🎲", "q": '"\\/\n'}, ROUTE)
    expected = '{"z":1,"a":["é","日本 \u2028"],"emoji":"🎲","q":"\\"\\\\/\\n"}'
    assert encoded == Encoded(ROUTE, expected.encode(), "application/json", None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [{"deep": float("nan")}]])
def test_what_json_does_not_have_is_refused(value):
    with pytest.raises(ValueError):
        encode({"temperature": value}, ROUTE)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(TypeError):
        encode({"input": value}, ROUTE)


def test_a_lone_surrogate_cannot_be_sent():
    with pytest.raises(UnicodeEncodeError):
        encode({"input": "\ud800"}, ROUTE)


def test_any_mapping_is_a_body():
    assert body_of(OrderedDict(b=1, a=2)) == b'{"b":1,"a":2}'
    with pytest.raises(TypeError):
        body_of(MappingProxyType({"b": object()}))


def test_a_read_only_mapping_is_a_body_too():
    """It passes the type check, so it must be sent."""
    assert body_of(MappingProxyType({"b": 1})) == b'{"b":1}'


def test_none_is_a_post_without_a_body():
    assert encode(None, ROUTE) == Encoded(ROUTE, b"", None)
    assert encode(make_json_request("/x", None), ROUTE) == Encoded("/x", b"", None)


@pytest.mark.parametrize("payload", ["text", b"bytes", [1], 7, ("route", {})])
def test_anything_else_is_refused_with_a_sentence(payload):
    with pytest.raises(TypeError, match=f"to_request must return a dict .* got {type(payload).__name__}"):
        encode(payload, ROUTE)


def test_a_request_goes_to_its_own_route_and_may_be_any_json():
    assert encode(make_json_request("/rerank", [1, "a", None]), ROUTE).route == "/rerank"
    assert encode(make_json_request("/rerank", [1, "a", None]), ROUTE).body == b'[1,"a",null]'
    assert encode(make_json_request("/rerank", {}), ROUTE).body == b"{}"


def test_the_model_is_kept_for_the_probe():
    assert encode({"model": "m", "input": "x"}, ROUTE).model == "m"
    assert encode({"model": 7}, ROUTE).model is None
    assert encode(make_multipart_request("/audio", {"model": "whisper"}), ROUTE).model == "whisper"


def test_positional_order_is_kind_route_json_data_files():
    assert Request("json", "/r", {"a": 1}) == make_json_request("/r", {"a": 1})
    assert Request("multipart", "/r", None, {"d": 1}, {"f": b""}) == make_multipart_request("/r", {"d": 1}, {"f": b""})


@pytest.mark.parametrize("kind", ["form", "", None, "JSON"])
def test_a_kind_that_does_not_exist_fails_when_it_is_made(kind):
    with pytest.raises(ValueError, match='kind must be "json" or "multipart"'):
        Request(kind, "/x")


@pytest.mark.parametrize("route", ["chat", "", None, "http://h/x", 7])
def test_a_route_without_a_slash_fails_when_the_request_is_made(route):
    with pytest.raises(ValueError, match='starts with "/"'):
        make_json_request(route, {})


@pytest.mark.parametrize("route", ["/chat completions", "/x\r\nX-Evil: 1", "/x\n", "/größe", "/\x00"])
def test_a_route_that_no_request_line_can_hold_fails_when_the_request_is_made(route):
    """Else it is a failed attempt for every row, five times over, and opens the breaker of a healthy server."""
    with pytest.raises(ValueError, match="route"):
        make_json_request(route, {})


def test_a_model_that_is_no_text_is_not_put_into_a_probe():
    """The probe is JSON: bytes in it would raise while the circuit is open."""
    for model in (b"whisper", ["a", "b"], 7):
        assert not isinstance(
            encode(make_multipart_request("/audio", {"model": model}), ROUTE).model, (bytes, list, int)
        )


def parts_of(encoded: Encoded) -> list[Message]:
    assert encoded.content_type.startswith("multipart/form-data; boundary=")
    whole = message_from_bytes(f"Content-Type: {encoded.content_type}\r\n\r\n".encode() + encoded.body)
    assert whole.is_multipart()
    return whole.get_payload()


def shape(part: Message) -> tuple[Any, Any, bytes]:
    """(field name, file name, content)"""
    name = part.get_param("name", header="content-disposition")
    return name, part.get_filename(), part.get_payload(decode=True)


def multipart(data: Any = None, files: Any = None) -> list[Message]:
    return parts_of(encode(make_multipart_request("/audio/transcriptions", data, files), ROUTE))


def test_fields_and_files_are_parts_in_their_order():
    parts = multipart({"model": "m", "language": "de"}, {"file": b"RIFF\x00\xff"})
    assert [shape(part) for part in parts] == [
        ("model", None, b"m"),
        ("language", None, b"de"),
        ("file", "file", b"RIFF\x00\xff"),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (1.5, "1.5"), (None, "null"), (7, "7"), ("é", "é"), ({"a": "é"}, '{"a": "é"}')],
)
def test_a_fields_value_is_text_as_json_spells_it(value, text):
    [part] = multipart({"field": value})
    assert shape(part) == ("field", None, text.encode())


def test_bytes_in_a_field_are_sent_as_they_are():
    [part] = multipart({"field": b"\x00\xff"})
    assert part.get_payload(decode=True) == b"\x00\xff"


def test_a_list_is_the_field_once_for_each_item():
    parts = multipart({"timestamp_granularities[]": ["word", "segment"], "n": (1, 2)})
    assert [shape(part)[::2] for part in parts] == [
        ("timestamp_granularities[]", b"word"),
        ("timestamp_granularities[]", b"segment"),
        ("n", b"1"),
        ("n", b"2"),
    ]


def test_nan_in_a_field_is_refused():
    with pytest.raises(ValueError):
        multipart({"temperature": float("nan")})


@pytest.mark.parametrize(
    ("value", "file_name", "content", "content_type"),
    [
        (b"abc", "file", b"abc", None),
        (bytearray(b"abc"), "file", b"abc", None),
        ("text é", "file", "text é".encode(), None),
        (io.BytesIO(b"abc"), "file", b"abc", None),
        (("clip.wav", b"abc"), "clip.wav", b"abc", "audio/x-wav"),
        (("clip.wav", b"abc", "audio/wav"), "clip.wav", b"abc", "audio/wav"),
        (("clip.wav", io.BytesIO(b"abc"), "audio/wav"), "clip.wav", b"abc", "audio/wav"),
        ((None, b"abc"), "file", b"abc", None),
        (("clip.bin", "text"), "clip.bin", b"text", "application/octet-stream"),
    ],
)
def test_a_file_is_its_content_or_a_tuple_with_its_name_and_type(value, file_name, content, content_type):
    [part] = multipart(files={"file": value})
    assert shape(part) == ("file", file_name, content)
    if content_type is not None:
        assert part.get_content_type() == content_type


def test_an_open_file_is_sent_under_its_own_name_and_read_once(tmp_path):
    path = tmp_path / "Grüße 1.wav"
    path.write_bytes(bytes(range(256)))
    with path.open("rb") as file:
        encoded = encode(make_multipart_request("/a", files={"file": file}), ROUTE)
        assert file.read() == b""
    assert bytes(range(256)) in encoded.body
    assert "Grüße 1.wav".encode() in encoded.body or b"Gr%C3%BC%C3%9Fe" in encoded.body


def test_a_file_of_another_type_is_refused_with_its_name():
    with pytest.raises(TypeError, match="file 'audio' must be bytes, str or an open binary file, got int"):
        multipart(files={"audio": 7})
    with pytest.raises(TypeError, match="file 'audio'"):
        multipart(files={"audio": ("clip.wav", None)})


def test_a_file_opened_as_text_is_sent_as_its_text(tmp_path):
    (tmp_path / "a.txt").write_text("é", encoding="utf-8")
    with open(tmp_path / "a.txt", encoding="utf-8") as file:
        [part] = multipart(files={"file": file})
    assert shape(part) == ("file", "a.txt", "é".encode())


def test_a_multipart_request_without_parts_is_still_one():
    encoded = encode(make_multipart_request("/a"), ROUTE)
    assert encoded.content_type.startswith("multipart/form-data") and encoded.route == "/a"


def test_the_body_is_what_a_json_reader_gives_back():
    value = {"big": 10**30, "f": 1e-7, "n": None, "t": True, "l": [[], {}], "s": "\x00\x7f\u0085"}
    assert json.loads(body_of(value)) == value
