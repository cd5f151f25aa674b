"""Dumps on a web server: read by ranges, or as a whole where it knows none; whatever it sends, no more is taken than was asked for."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from test_dumps_remote import T, W, native, sample, speculators

from eagle3diag.dumps import open_dump, remote
from eagle3diag.errors import UnreadableFile

pytest.importorskip("aiohttp")
pytest.importorskip("fsspec")

TALL = (2, 10, 17)


class Server(ThreadingHTTPServer):
    """One folder; ``ranges`` are known or not, texts are ``packed`` or not, whatever a client asks for. ``sent`` counts bytes of answers."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.ranges, self.packed = root, True, False
        self.sent = 0
        self.small: dict[Path, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, address: Any) -> None:
        """A client that has what it wants hangs up."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.server.root / self.path.strip("/")
        if not path.exists():
            self.send_error(404)
            return
        status, headers = 200, {"Content-Type": "application/octet-stream"}
        if path.is_dir():
            data = "".join(f'<a href="{p.name}{"/" * p.is_dir()}">x</a>' for p in sorted(path.iterdir())).encode()
            headers["Content-Type"] = "text/html"
        else:
            data = path.read_bytes()
            headers |= {"Accept-Ranges": "bytes"} if self.server.ranges else {}
            if self.server.packed and path.suffix == ".json":
                small = self.server.small.get(path) or gzip.compress(data, 1)
                self.server.small[path], data, headers["Content-Encoding"] = small, small, "gzip"
            asked = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
            if self.server.ranges and asked[0]:
                status, start, stop = 206, int(asked[0]), min(int(asked[2] or len(data)) + 1, len(data))
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
                data = data[start:stop]
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        for i in range(0, len(data) if body else 0, 1 << 16):
            self.wfile.write(data[i : i + (1 << 16)])
            self.server.sent += len(data[i : i + (1 << 16)])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    made = Server(tmp_path / "served")
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_a_web_server_is_read(ranges: bool, packed: bool, server: Server) -> None:
    """With ranges little is fetched; without, files are. A server that packs texts although it was asked not to is understood."""
    server.ranges, server.packed = ranges, packed
    native(server.root / "d")
    found, local = open_dump(f"{server.url}/d/"), open_dump(server.root / "d")
    assert [r.name for r in found] == [r.name for r in local]
    server.sent = 0
    assert torch.equal(found[1].state(10), local[1].state(10))
    assert not ranges or server.sent <= T * W * 2 + remote.HEAD_BYTES
    assert all(torch.equal(a.features, b.features) and torch.equal(a.input_ids, b.input_ids) for a, b in zip(found, local, strict=True))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the pieces that were taken from streams."""
    made: list[int] = []
    stream = remote.RemotePlace._stream

    def watched(self: Any, name: str, most: int, *rest: Any) -> Iterator[bytes]:
        for piece in stream(self, name, most, *rest):
            made.append(len(piece))
            yield piece

    monkeypatch.setattr(remote.RemotePlace, "_stream", watched)
    return made


def test_a_server_without_ranges_is_not_taken_into_memory(server: Server, taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a head that was asked for one byte more is taken, however large the file is; then it is copied to the disk."""
    monkeypatch.setattr(remote, "HEAD_BYTES", 1000)
    server.ranges = False
    speculators(server.root / "d")
    found = open_dump(f"{server.url}/d/", boundaries=TALL)
    assert torch.equal(found[2].state(17), sample(2)["17"])
    assert taken and max(taken) <= 1001


@pytest.mark.parametrize("name", ["manifest.json", "responses.json", "rows.jsonl"])
def test_a_text_that_unpacks_without_end_is_not_followed(
    name: str, server: Server, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed a thousandfold, by ranges or not: what is taken is bounded after it is unpacked, in memory and on the disk."""
    monkeypatch.setattr(remote, "MAX_JSON_BYTES", 1 << 20)
    (server.root / "d").mkdir()
    (server.root / "d" / "manifest.json").write_bytes(b" " * (64 << 20))
    if name != "manifest.json":
        (server.root / "d" / "manifest.json").rename(server.root / "d" / name)
    for ranges in (True, False):
        server.ranges, server.packed = ranges, name.endswith(".json")
        taken.clear()
        with pytest.raises(UnreadableFile, match="larger than 1,048,576 bytes") as caught:
            open_dump(f"{server.url}/d/")
        assert str(caught.value.where) == f"{server.url}/d/{name}" and sum(taken) <= 2 * ((1 << 20) + 1)


def test_a_listing_that_leads_deeper_and_deeper_ends(server: Server) -> None:
    """Folders without end, as a server can make them up."""
    deep = server.root / "d"
    for _ in range(40):
        deep = deep / "f"
    deep.mkdir(parents=True)
    (deep / "x.pt").write_bytes(b"x")
    with pytest.raises(UnreadableFile, match=r"more than 32 deep"):
        open_dump(f"{server.url}/d/")


def test_a_server_that_fails_is_one_of_our_errors(server: Server) -> None:
    """A file that went since it was listed, and an address where nothing is."""
    native(server.root / "d")
    found = open_dump(f"{server.url}/d/")
    for shard in (server.root / "d").glob("shard-*"):
        shard.unlink()
    with pytest.raises(UnreadableFile, match="cannot be reached"):
        _ = found[0].features
    with pytest.raises(UnreadableFile, match="nothing is there"):
        open_dump(f"{server.url}/nowhere/")
