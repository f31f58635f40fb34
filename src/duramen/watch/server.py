"""The web server of `duramen serve`. Reads only: it accepts GET and HEAD.

It binds to loopback unless a token is given; then every request must carry the token. It refuses a request whose
``Host`` is not its own, so that a foreign page cannot reach it under another name (DNS rebinding). The page loads
nothing from other hosts (Content-Security-Policy). Records are sent as JSON and shown as text only.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from duramen.disk import Disk, PosixDisk
from duramen.errors import DuramenError, StorageError, UsageError
from duramen.metrics import CONTENT_TYPE
from duramen.watch import api
from duramen.watch.watcher import Watch

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("page", "dom", "chart", "overview", "log", "records", "record", "consumers", "rates", "segments")
    },
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """The web server. `serve_forever` runs it; `close` stops it and its observers."""

    daemon_threads = True

    def __init__(
        self, paths: Sequence[str], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None,
        state: str | None = None, disk: Disk | None = None,
    ) -> None:  # fmt: skip
        if not is_loopback(host) and not token:
            raise UsageError(
                f"{host} can be reached from other machines: that needs a token",
                hint="--token SECRET, and open the page with ?token=SECRET",
            )
        self.token = token
        self.is_local = is_loopback(host)
        self.watch = Watch(disk if disk is not None else PosixDisk(), paths, state)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            self.watch.close()
            raise StorageError(f"cannot listen on {host} port {port}: {error.strerror}", path=host) from error

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/"

    def close(self) -> None:
        self.server_close()
        self.watch.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a disconnected client; print any other error as one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            sys.stderr.write(f"duramen: serve: {type(error).__name__}: {error}\n")


class Response(NamedTuple):
    status: HTTPStatus
    kind: str
    body: bytes
    extra: Mapping[str, str] = MappingProxyType({})


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "duramen"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        self._handle(with_body=True)

    def do_HEAD(self) -> None:
        self._handle(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""

    # --- one request

    def _handle(self, *, with_body: bool) -> None:
        extra: dict[str, str] = {}
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # an unread body must not be parsed as the next request
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, keep_blank_values=True, max_num_fields=1000)
        except ValueError:
            self._send(_text(HTTPStatus.BAD_REQUEST, "invalid URL\n"), extra, with_body=with_body)
            return
        if not self._is_own_host():
            response = _text(HTTPStatus.MISDIRECTED_REQUEST, "this server does not serve that host name\n")
        elif not self._has_token(query, extra):
            response = _text(HTTPStatus.UNAUTHORIZED, "a token is required: add ?token=…\n")
        else:
            response = self._respond(url.path, query)
        self._send(response, extra, with_body=with_body)

    def _send(self, response: Response, extra: dict[str, str], *, with_body: bool) -> None:
        self.send_response(response.status)
        for name, value in {**HEADERS, **extra, **response.extra}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", response.kind)
        self.send_header("Content-Length", str(len(response.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if with_body:
            self.wfile.write(response.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Respond to what the base class refuses: other methods and malformed requests."""
        self.close_connection = True
        if code == HTTPStatus.NOT_IMPLEMENTED:
            response = _text(HTTPStatus.METHOD_NOT_ALLOWED, "this server only reads: GET and HEAD\n")
            self._send(response, {"Allow": "GET, HEAD"}, with_body=True)
        else:
            self._send(_text(HTTPStatus(code), "malformed request\n"), {}, with_body=True)

    def _is_own_host(self) -> bool:
        """Whether the request names this server; a page of another site uses its own host name."""
        if not self.server.is_local:
            return True  # who reaches it from elsewhere has the token
        try:
            host = urlsplit("//" + self.headers.get("Host", "")).hostname
        except ValueError:
            return False
        return host is not None and is_loopback(host)

    def _has_token(self, query: dict[str, list[str]], extra: dict[str, str]) -> bool:
        """Check the token in the URL, which also sets a cookie, in that cookie, or in ``Authorization: Bearer``."""
        wanted = self.server.token
        asked = query.pop("token", None)
        if not wanted:
            return True
        kind, _, secret = self.headers.get("Authorization", "").partition(" ")
        given = asked[-1] if asked else secret if kind.lower() == "bearer" else self._cookie()
        if not hmac.compare_digest((given or "").encode(), wanted.encode()):
            return False
        if asked:
            extra["Set-Cookie"] = f"duramen={quote(wanted, safe='')}; HttpOnly; SameSite=Strict; Path=/"
        return True

    def _cookie(self) -> str | None:
        for part in self.headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == "duramen":
                return unquote(value)
        return None

    def _respond(self, path: str, query: dict[str, list[str]]) -> Response:
        if path in FILES:
            name, kind = FILES[path]
            return Response(HTTPStatus.OK, kind, (files("duramen.watch") / "page" / name).read_bytes())
        watch = self.server.watch
        asked = {name: values[-1] for name, values in query.items()}
        if path == "/api/check" and self.headers.get("X-Duramen") != "page":
            asked.pop("start", None)  # only the page itself can start one: it costs the disk's time
        try:
            if path == "/metrics":
                return Response(HTTPStatus.OK, CONTENT_TYPE, api.exposition(watch, query.get("log", [])).encode())
            if path == "/api/value":
                name = f"offset-{asked.get('offset', '')[:19]}.bin"
                attached = {"Content-Disposition": f'attachment; filename="{name}"'}
                return Response(HTTPStatus.OK, "application/octet-stream", api.value(watch, asked), attached)
            if path not in api.ACTIONS:
                return _json(HTTPStatus.NOT_FOUND, {"error": "no such page"})
            return _json(HTTPStatus.OK, api.ACTIONS[path](watch, asked))
        except UsageError as error:
            return _json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except DuramenError as error:
            return _json(HTTPStatus.CONFLICT, {"error": str(error)})


def _text(status: HTTPStatus, text: str) -> Response:
    return Response(status, "text/plain; charset=utf-8", text.encode())


def _json(status: HTTPStatus, tree: Any) -> Response:
    return Response(status, "application/json; charset=utf-8", json.dumps(tree).encode())
