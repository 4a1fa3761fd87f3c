"""What a model server is asked and what it says: OpenAI-shaped bodies, in and out. Pure.

There is no model, so an answer is made from the prompt: the prompt's digest, then the prompt itself, repeated and cut
to the length that was asked for (four characters a token). So a test can tell, from an answer alone, which row it
belongs to: `digest(prompt)` opens it, and it is `answer(prompt, tokens)` to the letter.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from saturate.simulate.wire import Refused

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
ROUTES = frozenset((CHAT, COMPLETIONS, EMBEDDINGS, TRANSCRIPTIONS))

CHARS_PER_TOKEN = 4
_DIGEST_CHARS = 16
_DIMENSIONS = 8  # of an embedding, unless the request names another number


def digest(prompt: str) -> str:
    """Sixteen hex digits that name a prompt (BLAKE2b, 8 bytes, of its UTF-8)."""
    return hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_CHARS // 2).hexdigest()


def answer(prompt: str, tokens: int) -> str:
    """The text that answers `prompt`: digest and words, cut to 4 * tokens characters (the digest is always whole)."""
    name = digest(prompt)
    length = max(_DIGEST_CHARS, CHARS_PER_TOKEN * tokens)
    unit = f"{name} {prompt} "
    return (unit * (length // len(unit) + 1))[:length]


def embedding(text: str, dimensions: int = _DIMENSIONS) -> list[float]:
    """A unit vector that depends on `text` alone."""
    seed = hashlib.shake_128(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    raw = [int.from_bytes(seed[i : i + 2], "big") - 32767.5 for i in range(0, 2 * dimensions, 2)]
    norm = math.sqrt(sum(value * value for value in raw))
    return [value / norm for value in raw]


def tokens_in(text: str) -> int:
    """Tokens of a text: a quarter of its characters, at least one."""
    return max(1, len(text) // CHARS_PER_TOKEN)


@dataclass
class Ask:
    """A request, read. `prompts` has one text per thing to answer; `max_tokens` is None when the request names none."""

    route: str
    model: str
    prompts: Sequence[str]
    prompt_tokens: int
    max_tokens: Optional[int] = None
    choices: int = 1
    stream: bool = False
    stream_usage: bool = False
    dimensions: int = _DIMENSIONS

    @property
    def generates(self) -> bool:
        """Whether an answer has tokens of its own (an embedding has none)."""
        return self.route != EMBEDDINGS


def read_ask(route: str, content_type: str, body: bytes, default_model: str) -> Ask:
    """Read the body of a POST to one of ROUTES. Raises Refused with what is wrong."""
    if route == TRANSCRIPTIONS:
        return _read_transcription(content_type, body, default_model)
    try:
        asked = json.loads(body.decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise Refused(400, f"the body is not JSON: {error}")
    if not isinstance(asked, dict):
        raise Refused(400, f"the body is a JSON {type(asked).__name__}; pass an object")
    model = asked.get("model", default_model)
    if not isinstance(model, str):
        raise Refused(400, "model must be a string")
    if route == CHAT:
        prompts: Sequence[str] = (_chat_prompt(asked.get("messages")),)
    else:
        prompts = _texts("prompt" if route == COMPLETIONS else "input", asked)
    options = asked.get("stream_options")
    return Ask(
        route=route,
        model=model,
        prompts=prompts,
        prompt_tokens=sum(map(tokens_in, prompts)),
        max_tokens=_positive(asked, "max_completion_tokens") or _positive(asked, "max_tokens"),
        choices=_positive(asked, "n") or 1,
        stream=route == CHAT and bool(asked.get("stream")),
        stream_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        dimensions=_positive(asked, "dimensions") or _DIMENSIONS,
    )


def _positive(asked: Mapping[str, Any], name: str) -> Optional[int]:
    """A number of the request; None when it names none."""
    value = asked.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refused(400, f"{name} must be a positive integer, not {json.dumps(value)[:40]}")
    return value


def _chat_prompt(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages must be a list with at least one message")
    texts: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else 0
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            parts = (part.get("text") for part in content if isinstance(part, dict))
            texts.extend(text for text in parts if isinstance(text, str))
        elif content is not None:
            raise Refused(400, "a message must be an object whose content is a string or a list of parts")
    return texts[0] if len(texts) == 1 else "\n".join(texts)


def _texts(name: str, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """A string, token ids, or a list of either."""
    given = asked.get(name)
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list) and given:
        if all(isinstance(item, str) for item in given):
            return tuple(given)
        if all(isinstance(item, int) for item in given):
            return (json.dumps(given),)
        if all(isinstance(item, list) for item in given):
            return tuple(map(json.dumps, given))
    raise Refused(400, f"{name} must be a string, a list of strings or token ids")


def _read_transcription(content_type: str, body: bytes, default_model: str) -> Ask:
    kind, _, parameters = content_type.partition(";")
    boundary = ""
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "boundary":
            boundary = value.strip('"')
    if kind.strip().lower() != "multipart/form-data" or not boundary:
        raise Refused(400, "a transcription is asked for with multipart/form-data and a boundary")
    fields: dict[str, bytes] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"))[1:]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if blank:
            for attribute in head.decode("utf-8", "replace").split(";"):
                name, _, value = attribute.strip().partition("=")
                if name == "name":
                    fields[value.split("\r\n")[0].strip('"')] = content
    if "file" not in fields:
        raise Refused(400, "the form has no field called file")
    sound = hashlib.blake2b(fields["file"], digest_size=8).hexdigest()
    model = fields.get("model", default_model.encode()).decode("utf-8", "replace")
    return Ask(TRANSCRIPTIONS, model, (sound,), prompt_tokens=max(1, len(fields["file"]) // 1024))


def _usage(ask: Ask, tokens: int) -> dict[str, int]:
    made = tokens * len(ask.prompts) * ask.choices if ask.generates else 0
    usage = {"prompt_tokens": ask.prompt_tokens, "total_tokens": ask.prompt_tokens + made}
    if ask.generates:
        usage["completion_tokens"] = made
    return usage


def _finish(ask: Ask, tokens: int) -> str:
    return "length" if ask.max_tokens is not None and tokens >= ask.max_tokens else "stop"


def answer_body(ask: Ask, tokens: int, created: int) -> bytes:
    """The JSON answer to `ask` with `tokens` tokens a choice; `created` is a Unix time."""
    usage = _usage(ask, tokens)
    if ask.route == TRANSCRIPTIONS:
        return json.dumps({"text": answer(ask.prompts[0], tokens), "usage": usage}).encode()
    if ask.route == EMBEDDINGS:
        data: list[dict[str, Any]] = [
            {"object": "embedding", "index": index, "embedding": embedding(text, ask.dimensions)}
            for index, text in enumerate(ask.prompts)
        ]
        return json.dumps({"object": "list", "data": data, "model": ask.model, "usage": usage}).encode()
    texts = [answer(prompt, tokens) for prompt in ask.prompts for _ in range(ask.choices)]
    kind, before, after = _CHOICE_TEMPLATES[ask.route]
    reason = _finish(ask, tokens)
    # Written out: an encoder that walks dicts is the dearest single thing in a request at zero latency.
    choices = ", ".join(
        [
            f'{{"index": {index}, {before}{json.dumps(text)}{after}, "finish_reason": "{reason}"}}'
            for index, text in enumerate(texts)
        ]
    )
    return (
        f'{{"id": "{_answer_id(ask, texts[0])}", "object": "{kind}", "created": {created}, '
        f'"model": {json.dumps(ask.model)}, "choices": [{choices}], '
        f'"usage": {{"prompt_tokens": {usage["prompt_tokens"]}, "total_tokens": {usage["total_tokens"]}, '
        f'"completion_tokens": {usage["completion_tokens"]}}}}}'
    ).encode("ascii")


_CHOICE_TEMPLATES = {
    CHAT: ("chat.completion", '"message": {"role": "assistant", "content": ', "}"),
    COMPLETIONS: ("text_completion", '"text": ', ""),
}


def _answer_id(ask: Ask, text: str) -> str:
    return f"{'chatcmpl' if ask.route == CHAT else 'cmpl'}-{text[:_DIGEST_CHARS]}"


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def stream_event(ask: Ask, text: str, created: int) -> bytes:
    """One server-sent event with the next piece of a chat answer."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    return _event(
        {
            "id": _answer_id(ask, digest(ask.prompts[0])),
            "object": "chat.completion.chunk",
            "created": created,
            "model": ask.model,
            "choices": [choice],
        }
    )


def stream_end(ask: Ask, tokens: int, created: int) -> bytes:
    """The events that end a streamed answer: finish reason, usage if it was asked for, [DONE]."""
    frame: dict[str, Any] = {
        "id": _answer_id(ask, digest(ask.prompts[0])),
        "object": "chat.completion.chunk",
        "created": created,
        "model": ask.model,
        "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(ask, tokens)}],
    }
    last = _event(frame)
    if ask.stream_usage:
        last += _event({**frame, "choices": [], "usage": _usage(ask, tokens)})
    return last + b"data: [DONE]\n\n"


_ERROR_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}


def error_body(status: int, message: str) -> bytes:
    """An OpenAI-shaped error."""
    kind = _ERROR_TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}}).encode()


def models_body(model: str, max_model_len: Optional[int], created: int) -> bytes:
    """The answer to GET /v1/models."""
    entry = {"id": model, "object": "model", "created": created, "owned_by": "saturate simulate"}
    if max_model_len is not None:
        entry["max_model_len"] = max_model_len
    return json.dumps({"object": "list", "data": [entry]}).encode()


SHAPES = (
    "html",
    "text",
    "empty",
    "truncated",
    "null",
    "list",
    "string",
    "not-utf8",
    "not-gzip",
    "no-choices",
    "usage-null",
    "usage-missing",
    "usage-nulls",
    "usage-strings",
    "usage-list",
)
_WHOLE = {
    "html": b"<html><body><h1>Welcome</h1></body></html>",
    "text": b"upstream connect error",
    "empty": b"",
    "null": b"null",
    "string": b'"ok"',
    "not-utf8": b'{"choices": "\xff\xfe"}',
}


def malformed(shape: str, body: bytes) -> bytes:
    """A good JSON `body` spoilt the way `shape` (one of SHAPES) says."""
    if shape in _WHOLE:
        return _WHOLE[shape]
    if shape == "truncated":
        return body[: len(body) // 2]
    if shape == "list":
        return b"[" + body + b"]"
    if shape == "not-gzip":  # the body is fine: it is the Content-Encoding header that lies
        return body
    good = json.loads(body)
    if shape == "no-choices":
        good.pop("choices", None)
    elif shape == "usage-missing":
        good.pop("usage", None)
    elif shape == "usage-null":
        good["usage"] = None
    elif shape == "usage-nulls":
        good["usage"] = dict.fromkeys(good["usage"])
    elif shape == "usage-strings":
        good["usage"] = {name: str(value) for name, value in good["usage"].items()}
    else:
        good["usage"] = list(good["usage"].values())
    return json.dumps(good).encode()
