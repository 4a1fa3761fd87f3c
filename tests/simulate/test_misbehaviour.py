"""Each fault as a client sees it on the wire."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from email.utils import parsedate_to_datetime
from typing import Callable

import pytest

from saturate.simulate import Faults, Simulator, answer
from tests.simulate.conftest import CHAT, Client, wait_until

Make = Callable[..., Client]


@pytest.mark.parametrize("status", [400, 408, 409, 413, 425, 429, 500, 502, 503, 504])
def test_an_error_has_its_status_an_openai_body_and_its_retry_after(client: Make, status: int) -> None:
    with Simulator(latency_s=0, faults=Faults(f"error:status={status},body=so it goes,retry_after=2")) as server:
        got = client(server).chat()
        assert (got.status, got.headers["retry-after"]) == (status, "2")
        assert got.json["error"]["message"] == "so it goes"


def test_retry_after_may_be_a_fraction_or_a_date(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("error:retry_after=0.5")) as server:
        assert client(server).chat().headers["retry-after"] == "0.5"
        server.faults = Faults("error:retry_after=date:30")
        got = client(server).chat().headers
        ahead = parsedate_to_datetime(got["retry-after"]) - parsedate_to_datetime(got["date"])
        assert 30 <= ahead.total_seconds() <= 31


def test_a_redirect_says_where_to(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("redirect:status=302,location=/v2")) as server:
        got = client(server).chat()
        assert (got.status, got.headers["location"]) == (302, "/v2")


def test_another_2xx_is_a_whole_answer(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("status:status=201")) as server:
        got = client(server).chat("x", max_tokens=5)
        assert (got.status, got.text) == (201, answer("x", 5))
        assert server.stats()["served"] == 1


def test_a_204_and_a_304_have_no_body_and_keep_the_connection_in_step(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("status:status=204,first=1", "error:status=304,contains=old")) as server:
        one = client(server)
        assert [one.chat(content).status for content in ("x", "old", "x")] == [204, 304, 200]


def test_a_hanging_request_gets_no_byte_and_takes_no_place_in_the_engine(client: Make) -> None:
    with Simulator(max_num_seqs=1, step_s=0.0, faults=Faults("hang:contains=stuck")) as server:
        stuck = client(server, timeout=0.2)
        stuck.send("stuck")
        assert client(server).chat("free").status == 200
        with pytest.raises(socket.timeout):
            stuck.receive()
        assert server.stats()["running"] == 0
        stuck.connection.close()
        assert wait_until(lambda: server.stats()["connections"] == 1)


def test_a_client_may_get_headers_and_then_silence(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("hang_after_headers")) as server:
        for stream in (False, True):
            one = client(server, timeout=0.2)
            one.send("x", stream=stream)
            response = one.connection.getresponse()
            assert response.status == 200
            with pytest.raises(OSError):
                response.read()
        assert server.stats()["statuses"] == {"0": 2}


@pytest.mark.parametrize("fault", ["drop", "drop:reset=1", "drop:late=1"])
def test_a_dropped_connection_gives_no_byte(client: Make, fault: str) -> None:
    with Simulator(step_s=0.0, tokens=3, faults=Faults(fault)) as server:
        one = client(server)
        one.send("x")
        # RemoteDisconnected is a ConnectionResetError: one name for an orderly and for a rude end.
        with pytest.raises(ConnectionResetError):
            one.receive()
        assert server.stats()["statuses"] == ({"0": 1} if "late" in fault else {})
        assert (b"generation_tokens_total" in client(server).get("/metrics").body) is True


def test_a_connection_may_break_in_the_middle_of_a_body_or_of_a_stream(client: Make) -> None:
    with Simulator(step_s=0.001, tokens=50, faults=Faults("drop_mid_body")) as server:
        for stream in (False, True):
            one = client(server)
            one.send("x", stream=stream)
            with pytest.raises(http.client.IncompleteRead):
                one.receive()
        assert server.served == []


def test_a_body_may_drip(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("drip:bytes_per_s=4000")) as server:
        one = client(server)
        one.send("x", max_tokens=50)
        response = one.connection.getresponse()
        pieces = []
        while piece := response.read1(65536):
            pieces.append(piece)
        assert len(pieces) > 1
        assert json.loads(b"".join(pieces))["usage"]["completion_tokens"] == 50


def test_an_answer_may_be_compressed_and_in_chunks(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("gzip", "chunked")) as server:
        got = client(server).chat("x", max_tokens=9)
        assert (got.headers["content-encoding"], got.headers["transfer-encoding"]) == ("gzip", "chunked")
        assert json.loads(gzip.decompress(got.body))["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("shape", ["html", "empty", "truncated", "not-utf8"])
def test_a_malformed_answer_is_a_200_that_is_no_json(client: Make, shape: str) -> None:
    with Simulator(latency_s=0, faults=Faults(f"malformed:shape={shape}")) as server:
        got = client(server).chat()
        assert got.status == 200
        with pytest.raises(ValueError):
            json.loads(got.body)


def test_an_answer_may_claim_to_be_compressed(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("malformed:shape=not-gzip")) as server:
        got = client(server).chat()
        assert got.headers["content-encoding"] == "gzip"
        with pytest.raises(gzip.BadGzipFile):
            gzip.decompress(got.body)


def test_a_full_server_refuses_and_takes_requests_again_when_it_has_room(client: Make) -> None:
    with Simulator(max_num_seqs=1, tokens=10**6, faults=Faults("cap:requests=2,retry_after=1")) as server:
        inside = [client(server) for _ in range(2)]
        for n, one in enumerate(inside):
            one.send(f"long {n}")
        assert wait_until(lambda: server.stats()["running"] + server.stats()["waiting"] == 2)
        refused = client(server).chat("one too many")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        for one in inside:
            one.connection.close()
        assert wait_until(lambda: server.stats()["running"] == 0)
        assert client(server).chat("room again", max_tokens=1).status == 200


def test_a_quota_refuses_with_retry_after_and_tells_what_is_left(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("quota:per_minute=3")) as server:
        one = client(server)
        got = [one.chat(f"row {n}") for n in range(4)]
        assert [each.status for each in got] == [200, 200, 200, 429]
        assert [each.headers["x-ratelimit-remaining-requests"] for each in got] == ["2", "1", "0", "0"]
        assert int(got[3].headers["retry-after"]) in range(1, 21)


def test_a_request_queued_too_long_is_a_gateway_timeout(client: Make) -> None:
    with Simulator(max_num_seqs=1, tokens=10**6, faults=Faults("queue_timeout:seconds=0.05")) as server:
        running = client(server)
        running.send("long")
        assert wait_until(lambda: server.stats()["running"] == 1)
        assert client(server).chat("waits").status == 504
        assert (server.stats()["running"], server.stats()["waiting"]) == (1, 0)


def test_a_cold_server_is_not_ready_on_any_route(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("cold_start:seconds=3600,status=409")) as server:
        one = client(server)
        assert [one.chat().status, one.get("/health").status, one.get("/metrics").status] == [409, 409, 409]
        server.faults = Faults()
        assert [one.chat().status, one.get("/health").status] == [200, 200]


def test_in_an_outage_nobody_listens_and_what_was_open_is_cut(client: Make) -> None:
    with Simulator(tokens=10**6) as server:
        one = client(server)
        one.send("caught in it")
        assert wait_until(lambda: server.stats()["running"] == 1)
        server.faults = Faults("outage:how=refuse")
        with pytest.raises(OSError):
            one.receive()
        with pytest.raises(ConnectionRefusedError):
            client(server).get("/health")
        assert server.stats()["running"] == 0
        server.faults = Faults()
        assert wait_until(lambda: can_connect(server))
        assert client(server).get("/health").status == 200


def can_connect(server: Simulator) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), 1).close()
    except OSError:
        return False
    return True


def test_a_server_that_refuses_at_first_listens_later(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("cold_start:seconds=0.3,how=refuse")) as server:
        with pytest.raises(ConnectionRefusedError):
            client(server).get("/health")
        assert wait_until(lambda: can_connect(server))
        assert client(server).chat().status == 200


def test_an_idle_connection_is_closed(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("keep_alive:seconds=0.05")) as server:
        one = client(server)
        assert one.chat().status == 200
        assert one.connection.sock.recv(1) == b""


@pytest.mark.parametrize("silent", [0, 1])
def test_a_connection_ends_after_so_many_requests_announced_or_not(client: Make, silent: int) -> None:
    with Simulator(latency_s=0, faults=Faults(f"keep_alive:requests=2,silent={silent}")) as server:
        one = client(server)
        first = one.chat("a")
        sock = one.connection.sock
        last = one.chat("b")
        assert [got.headers.get("connection") for got in (first, last)] == [None, None if silent else "close"]
        if silent:
            assert sock.recv(1) == b""


def test_a_slow_server_takes_longer_steps(client: Make) -> None:
    with Simulator(step_s=0.001, tokens=5, faults=Faults("slow:factor=10000")) as server:
        one = client(server)
        one.send("x")
        assert wait_until(lambda: server.stats()["running"] == 1)
        server.faults = Faults()
        assert server.stats()["served"] == 0


def test_faults_can_be_set_over_http_and_nonsense_is_refused(client: Make) -> None:
    with Simulator(latency_s=0) as server:
        one = client(server)
        spec = {"faults": ["error:status=503", {"kind": "gzip"}], "seed": 3}
        assert one.post("/simulate/faults", json.dumps(spec)).status == 200
        assert [fault.kind for fault in server.faults.all] == ["error", "gzip"]
        assert one.chat().status == 503
        for wrong in ("[]", "{", '{"faults": ["explode"]}', '{"faults": 3}', '{"faults": [5]}'):
            assert one.post("/simulate/faults", wrong).status == 400
        assert one.get("/simulate/else").status == 404
        assert server.faults.seed == 3


def test_a_fault_of_one_row_leaves_the_others_alone(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("error:contains=TOO LONG,status=400", f"drop:route={CHAT}x")) as server:
        one = client(server)
        statuses = [one.chat(content).status for content in ("fine", "TOO LONG ...", "fine")]
        assert statuses == [200, 400, 200]
