"""What a user asks for, and the bytes it becomes.

Invariant: a payload's bytes are made once, before its first attempt, so every retry sends the same bytes
and no file object is read twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from urllib3.filepost import encode_multipart_formdata


@dataclass
class Request:
    """A request with a route of its own.

    kind: "json" or "multipart". route: appended to the endpoint, starts with "/". json: the body of a JSON
    request. data: form fields of a multipart request, name -> value. files: name -> content, or
    (file name, content[, content type]); content is bytes, str or an open binary file.
    """

    kind: str
    route: str
    json: Optional[Any] = None
    data: Optional[Mapping[str, Any]] = None
    files: Optional[Mapping[str, Any]] = None

    def __post_init__(self) -> None:
        if self.kind not in ("json", "multipart"):
            raise ValueError(f'Request kind must be "json" or "multipart", got {self.kind!r}')
        check_route(self.route)


JSON = "application/json"

Payload = Union[Request, Mapping[str, Any], None]


def make_json_request(route: str, json: Any) -> Request:
    """A request that POSTs `json` to `route`."""
    return Request("json", route, json=json)


def make_multipart_request(
    route: str, data: Optional[Mapping[str, Any]] = None, files: Optional[Mapping[str, Any]] = None
) -> Request:
    """A request that POSTs form fields `data` and `files` to `route` as multipart/form-data (audio, images)."""
    return Request("multipart", route, data=data, files=files)


def check_route(route: Any) -> str:
    """`route`, or ValueError with a sentence unless it starts with a slash and can stand in a request line."""
    if not isinstance(route, str) or not route.startswith("/"):
        raise ValueError(
            f'a route is appended to the endpoint and starts with "/", such as "/chat/completions"; got {route!r}'
        )
    check_visible_ascii("route", route)
    return route


def check_visible_ascii(what: str, text: str) -> None:
    """ValueError unless `text` can stand in a request line: visible ASCII characters only."""
    if not text.isascii() or any(c <= " " or c == "\x7f" for c in text):
        raise ValueError(f"{what} {text!r} holds a space, a control or a non-ASCII character; percent-encode it")


@dataclass(frozen=True)
class Encoded:
    """A request ready to send: `content_type` is None when there is no body."""

    route: str
    body: bytes
    content_type: Optional[str]
    model: Optional[str] = None


def encode(payload: Payload, route: str) -> Encoded:
    """The bytes of `payload`; `route` is where a payload without a route of its own goes.

    JSON is compact UTF-8 in insertion order. Raises TypeError for a payload of another type and
    ValueError for NaN or Infinity, which JSON does not have.
    """
    if payload is None:
        return Encoded(route, b"", None)
    if isinstance(payload, Request):
        if payload.kind == "multipart":
            body, content_type = encode_multipart_formdata(_fields(payload))
            return Encoded(payload.route, body, content_type, _model_name(payload.data or {}))
        return _encode_json(payload.json, payload.route)
    if isinstance(payload, Mapping):
        return _encode_json(dict(payload), route)
    raise TypeError(f"to_request must return a dict (a JSON body), a Request or None, got {type(payload).__name__}")


def _encode_json(value: Any, route: str) -> Encoded:
    if value is None:
        return Encoded(route, b"", None)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Encoded(route, text.encode("utf-8"), JSON, _model_name(value))


def _model_name(value: Any) -> Optional[str]:
    """The model that a body names, for the breaker's probes; None when it names none."""
    model = value.get("model") if isinstance(value, Mapping) else None
    return model if isinstance(model, str) else None


def _fields(request: Request) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    for name, value in (request.data or {}).items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            fields.append((name, item if isinstance(item, (str, bytes)) else _form_text(item)))
    for name, value in (request.files or {}).items():
        fields.append((name, _file_part(name, value)))
    return fields


def _form_text(value: Any) -> str:
    # A form has only text; JSON's spelling of true, 1.5 and null is what servers parse.
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _file_part(name: str, value: Any) -> tuple[Any, ...]:
    parts = value if isinstance(value, tuple) else (None, value)
    file_name, content = parts[0], parts[1]
    if hasattr(content, "read"):
        file_name = file_name or os.path.basename(str(getattr(content, "name", name)))
        content = content.read()
    if not isinstance(content, (bytes, bytearray, str)):
        raise TypeError(f"file {name!r} must be bytes, str or an open binary file, got {type(content).__name__}")
    body = content if isinstance(content, str) else bytes(content)
    return (file_name or name, body, *parts[2:3])
