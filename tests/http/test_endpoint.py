"""An endpoint is checked when it is given, with a sentence that says what to pass."""

from __future__ import annotations

import pytest

from saturate import AdaptiveClient, Fixed
from saturate.http.endpoint import parse_endpoint


@pytest.mark.parametrize("bad", ["localhost:8000/v1", "//host/v1", "ftp://host/v1", "", "http://", "http://h:x/v1"])
def test_an_endpoint_that_is_no_http_address_fails_at_the_call(bad):
    with pytest.raises(ValueError, match="endpoint"):
        AdaptiveClient(bad)


@pytest.mark.parametrize("bad", [None, 8000, b"http://h/v1"])
def test_an_endpoint_that_is_no_string_fails_at_the_call(bad):
    with pytest.raises(TypeError, match="URL string"):
        AdaptiveClient(bad)


def test_a_query_is_refused_since_routes_are_appended():
    with pytest.raises(ValueError, match="query"):
        parse_endpoint("http://h/v1?api-version=1")


@pytest.mark.parametrize("window", [8, 0, 2.5, True, "auto", Fixed])
def test_a_window_that_is_no_controller_fails_at_the_call(window):
    with pytest.raises(TypeError, match="window must be"):
        AdaptiveClient("http://h/v1", window=window)


def test_its_parts(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    end = parse_endpoint("http://user:pa%20ss@[::1]:8080/openai/v1/")
    assert (end.host, end.port, end.path) == ("::1", 8080, "/openai/v1")
    assert end.target("/chat/completions") == "/openai/v1/chat/completions"
    assert end.root == "http://[::1]:8080/openai"
    assert end.authorization == "Basic dXNlcjpwYSBzcw=="
    assert "pa%20ss" not in end.base


def test_a_plain_endpoint_without_v1_is_its_own_root():
    assert parse_endpoint("http://h:1").root == "http://h:1"
    assert parse_endpoint("https://h/v1").port == 443


def test_the_environments_proxy_is_used_unless_no_proxy_names_the_host(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside")
    assert parse_endpoint("http://outside/v1").proxy.host == "proxy"
    assert parse_endpoint("http://outside/v1").target("/x") == "http://outside/v1/x"
    assert parse_endpoint("http://inside/v1").proxy is None


def test_a_proxy_of_another_kind_is_refused_with_a_sentence(monkeypatch):
    monkeypatch.setenv("http_proxy", "socks5://proxy:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ValueError, match="socks5"):
        parse_endpoint("http://outside/v1")


@pytest.mark.parametrize("headers", [{"X": 1}, {1: "x"}])
def test_headers_must_be_strings(headers):
    with pytest.raises(TypeError, match="headers"):
        AdaptiveClient("http://h/v1", headers=headers)


def test_a_header_cannot_smuggle_a_line():
    with pytest.raises(ValueError, match="line break"):
        AdaptiveClient("http://h/v1", headers={"X": "a\r\nY: b"})
