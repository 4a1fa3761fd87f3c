"""`AdaptiveClient.post`: the retry ladder on a real wire, against a server that misbehaves in every known way."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import pytest

from saturate import AdaptiveClient, FatalTransportError, Fixed, make_json_request, make_multipart_request
from saturate.flow import client as client_module
from saturate.http import retry
from saturate.simulate import Faults, Simulator
from tests.conftest import product_threads, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch):
    """The ladder as it is, its seconds as milliseconds."""
    monkeypatch.setattr(retry, "BACKOFF_FIRST_S", 0.001)


def open_client(server: Simulator, window: int = 4, **kwargs) -> AdaptiveClient:
    return AdaptiveClient(server.endpoint, window=Fixed(window), signal_source="none", **kwargs)


def test_a_success_is_the_body_and_no_error():
    with Simulator(latency_s=0) as server, open_client(server) as client:
        body, error = client.post(BODY)
        assert error is None and body["usage"]["completion_tokens"] == 3
        assert client.limiter.window.inflight == 0


@pytest.mark.parametrize("status", [201, 202, 299])
def test_any_2xx_is_a_success_at_the_first_attempt(status):
    with Simulator(latency_s=0, faults=Faults(f"status:status={status}")) as server, open_client(server) as client:
        body, error = client.post(BODY)
        assert error is None and body["object"] == "chat.completion"
        assert len(server.received) == 1 and client.breaker.opens == 0


@pytest.mark.parametrize("shape", ["usage-null", "usage-missing", "usage-list"])
def test_null_or_missing_usage_is_zero_tokens(shape):
    with Simulator(latency_s=0, faults=Faults(f"malformed:shape={shape}")) as server, open_client(server) as client:
        body, error = client.post(BODY)
        assert error is None and client_module.usage_of(body) == {}


@pytest.mark.parametrize("tokens", [None, "12", -3, float("nan"), True, [1]])
def test_a_token_count_that_is_no_count_is_zero(tokens):
    assert client_module.usage_tokens({"usage": {"prompt_tokens": tokens, "completion_tokens": 2}}) == (0, 2)


@pytest.mark.parametrize("body", [None, [], "x", {"usage": []}, {"usage": None}, {}])
def test_a_response_without_a_usage_object_counts_nothing(body):
    assert client_module.usage_tokens(body) == (0, 0)


@pytest.mark.parametrize("shape", ["html", "truncated", "empty", "not-utf8", "not-gzip"])
def test_a_200_whose_body_is_not_json_is_retried_then_an_error_row(shape):
    with Simulator(latency_s=0, faults=Faults(f"malformed:shape={shape},attempts=2")) as server:
        with open_client(server) as client:
            body, error = client.post(BODY)
            assert error is None and len(server.received) == 3
            server.faults = Faults(f"malformed:shape={shape}")
            body, error = client.post(BODY)
            assert body is None
            assert error.startswith(("http 200 after retries: the body is not JSON: ", "transport: RemoteProtocol"))


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503])
def test_what_may_pass_later_is_tried_again(status):
    with Simulator(latency_s=0, faults=Faults(f"error:status={status},attempts=2")) as server:
        with open_client(server) as client:
            body, error = client.post(BODY)
            assert error is None and len(server.received) == 3


POISON = {**BODY, "messages": [{"role": "user", "content": "poison"}]}


def test_a_row_that_always_fails_is_an_error_with_the_status_and_the_start_of_the_body():
    with Simulator(latency_s=0, faults=Faults("error:status=500,body=out of memory,contains=poison")) as server:
        with open_client(server) as client:
            body, error = client.post(POISON)
            assert body is None
            assert error.startswith("http 500 after retries: ") and "out of memory" in error
            # Eight attempts open the breaker; its probe finds the server well, so it is the row; the ninth is the last.
            assert len(server.received) == 9 and client.breaker.opens == 1


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_refusal_for_good_is_not_tried_again(status):
    with Simulator(latency_s=0, faults=Faults(f"error:status={status},body=no")) as server:
        with open_client(server) as client:
            body, error = client.post(BODY)
            assert body is None and error.startswith(f"http {status}: ") and '"no"' in error
            assert len(server.received) == 1 and client.breaker.opens == 0


def test_a_redirect_is_reported_not_followed():
    with Simulator(latency_s=0, faults=Faults("redirect:location=/v2")) as server, open_client(server) as client:
        _, error = client.post(BODY)
        assert error == "http 307: endpoint redirects to /v2; pass the final address as endpoint"


@pytest.mark.parametrize("value", ["0.3", "date:1"])
def test_retry_after_is_waited_out_without_a_slot(value):
    faults = Faults(f"error:status=429,retry_after={value},attempts=1")
    with Simulator(latency_s=0, faults=faults) as server, open_client(server, window=1) as client:
        waiter = threading.Thread(target=client.post, args=(BODY,), daemon=True)
        waiter.start()
        assert wait_until(lambda: client.limiter.parked_threads == 1)
        assert client.limiter.window.inflight == 0
        waiter.join(10)
        assert not waiter.is_alive() and len(server.received) == 2


def test_a_429_with_retry_after_is_a_quota_and_one_without_is_pressure():
    with Simulator(latency_s=0, faults=Faults("error:status=429,retry_after=0,attempts=1")) as server:
        with open_client(server) as client:
            client.post(BODY)
            tick = client.limiter.take_tick()
            assert (tick.ok, tick.bp, tick.rate_limited) == (1, 0, 1)
            server.faults = Faults("error:status=429,attempts=1")
            client.post({**BODY, "user": "1"})
            tick = client.limiter.take_tick()
            assert (tick.ok, tick.bp, tick.rate_limited) == (1, 1, 0)


def test_a_poisonous_row_that_always_answers_500_is_pressure_once():
    faults = Faults("error:status=500,contains=poison")
    with Simulator(latency_s=0, faults=faults) as server, open_client(server) as client:
        client.post(POISON)
        assert client.limiter.take_tick().bp == 1


def test_a_refused_requests_slot_stays_closed_until_the_next_tick():
    with Simulator(latency_s=0, faults=Faults("error:status=429,retry_after=0.05,attempts=1")) as server:
        with open_client(server, window=3, tick_s=60) as client:
            client.post(BODY)
            window = client.limiter.window
            assert (window.inflight, window.closed) == (0, 1)
            window.resize(3)
            assert window.closed == 0


@pytest.mark.parametrize("how", ["drop", "drop:reset=1", "drop_mid_body"])
def test_a_connection_dropped_under_an_answer_is_tried_again_as_pressure(how):
    spec = f"{how}{',' if ':' in how else ':'}attempts=1"
    with Simulator(latency_s=0, faults=Faults(spec)) as server, open_client(server) as client:
        _, error = client.post(BODY)
        assert error is None and len(server.received) == 2
        assert client.limiter.take_tick().bp == 1


@pytest.mark.parametrize("announced", [0, 1])
def test_a_stale_kept_alive_connection_costs_one_silent_resend_and_no_pressure(announced):
    """The server closes each connection after one request, saying so or not."""
    faults = Faults(f"keep_alive:requests=1,silent={1 - announced}")
    with Simulator(latency_s=0, faults=faults) as server, open_client(server) as client:
        for i in range(20):
            _, error = client.post({**BODY, "user": str(i)})
            assert error is None
        tick = client.limiter.take_tick()
        assert (tick.ok, tick.bp) == (20, 0)
        assert len(server.received) == 20 and not server.paid_twice()


class ClosesAfterReading:
    """A server that answers one request per connection and closes the next one after having read it: the race
    between a keep-alive time-out and a request, which no client can see coming."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            with conn:
                for turn in range(2):
                    while b"\r\n\r\n" not in conn.recv(65536):
                        pass
                    self.requests += 1
                    if turn == 0:
                        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


def test_a_connection_closed_under_a_request_before_any_byte_is_resent_once():
    server = ClosesAfterReading()
    port = server.listener.getsockname()[1]
    with AdaptiveClient(f"http://127.0.0.1:{port}/v1", window=Fixed(1), signal_source="none") as client:
        assert client.post(None) == ({}, None)
        assert client.post(None) == ({}, None)
        assert client.limiter.take_tick().bp == 0
    assert server.requests == 3
    server.listener.close()


@pytest.mark.parametrize("coding", ["gzip", "chunked"])
def test_compressed_and_chunked_responses_are_read(coding):
    with Simulator(latency_s=0, faults=Faults(coding)) as server, open_client(server) as client:
        for i in range(3):
            body, error = client.post({**BODY, "user": str(i)})
            assert error is None and body["object"] == "chat.completion"
        assert server.stats()["connections"] == 1, "the connection is kept"


def test_a_server_that_never_answers_is_a_time_out_and_pressure():
    with Simulator(latency_s=0, faults=Faults("hang:attempts=1")) as server:
        with open_client(server, read_timeout=0.2) as client:
            _, error = client.post(BODY)
            assert error is None and len(server.received) == 2
            assert client.limiter.take_tick().bp == 1


def test_headers_followed_by_silence_are_a_time_out():
    with Simulator(latency_s=0, faults=Faults("hang_after_headers")) as server:
        with open_client(server, read_timeout=0.1) as client:
            _, error = client.post(BODY)
            assert error == "transport: ReadTimeout: the body stopped arriving"


def test_a_body_that_drips_for_ever_is_ended_by_a_deadline():
    with Simulator(latency_s=0, faults=Faults("drip:bytes_per_s=20,attempts=1")) as server:
        with open_client(server, read_timeout=0.3, tick_s=0.1) as client:
            _, error = client.post(BODY)
            assert error is None and len(server.received) == 2


def test_a_retry_may_take_as_long_as_a_first_attempt():
    """The second attempt is the slow one, and slower than any remaining budget of a first."""
    with Simulator(latency_s=0.4, faults=Faults("error:status=503,attempts=1")) as server:
        with open_client(server, read_timeout=5) as client:
            assert client.post(BODY)[1] is None


def test_an_outage_pauses_the_run_and_no_row_is_lost(caplog):
    with Simulator(latency_s=0, faults=Faults("outage:start=0,end=1.5,how=refuse")) as server:
        with open_client(server, window=8) as client:
            client.breaker._probe_every_s = 0.05
            errors = []
            threads = [
                threading.Thread(
                    target=lambda i=i: errors.append(client.post({**BODY, "user": str(i)})[1]), daemon=True
                )
                for i in range(16)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert errors == [None] * 16
            assert client.breaker.opens >= 1
    assert "circuit OPEN" in caplog.text and "circuit CLOSED" in caplog.text


def test_an_outage_loses_no_row_of_a_window_of_one_either():
    """Five attempts of one row in a row fail before eight failures open the breaker."""
    with Simulator(latency_s=0, faults=Faults("error:status=503,first=7")) as server:
        with open_client(server, window=1, tick_s=0.05) as client:
            assert client.post(BODY)[1] is None
            assert len(server.received) == 8


def test_a_row_that_fails_while_others_succeed_is_given_up_after_five_attempts():
    with Simulator(latency_s=0, faults=Faults("error:status=500,contains=poison")) as server:
        with open_client(server, tick_s=0.05) as client:
            stop = threading.Event()

            def others() -> None:
                while not stop.is_set():
                    client.post(BODY)

            thread = threading.Thread(target=others, daemon=True)
            thread.start()
            _, error = client.post(POISON)
            stop.set()
            thread.join(10)
            assert error.startswith("http 500 after retries")
            assert client.breaker.opens == 0


def test_an_endpoint_that_stays_down_is_fatal():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with AdaptiveClient(f"http://127.0.0.1:{port}/v1", window=Fixed(2), signal_source="none") as client:
            client.breaker._dead_after_s = 0.2
            client.breaker._probe_every_s = 0.02
            with pytest.raises(FatalTransportError, match="run the same command again to resume"):
                for _ in range(3):
                    client.post(BODY)


def test_the_probe_goes_to_the_callers_route_with_the_callers_model_and_headers():
    with Simulator(latency_s=0, faults=Faults("error:status=503,first=8")) as server:
        with open_client(server, headers={"Authorization": "Bearer k"}) as client:
            assert client.post({"model": "emb", "input": "a"}, route="/embeddings")[1] is None
            assert client.breaker.opens == 1 and not client.breaker.is_open
            # eight refusals, then (after the probe) an answer
            assert len(server.received) == 9  # the simulator does not count probes as requests


def test_none_posts_an_empty_body():
    with Simulator(latency_s=0, faults=Faults("error:status=400,body=empty")) as server, open_client(server) as client:
        body, error = client.post(None)
        assert body is None and error.startswith("http 400: ")


def test_a_request_carries_its_own_route():
    with Simulator(latency_s=0) as server, open_client(server) as client:
        body, _ = client.post(make_json_request("/embeddings", {"model": "m", "input": ["a", "b"]}))
        assert len(body["data"]) == 2


def test_a_multipart_request_is_sent_and_retried_with_the_same_bytes(tmp_path):
    path = tmp_path / "clip.wav"
    path.write_bytes(b"RIFF" + bytes(1000))
    with Simulator(latency_s=0, faults=Faults("error:status=503,attempts=1")) as server, open_client(server) as client:
        with path.open("rb") as file:
            request = make_multipart_request("/audio/transcriptions", {"model": "m"}, {"file": file})
            body, error = client.post(request)
        assert error is None and "text" in body
        assert len(server.received) == 2


def test_the_users_headers_replace_the_defaults_whatever_their_case():
    with AdaptiveClient("http://127.0.0.1:9", headers={"user-agent": "mine"}) as client:
        assert [v for k, v in client._headers.items() if k.lower() == "user-agent"] == ["mine"]


def test_on_admit_is_called_once_though_the_row_is_tried_three_times():
    calls = []
    with Simulator(latency_s=0, faults=Faults("error:status=503,attempts=2")) as server, open_client(server) as client:
        client.post(BODY, on_admit=lambda: calls.append(client.limiter.window.inflight))
    assert calls == [1]


def test_a_client_that_is_not_open_says_so():
    with pytest.raises(RuntimeError, match="with AdaptiveClient"):
        AdaptiveClient("http://127.0.0.1:9").post(BODY)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_client_opened_before_a_fork_refuses_to_work_in_the_child():
    with Simulator(latency_s=0) as server, open_client(server) as client:
        client.post(BODY)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                client.post(BODY)
                os.write(write, b"worked")
            except RuntimeError as exc:
                os.write(write, str(exc).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            assert b"opened in another process" in pipe.read()


def test_each_thread_keeps_one_connection_and_it_is_closed_when_the_thread_ends():
    with Simulator(latency_s=0) as server, open_client(server, tick_s=0.05) as client:
        def several() -> None:
            for i in range(5):
                client.post({**BODY, "user": str(i), "t": threading.get_ident()})

        threads = [threading.Thread(target=several) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.received) == 15
        assert wait_until(lambda: server.stats()["connections"] == 0)


def test_nothing_is_left_of_a_client_after_its_block():
    with Simulator(latency_s=0) as server:
        with open_client(server) as client:
            client.post(BODY)
        assert not product_threads()
        assert wait_until(lambda: server.stats()["connections"] == 0)


def post_until_it_ends(client: AdaptiveClient) -> None:
    with contextlib.suppress(Exception):
        client.post(BODY)


def test_a_controller_that_dies_ends_the_run_with_its_reason():
    class Broken:
        initial, last_reason = 1, ""

        def decide(self, obs, limit):
            raise ZeroDivisionError("oops")

    with Simulator(latency_s=0, faults=Faults("hang")) as server:
        with pytest.raises(FatalTransportError, match="controller loop died: ZeroDivisionError: oops"):
            with AdaptiveClient(server.endpoint, window=Broken(), signal_source="none", tick_s=0.05) as client:
                hung = threading.Thread(target=post_until_it_ends, args=(client,), daemon=True)
                hung.start()
                assert wait_until(lambda: client.limiter.window.inflight == 1)
                client.post(BODY)
        hung.join(10)


def test_gauges_reach_the_telemetry():
    with Simulator(tokens=20, step_s=0.01) as server:
        with AdaptiveClient(server.endpoint, window=Fixed(4), tick_s=0.1) as client:
            for i in range(3):
                client.post({**BODY, "max_tokens": 10, "user": str(i)})
            assert wait_until(lambda: any(t["running"] is not None for t in client.limiter.ticks))
            assert client.dialect == "vllm"
            assert client.limiter.ticks[-1]["dialect"] == "vllm"


def test_time_is_measured_from_the_send_of_the_attempt_that_succeeded():
    with Simulator(latency_s=0.05, faults=Faults("error:status=429,retry_after=0.5,attempts=1")) as server:
        with open_client(server) as client:
            started = time.monotonic()
            client.post(BODY)
            assert time.monotonic() - started >= 0.5
            assert client.limiter.latency_s < 0.5
