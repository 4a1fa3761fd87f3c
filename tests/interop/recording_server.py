"""A chat endpoint that writes down every request it was paid for, and refuses the prompts it is told to refuse."""

import collections
import http.server
import json
import threading
import time

from interop_job import answer_to


class RecordingServer:
    """Serves on a free loopback port while it is open: `with RecordingServer() as server: ... server.endpoint`.

    `refused` maps a prompt to the 4xx status it is answered with; the tests change it between runs. `delay_s` is
    slept before an answer. `paid` counts the requests of each prompt, refused ones included.
    """

    def __init__(self, refused=None, delay_s=0.0):
        self.refused = dict(refused or {})
        self.delay_s = delay_s
        self.paid = collections.Counter()
        self.bodies = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        recording = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = recording.answer(body)
                self.reply(status, json.dumps(answer, ensure_ascii=False).encode("utf-8"))

            def do_GET(self):
                self.reply(404, b"not found")  # no gauges: both programs run blind

            def reply(self, status, content):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                # One write for head and body: two would wait for the peer's delayed acknowledgement.
                self._headers_buffer.append(b"\r\n" + content)
                self.flush_headers()

            def log_message(self, *args):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request, client_address):
                pass  # a client killed in mid-request is what some tests are about

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body):
        prompt = body["messages"][-1]["content"]
        with self._changed:
            self.bodies.append(body)
            self.paid[prompt] += 1
            self._changed.notify_all()
        if self.delay_s:
            time.sleep(self.delay_s)
        if prompt in self.refused:
            return self.refused[prompt], {"error": {"message": "refused: " + prompt}}
        answer = answer_to(prompt)
        return 200, {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(answer)},
        }

    @property
    def requests(self):
        """How many requests were received so far."""
        with self._lock:
            return len(self.bodies)

    def wait_for(self, requests, timeout_s=30.0):
        """Returns once that many requests were received; TimeoutError when they do not come."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.bodies) >= requests, timeout_s):
                raise TimeoutError(f"{len(self.bodies)} of {requests} requests in {timeout_s} s")

    def forget(self):
        """Starts counting anew, and returns what was counted: prompt -> times."""
        with self._lock:
            paid, self.paid, self.bodies = self.paid, collections.Counter(), []
            return paid
