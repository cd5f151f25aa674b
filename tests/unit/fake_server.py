"""HTTP servers on the loopback that answer as SGLang or vLLM do, or as badly as a test asks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


def reply(body: Any, status: int = 200, **headers: str) -> Answer:
    """A whole answer: JSON, text, or bytes."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


class Fake:
    """``answers``: by path; ``asked``: every request, with its authorization header and its body."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers, self.url = answers, ""
        self.asked: list[tuple[str, str | None, bytes]] = []


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """The fake at a free port of the loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.asked.append((self.path, self.headers.get("Authorization"), body))
            try:
                fake.answers.get(self.path, reply({"detail": "Not Found"}, 404))(self)
            except OSError:  # the client has left
                self.close_connection = True

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()


SGLANG_INFO: dict[str, Any] = {
    "model_path": "/m/target", "version": "0.5.23", "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "/m/draft",
    "speculative_num_steps": 4, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 5, "skip_tokenizer_init": False,
    "api_key": "s3cret-key", "hf_token": None, "quantization": None, "device": "cuda",
    "launch_command": "python -m sglang.launch_server --api-key s3cret-key", "internal_states": [{"avg_spec_accept_length": 2.0}],
}  # fmt: skip


def meta(histogram: list[int], **changes: Any) -> dict[str, Any]:
    """``meta_info`` of one request, as SGLang 0.5.23 gives it."""
    rounds, accepted = sum(histogram), sum(i * n for i, n in enumerate(histogram))
    return {
        "id": "x", "prompt_tokens": 12, "completion_tokens": rounds + accepted + 1, "spec_verify_ct": rounds,
        "spec_num_correct_drafts": accepted, "spec_correct_drafts_histogram": histogram,
    } | changes  # fmt: skip


def sglang(histogram: list[int] | None = None, info: dict[str, Any] | None = None, **changes: Any) -> Fake:
    """A server of SGLang 0.5.23 without metrics."""
    answer = {"text": "the quick brown fox jumps over the lazy dog and runs", "meta_info": meta(histogram or [6, 2, 1, 0, 1], **changes)}
    return Fake({"/server_info": reply({**SGLANG_INFO, **(info or {})}), "/generate": reply(answer)})


def vllm_page(rounds: int, positions: list[int], requests: int, generated: int, running: int = 0) -> str:
    """A page of ``/metrics`` as vLLM 0.32 prints it."""
    label = 'engine="0",model_name="m"'
    rows = [
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.",
        f"vllm:num_requests_running{{{label}}} {running}.0",
        f"vllm:spec_decode_num_drafts_total{{{label}}} {float(rounds)}",
        f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {float(rounds * len(positions))}",
        f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {float(sum(positions))}",
        f"vllm:spec_decode_num_accepted_tokens_created{{{label}}} 1.7e+09",
        f'vllm:request_success_total{{{label},finished_reason="length"}} {float(requests)}',
        f'vllm:request_success_total{{{label},finished_reason="stop"}} 0.0',
        f"vllm:generation_tokens_total{{{label}}} {float(generated)}",
    ]
    rows += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{i}"}} {float(n)}' for i, n in enumerate(positions)]
    return "\n".join(rows) + "\n"


def vllm(strangers: int = 0, late: int = 0, each: tuple[int, list[int], int] = (10, [6, 3, 1], 21)) -> Fake:
    """A server of vLLM 0.32: each request adds ``each`` = (rounds, positions, tokens) to the counters, which lag by ``late`` pages."""
    rounds, positions, tokens = each
    state = {"done": 0, "pages": 0}

    def complete(handler: BaseHTTPRequestHandler) -> None:
        state["done"] += 1
        usage = {"prompt_tokens": 9, "completion_tokens": tokens}
        reply({"choices": [{"text": "a b c d e f g h i", "index": 0}], "usage": usage})(handler)

    def metrics(handler: BaseHTTPRequestHandler) -> None:
        done = state["done"]
        if done:
            state["pages"] += 1
            done = 0 if state["pages"] <= late else done + strangers
        page = vllm_page(1000 + rounds * done, [500 + n * done for n in positions], 40 + done, 3000 + tokens * done)
        reply(page, Content_Type="text/plain")(handler)

    return Fake(
        {
            "/version": reply({"version": "0.32.0"}),
            "/v1/models": reply({"object": "list", "data": [{"id": "m"}]}),
            "/metrics": metrics,
            "/v1/completions": complete,
        }
    )
