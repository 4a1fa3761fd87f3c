"""What the simulated model says, and how its bodies are spoilt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saturate.simulate import answer, digest, responses
from saturate.simulate.responses import CHAT, COMPLETIONS, EMBEDDINGS, SHAPES, TRANSCRIPTIONS
from saturate.simulate.wire import Refused


def said(route: str, asked: dict[str, Any], tokens: int = 20) -> Any:
    ask = responses.read_ask(route, "application/json", json.dumps(asked).encode(), "m")
    return json.loads(responses.answer_body(ask, tokens, 0))


def chat(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


@pytest.mark.parametrize("prompt", ["hello", "", '日本語 \u2028 "quoted" \\ \x00', "\ud800 alone", "x" * 10000])
def test_an_answer_opens_with_the_digest_of_its_prompt_and_has_the_length_asked_for(prompt: str) -> None:
    text = said(CHAT, chat(prompt), tokens=20)["choices"][0]["message"]["content"]
    assert text == answer(prompt, 20)
    assert text.startswith(digest(prompt))
    assert len(text) == 80


def test_a_short_prompt_is_echoed_whole() -> None:
    assert "row 17" in answer("row 17", 20)


def test_usage_adds_up_and_max_tokens_is_a_reason_to_finish() -> None:
    usage = said(CHAT, chat("x" * 400, max_tokens=20))["usage"]
    assert usage == {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    assert said(CHAT, chat("x", max_tokens=20))["choices"][0]["finish_reason"] == "length"
    assert said(CHAT, chat("x"))["choices"][0]["finish_reason"] == "stop"


def test_a_message_may_be_a_list_of_parts() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert said(CHAT, chat(parts))["choices"][0]["message"]["content"].startswith(digest("look"))


def test_each_prompt_of_a_list_gets_its_own_choice() -> None:
    choices = said(COMPLETIONS, {"prompt": ["a", "b"], "n": 2})["choices"]
    assert [choice["text"][:16] for choice in choices] == [digest("a")] * 2 + [digest("b")] * 2
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]


def test_embeddings_are_unit_vectors_that_depend_on_the_text_alone() -> None:
    both = said(EMBEDDINGS, {"input": ["a", "b"], "dimensions": 5})["data"]
    one = said(EMBEDDINGS, {"input": "a", "dimensions": 5})["data"]
    assert both[0]["embedding"] == one[0]["embedding"] != both[1]["embedding"]
    assert sum(x * x for x in both[0]["embedding"]) == pytest.approx(1.0)
    assert said(EMBEDDINGS, {"input": [[1, 2], [3]]})["usage"]["total_tokens"] > 0


def test_a_transcription_takes_a_multipart_form() -> None:
    form = (
        b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        b"\x00\r\n\xff\r\n--B--\r\n"
    )
    ask = responses.read_ask(TRANSCRIPTIONS, 'multipart/form-data; boundary="B"', form, "m")
    assert ask.model == "whisper"
    other = responses.read_ask(TRANSCRIPTIONS, "multipart/form-data; boundary=B", form.replace(b"\xff", b"\xfe"), "m")
    assert ask.prompts != other.prompts
    assert json.loads(responses.answer_body(ask, 10, 0))["text"] == answer(ask.prompts[0], 10)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, b""),
        (CHAT, b"{"),
        (CHAT, b"\xff"),
        (CHAT, b"[]"),
        (CHAT, b"[" * 100000),
        (CHAT, b"{}"),
        (CHAT, b'{"messages": []}'),
        (CHAT, b'{"messages": ["hi"]}'),
        (CHAT, b'{"messages": [{"content": 5}]}'),
        (CHAT, b'{"messages": [{"content": "x"}], "max_tokens": "many"}'),
        (CHAT, b'{"messages": [{"content": "x"}], "max_tokens": 0}'),
        (CHAT, b'{"messages": [{"content": "x"}], "model": 7}'),
        (COMPLETIONS, b"{}"),
        (EMBEDDINGS, b'{"input": []}'),
        (TRANSCRIPTIONS, b"no form"),
    ],
)
def test_a_body_that_asks_for_nothing_is_a_400(route: str, body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        responses.read_ask(route, "application/json", body, "m")
    assert refused.value.status == 400


def test_errors_look_like_openai_s() -> None:
    error = json.loads(responses.error_body(429, "slow down"))["error"]
    assert error == {"message": "slow down", "type": "RateLimitError", "param": None, "code": 429}


def test_every_malformed_shape_differs_from_a_good_answer() -> None:
    ask = responses.read_ask(CHAT, "", json.dumps(chat("x")).encode(), "m")
    good = responses.answer_body(ask, 5, 0)
    spoilt = {shape: responses.malformed(shape, good) for shape in SHAPES if shape != "not-gzip"}
    assert good not in spoilt.values()
    assert len(set(spoilt.values())) == len(spoilt)
    assert json.loads(spoilt["usage-null"])["usage"] is None
    assert json.loads(spoilt["list"]) == [json.loads(good)]
