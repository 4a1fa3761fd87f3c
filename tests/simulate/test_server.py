"""The simulated server as a server: routes, ids, the ledger, the engine behind it, and its end."""

from __future__ import annotations

import json
import multiprocessing
import socket
import threading
import time
from pathlib import Path
from typing import Callable

import pytest

from saturate.simulate import Faults, Simulator, answer, digest
from tests.simulate.conftest import CHAT, Client, descriptors, wait_until

Make = Callable[..., Client]


def metric(page: bytes, name: str) -> float:
    lines = [line for line in page.decode().splitlines() if line.startswith(f"vllm:{name}{{")]
    assert len(lines) == 1
    return float(lines[0].rpartition(" ")[2])


def test_an_answer_belongs_to_its_prompt(client: Make) -> None:
    with Simulator(latency_s=0) as server:
        got = client(server).chat("row 17", max_tokens=30)
        assert got.status == 200
        assert got.text == answer("row 17", 30)
        assert got.json["usage"]["completion_tokens"] == 30


def test_every_route_answers(client: Make) -> None:
    with Simulator(latency_s=0, max_model_len=4096) as server:
        one = client(server)
        assert one.post("/v1/completions", '{"prompt": "p"}').json["choices"][0]["text"].startswith(digest("p"))
        assert len(one.post("/v1/embeddings", '{"input": ["a", "b"]}').json["data"]) == 2
        form = '--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nsound\r\n--B--\r\n'
        kind = {"Content-Type": "multipart/form-data; boundary=B"}
        assert one.post("/v1/audio/transcriptions", form, kind).json["text"]
        assert one.get("/health").status == 200
        assert one.get("/v1/models").json["data"][0]["max_model_len"] == 4096
        assert one.get("/metrics").status == 200
        assert one.get("/v1/nothing").status == 404
        assert one.get(CHAT).status == 405
        assert server.stats()["connections"] == 1


def test_metrics_and_health_can_be_off(client: Make) -> None:
    with Simulator(latency_s=0, metrics=False, health=False) as server:
        assert client(server).get("/metrics").status == 404
        assert client(server).get("/health").status == 404


@pytest.mark.parametrize("latency_s", [None, 0.0, 0.001])
def test_the_token_counters_count_the_work_of_every_request(client: Make, latency_s: float) -> None:
    with Simulator(step_s=0.0, per_seq_s=0.0, latency_s=latency_s) as server:
        one = client(server)
        for n in range(3):
            assert one.chat(f"row {n} " + "x" * 34, max_tokens=5).status == 200
        page = one.get("/metrics").body
        assert metric(page, "prompt_tokens_total") == 30
        assert metric(page, "generation_tokens_total") == 15
        assert metric(page, "num_requests_running") == metric(page, "num_requests_waiting") == 0


def test_the_gauges_show_what_runs_and_what_waits_for_a_place(client: Make) -> None:
    with Simulator(max_num_seqs=2, step_s=0.01, tokens=10**6) as server:
        clients = [client(server) for _ in range(5)]
        for n, one in enumerate(clients):
            one.send(f"row {n}")
        assert wait_until(lambda: (server.stats()["running"], server.stats()["waiting"]) == (2, 3))
        page = client(server).get("/metrics").body
        assert metric(page, "num_requests_running") == 2
        assert metric(page, "num_requests_waiting") == 3
        assert server.stats()["max_running"] == 2


def test_a_request_whose_client_left_is_taken_out_of_the_engine(client: Make) -> None:
    with Simulator(max_num_seqs=1, tokens=10**6) as server:
        first, second = client(server), client(server)
        first.send("never done")
        assert wait_until(lambda: server.stats()["running"] == 1)
        second.send("short", max_tokens=1)
        first.connection.close()
        assert second.receive().status == 200
        assert server.stats()["statuses"] == {"200": 1, "499": 1}


def test_a_server_may_go_on_with_a_request_whose_client_left(client: Make) -> None:
    with Simulator(max_num_seqs=1, step_s=0.001, tokens=400, abort_on_disconnect=False) as server:
        first = client(server)
        first.send("gone")
        assert wait_until(lambda: server.stats()["running"] == 1)
        first.connection.close()
        assert client(server).chat("next", max_tokens=1).status == 200
        page = client(server).get("/metrics").body
        assert metric(page, "generation_tokens_total") == 401


def test_kv_pressure_preempts_and_every_request_is_still_answered() -> None:
    with Simulator(max_num_seqs=8, step_s=0.0, per_seq_s=0.0, kv_tokens=60, tokens=20) as server:
        statuses: list[int] = []

        def ask(n: int) -> None:
            one = Client(server)
            statuses.append(one.chat(f"row {n}").status)
            one.connection.close()

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 16


def test_a_request_longer_than_the_model_is_a_400(client: Make) -> None:
    with Simulator(latency_s=0, max_model_len=100) as server:
        refused = client(server).chat("x" * 400, max_tokens=1)
        assert refused.status == 400
        assert "maximum context length is 100" in refused.json["error"]["message"]


def test_a_stream_sends_the_same_text_in_events_and_ends_with_done(client: Make) -> None:
    with Simulator(step_s=0.01, per_seq_s=0.0) as server:
        got = client(server).chat("row 3", max_tokens=20, stream=True, stream_options={"include_usage": True})
        assert got.headers["content-type"] == "text/event-stream"
        *events, done, rest = got.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        frames = [json.loads(event[len("data: ") :]) for event in events]
        pieces = [frame["choices"][0]["delta"].get("content", "") for frame in frames if frame["choices"]]
        assert "".join(pieces) == answer("row 3", 20)
        assert len([piece for piece in pieces if piece]) > 1
        assert frames[-1]["usage"]["completion_tokens"] == 20


def test_an_id_is_the_header_or_else_what_was_asked(client: Make) -> None:
    with Simulator(latency_s=0) as server:
        one = client(server)
        named = one.chat("a", name="row-1")
        assert named.headers["x-request-id"] == "row-1"
        one.chat("b")
        one.chat("b")
        one.chat("c")
        assert server.served[0] == "row-1"
        assert len(server.served) == len(server.received) == 4
        assert server.paid_twice() == {server.served[1]: 2}
        stats = one.get("/simulate/stats").json
        assert (stats["received"], stats["served"], stats["distinct"], stats["twice"]) == (4, 4, 3, 1)


def test_a_refused_request_is_received_and_not_served(client: Make) -> None:
    with Simulator(latency_s=0, faults=Faults("error:attempts=1,status=503")) as server:
        one = client(server)
        assert [one.chat("a", name="r").status for _ in range(2)] == [503, 200]
        assert (server.received, server.served, server.paid_twice()) == (["r", "r"], ["r"], {})


def test_a_readiness_probe_is_answered_and_nobody_s_row(client: Make) -> None:
    with Simulator(latency_s=0) as server:
        body = '{"messages": [{"role": "user", "content": "hi"}]}'
        assert client(server).post(CHAT, body, {"x-saturate-probe": "breaker"}).status == 200
        assert server.received == server.served == []


def test_the_record_has_a_line_for_each_answer_before_the_client_reads_it(client: Make, tmp_path: Path) -> None:
    record = tmp_path / "served.txt"
    record.write_text("earlier 200\n")
    with Simulator(latency_s=0, record=record, faults=Faults("error:contains=bad,status=500")) as server:
        one = client(server)
        for n, content in enumerate(["fine", "bad", "fine too"]):
            one.chat(content, name=f"row {n}")
            assert len(record.read_text().splitlines()) == n + 2
    assert record.read_text().splitlines() == ["earlier 200", "row 0 200", "row 1 500", "row 2 200"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 268435457\r\n\r\n", 413),
        (b"DELETE /health HTTP/1.1\r\n\r\n", 405),
    ],
)
def test_a_request_that_cannot_be_followed_is_answered_and_the_connection_closed(sent: bytes, status: int) -> None:
    with Simulator(latency_s=0) as server, socket.create_connection(("127.0.0.1", server.port), 10) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: sock.recv(65536), b""))
        assert said.startswith(b"HTTP/1.1 %d " % status)
        assert b"Connection: close" in said
        assert b'"error"' in said


def test_a_bad_body_is_a_400_and_the_connection_goes_on(client: Make) -> None:
    with Simulator(latency_s=0) as server:
        one = client(server)
        assert one.post(CHAT, "{").json["error"]["code"] == 400
        assert one.chat("x").status == 200
        assert server.stats()["connections"] == 1


def test_a_chunked_request_and_a_client_that_expects_100_continue_are_served(client: Make) -> None:
    body = b'{"messages": [{"role": "user", "content": "in chunks"}]}'
    with Simulator(latency_s=0) as server:
        one = client(server)
        one.connection.request("POST", CHAT, iter([body[:10], body[10:]]), {}, encode_chunked=True)
        assert one.receive().text.startswith(digest("in chunks"))
        with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
            head = f"POST {CHAT} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode())
            assert sock.recv(1000).startswith(b"HTTP/1.1 100 Continue")
            sock.sendall(body)
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")


def test_two_requests_sent_at_once_on_a_connection_get_two_answers() -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}]}'
    request = f"POST {CHAT} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with Simulator(latency_s=0) as server, socket.create_connection(("127.0.0.1", server.port), 10) as sock:
        sock.sendall(request + request)
        said = b""
        while said.count(b"HTTP/1.1 200") < 2:
            said += sock.recv(65536)
        assert len(server.served) == 2


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open() -> None:
    with Simulator(latency_s=0) as server:
        before = descriptors()
        with pytest.raises(OSError):
            Simulator(port=server.port).start()
        assert descriptors() == before


@pytest.mark.parametrize("wrong", [{"max_num_seqs": 0}, {"step_s": -1.0}, {"tokens": "many"}, {"latency_s": -1.0}])
def test_arguments_that_make_no_sense_are_refused_at_the_call(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Simulator(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["hanging", "queued", "streaming", "idle"])
def test_stop_leaves_no_thread_and_no_socket_with_300_connections_open(how: str) -> None:
    before = descriptors()
    clients = []
    server = Simulator(max_num_seqs=4, tokens=10**4, step_s=1.0, faults=Faults("hang") if how == "hanging" else None)
    with server:
        for n in range(300):
            one = Client(server)
            clients.append(one)
            if how == "idle":
                one.connection.connect()
            else:
                one.send(f"row {n}", stream=how == "streaming")
        assert wait_until(lambda: server.stats()["connections"] == 300)
        if how != "idle":
            assert wait_until(lambda: server.stats()["received"] == 300)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("simulate-")]
    for one in clients:
        one.connection.close()
    assert descriptors() == before
    server.stop()  # again, and nothing happens


def test_a_forked_process_keeps_neither_the_port_nor_a_connection_alive(client: Make) -> None:
    with Simulator(latency_s=0) as server:
        one = client(server)
        one.chat("a")
        copy = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        copy.start()
        try:
            server.faults = Faults("drop")
            one.send("b")
            with pytest.raises(ConnectionResetError):
                one.receive()
            server.stop()
            with pytest.raises(ConnectionRefusedError):
                client(server).get("/health")
        finally:
            copy.kill()
            copy.join()


def test_connections_that_end_leave_no_thread_while_the_server_lives(client: Make) -> None:
    with Simulator(latency_s=0) as server:
        for _ in range(20):
            one = client(server)
            one.chat("x")
            one.connection.close()
        assert wait_until(lambda: sum(t.name == "simulate-connection" for t in threading.enumerate()) == 0)
