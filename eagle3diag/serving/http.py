"""A small HTTP client for untrusted servers: one deadline a request, bounded bodies, no redirects, and a key that stays in."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from eagle3diag.errors import BadArgument, UnusableServer
from eagle3diag.serving.launch import HIDDEN

LARGEST_BODY = 16 << 20
_KEY = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class Reply:
    """One answer: its status, its body as text (any echo of the key hidden), and where it points to when it redirects."""

    status: int
    text: str
    location: str | None = None
    _key: str | None = field(default=None, repr=False, compare=False)

    def json(self) -> Any:
        """The body as JSON, the key hidden once more, since JSON can spell it in other ways; None where it is none."""
        try:
            return self._hidden(json.loads(self.text))
        except (ValueError, RecursionError):
            return None

    def _hidden(self, value: Any) -> Any:
        if self._key is None:
            return value
        if isinstance(value, str):
            return value.replace(self._key, HIDDEN)
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        return {self._hidden(k): self._hidden(v) for k, v in value.items()} if isinstance(value, dict) else value


@dataclass(frozen=True)
class Server:
    """Where a server listens, as far as it may be shown; the key is kept out of every representation."""

    scheme: str
    host: str
    port: int
    path: str
    timeout: float
    _key: str | None = field(default=None, repr=False, compare=False)

    @classmethod
    def at(cls, url: str, *, api_key: str | None = None, timeout: float = 30.0) -> Server:
        """Parse ``http://host:port[/path]``; a trailing ``/v1`` is taken off.

        Raises
        ------
        BadArgument: no such URL, one that carries a name, a password or a query, or a key that no header can carry. None is repeated.
        """
        hint = "write it like http://127.0.0.1:30000"
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            raise BadArgument("this is not a URL", where="probe", hint=hint) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\x00-\x20\x7f]", url):
            raise BadArgument("this is not an http or https URL", where="probe", hint=hint)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise BadArgument("the URL carries a name, a password or a query", where="probe", hint="give the key as api_key (--api-key)")
        if api_key is not None and not _KEY.fullmatch(api_key):
            raise BadArgument("the API key holds blanks, line ends or other characters that no header can carry", where="probe")
        if not 0 < timeout < 86400:
            raise BadArgument(f"timeout {timeout:g} is not a usable number of seconds", where="probe", hint="such as 30")
        path = re.sub(r"/v1/?$", "", parts.path.rstrip("/"))
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path, timeout, api_key)

    @property
    def url(self) -> str:
        """The URL without anything secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def has_key(self) -> bool:
        return self._key is not None

    def get(self, path: str) -> Reply:
        """``GET path``. Raises :class:`~eagle3diag.errors.UnusableServer` when no whole answer comes in time."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Reply:
        """``POST path`` with JSON; the same errors."""
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Reply:
        reply = self._once(method, path, body)
        if reply.status in (301, 302, 303, 307, 308):
            target = urlsplit(reply.location or "")
            same = not target.netloc or (target.scheme, target.hostname, target.port or self.port) == (self.scheme, self.host, self.port)
            if method == "GET" and same and target.path.startswith("/") and not target.query:
                reply = self._once(method, target.path.removeprefix(self.path), body)  # such as /metrics to /metrics/
            if reply.status in (301, 302, 303, 307, 308):
                where = f"{target.scheme or self.scheme}://{target.netloc}" if target.netloc else "another path"
                raise UnusableServer(
                    f"{path} redirects to {where}, which is not followed", where=self.url, hint="give the server's own URL"
                )
        return reply

    def _once(self, method: str, path: str, body: bytes | None) -> Reply:
        headers = {"Accept": "*/*", "Connection": "close", "User-Agent": "eagle3diag"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            with self._connection() as (connection, deadline):
                connection.request(method, self.path + path, body=body, headers=headers)
                response = connection.getresponse()
                raw = self._body(response, path, deadline)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise self._explained(error, path) from None
        text = raw.decode("utf-8", errors="replace")
        location = response.getheader("Location")
        if self._key:
            text, location = text.replace(self._key, HIDDEN), location and location.replace(self._key, HIDDEN)
        return Reply(response.status, text, location, self._key)

    def _explained(self, error: Exception, path: str) -> UnusableServer:
        """Why no answer came, in words: the particular reasons first, for most of them are an ``OSError`` too."""
        match error:
            case ssl.SSLCertVerificationError():
                what, hint = f"the certificate is not trusted: {error.verify_message}", "set SSL_CERT_FILE to the authority's file"
            case ssl.SSLError():
                what, hint = f"no TLS here: {error.reason or 'the handshake failed'}", "is it http instead of https?"
            case TimeoutError():
                what, hint = f"no complete answer to {path} within {self.timeout:g} s", "is it still starting? raise timeout"
            case ConnectionRefusedError():
                what, hint = "the connection is refused", "is the server up, and is this its port?"
            case ConnectionResetError() | BrokenPipeError() | http.client.IncompleteRead():
                what = f"the connection was closed before the whole answer to {path} came"
                hint = "look at the server's log: did it end?"
            case socket.gaierror() | UnicodeError():
                what, hint = "the host's name is not known", "check the name"
            case _:
                what = f"no HTTP answer to {path}: {type(error).__name__}"
                hint = "is this the server's HTTP port, and is it http or https?"
        return UnusableServer(what, where=self.url, hint=hint)

    @contextmanager
    def _connection(self) -> Iterator[tuple[http.client.HTTPConnection, float]]:
        """A connection that is cut at its deadline, whatever the other side does with single bytes; and the deadline."""
        deadline = time.monotonic() + self.timeout
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        opened = [socket.create_connection((self.host, self.port), timeout=self.timeout)]
        connection.sock = opened[0]
        cut = threading.Timer(self.timeout, _shut, [opened])  # not of the connection, which lets go of its socket early
        cut.daemon = True
        cut.start()
        try:
            if self.scheme == "https":
                wrapped = ssl.create_default_context().wrap_socket(opened[0], server_hostname=self.host, do_handshake_on_connect=False)
                opened[0] = connection.sock = wrapped
                wrapped.do_handshake()
            yield connection, deadline
        except (OSError, http.client.HTTPException):
            if time.monotonic() >= deadline:
                raise TimeoutError from None
            raise
        finally:
            cut.cancel()
            connection.close()
            opened[0].close()

    def _body(self, response: http.client.HTTPResponse, path: str, deadline: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := response.read1(1 << 16):
            parts.append(part)
            size += len(part)
            if time.monotonic() >= deadline:
                raise TimeoutError
            if size > LARGEST_BODY:
                raise UnusableServer(
                    f"the answer to {path} is over {LARGEST_BODY >> 20} MiB", where=self.url, hint="is this an inference server?"
                )
        if time.monotonic() >= deadline:  # the end that was seen is our own cut
            raise TimeoutError
        if response.length:  # fewer bytes than were announced: cut off, by the server or at the deadline
            raise http.client.IncompleteRead(b"")
        return b"".join(parts)


def _shut(opened: list[socket.socket]) -> None:
    with suppress(OSError):
        opened[0].shutdown(socket.SHUT_RDWR)
