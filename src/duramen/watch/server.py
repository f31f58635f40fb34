"""A local web page about some logs. Reads only: it answers GET and HEAD and nothing else.

Bound to loopback unless a token is given; with a token every request must carry it. A request whose ``Host`` is not the
server's own is refused, so that no foreign page can reach it under a name of its own. Nothing is loaded from elsewhere,
and the page may not, either (Content-Security-Policy). Records are sent as JSON and shown as text only.

Logs are looked at when somebody asks for them, and for a while after; a thousand topics cost nothing while nobody
looks.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from duramen import metrics
from duramen.disk import Disk, PosixDisk
from duramen.errors import DuramenError, StorageError, UsageError
from duramen.log.reader import Log
from duramen.log.verify import verify
from duramen.metrics.exposition import CONTENT_TYPE
from duramen.watch import browsing
from duramen.watch.observing import Observer, as_json
from duramen.watch.places import Place, Places

LOGS_PER_PAGE = 50
MAX_CELLS = 600
MAX_OBSERVERS = 64
WATCHED_FOR_S = 120.0
EVERY_S = 1.0

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Watch:
    """The logs behind the page, observed while somebody looks."""

    def __init__(self, disk: Disk, paths: Sequence[str]) -> None:
        self.places = Places(disk, paths)
        self._disk = disk
        self._guard = threading.Lock()
        self._observers: OrderedDict[str, tuple[Observer, float]] = OrderedDict()
        self._checks: dict[str, Check] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duramen watch", daemon=True)
        self._thread.start()

    def observer(self, name: str) -> Observer:
        place = self.places.get(name)
        with self._guard:
            known = self._observers.pop(name, None)
            observer = known[0] if known is not None else Observer(self._disk, place)
            self._observers[name] = (observer, time.monotonic())
            while len(self._observers) > MAX_OBSERVERS:
                self._observers.popitem(last=False)[1][0].close()
        if known is None:
            observer.observe()
        return observer

    def check(self, name: str, *, start: bool) -> Check | None:
        """The last check of a log; ``start``: a new one, unless one is running."""
        place = self.places.get(name)
        with self._guard:
            check = self._checks.get(name)
            if start and (check is None or not check.running):
                check = self._checks[name] = Check(self._disk, place)
            return check

    def samples(self, names: Iterable[str]) -> list[metrics.Sample]:
        found: list[metrics.Sample] = []
        for name in names:
            observer = self.observer(name)
            observer.observe()
            found += observer.samples()
        return found

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        with self._guard:
            for observer, _ in self._observers.values():
                observer.close()
            self._observers.clear()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            with self._guard:
                now = time.monotonic()
                for name, (observer, asked) in list(self._observers.items()):
                    if now - asked > WATCHED_FOR_S:
                        del self._observers[name]
                        observer.close()
                watched = [observer for observer, _ in self._observers.values()]
            for observer in watched:
                observer.observe()


class Check:
    """A check of every byte of a log, in a thread of its own."""

    def __init__(self, disk: Disk, place: Place) -> None:
        self.running = True
        self.done_bytes = self.total_bytes = 0
        self.findings: list[dict[str, Any]] = []
        self.problem: str | None = None
        threading.Thread(target=self._run, args=(disk, place), name="duramen check", daemon=True).start()

    def _run(self, disk: Disk, place: Place) -> None:
        try:
            with Log(place.path, disk=disk) as log:
                self.total_bytes = sum(segment.size_bytes for segment in log.segments)
            report = verify(place.path, disk=disk, progress=self._progress)
            self.findings = [
                {
                    "code": finding.code,
                    "severity": str(finding.severity),
                    "path": finding.path,
                    "message": finding.message,
                    "action": finding.action,
                    "position": finding.position,
                    "first_offset": finding.first_offset,
                    "last_offset": finding.last_offset,
                }
                for finding in report.findings
            ]
        except DuramenError as error:
            self.problem = str(error)
        finally:
            self.running = False

    def _progress(self, checked_bytes: int) -> None:
        self.done_bytes += checked_bytes

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}


class Server(ThreadingHTTPServer):
    """The page's server. `serve_forever` runs it; `close` ends everything."""

    daemon_threads = True

    def __init__(
        self, paths: Sequence[str], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None,
        disk: Disk | None = None,
    ) -> None:  # fmt: skip
        if not is_loopback(host) and not token:
            raise UsageError(
                f"{host} can be reached from other machines: that needs a token",
                hint="--token SECRET, and open the page with ?token=SECRET",
            )
        self.token = token
        self.is_local = is_loopback(host)
        self.watch = Watch(disk if disk is not None else PosixDisk(), paths)
        if ":" in host:
            import socket

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
        """Nothing is printed for a request."""

    # --- one request

    def _handle(self, *, with_body: bool) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        extra: dict[str, str] = {}
        if not self._is_own_host():
            answer = _text(HTTPStatus.MISDIRECTED_REQUEST, "this server does not answer under that name\n")
        elif not self._has_token(query, extra):
            answer = _text(HTTPStatus.UNAUTHORIZED, "a token is needed: ?token=…\n")
        else:
            answer = self._answer(url.path, query)
        status, kind, body = answer
        self.send_response(status)
        for name, value in {**HEADERS, **extra}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            try:
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    def _is_own_host(self) -> bool:
        """A page of another site that resolves to this machine asks under its own name; it gets nothing."""
        if not self.server.is_local:
            return True  # who reaches it from elsewhere has the token
        host = urlsplit("//" + self.headers.get("Host", "")).hostname
        return host is not None and is_loopback(host)

    def _has_token(self, query: dict[str, str], extra: dict[str, str]) -> bool:
        wanted = self.server.token
        if not wanted:
            return True
        given = query.pop("token", None)
        if given is not None:
            extra["Set-Cookie"] = f"duramen={given}; HttpOnly; SameSite=Strict; Path=/"
        else:
            kind, _, secret = self.headers.get("Authorization", "").partition(" ")
            given = secret if kind.lower() == "bearer" else self._cookie()
        allowed = hmac.compare_digest((given or "").encode(), wanted.encode())
        if not allowed:
            extra.clear()
        return allowed

    def _cookie(self) -> str | None:
        for part in self.headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == "duramen":
                return value
        return None

    def _answer(self, path: str, query: dict[str, str]) -> tuple[HTTPStatus, str, bytes]:
        if path in FILES:
            name, kind = FILES[path]
            return HTTPStatus.OK, kind, (files("duramen.watch") / "page" / name).read_bytes()
        try:
            if path == "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE, self._metrics(query).encode()
            action = ACTIONS.get(path)
            if action is None:
                return _text(HTTPStatus.NOT_FOUND, "there is no such page\n")
            if path == "/api/check" and self.headers.get("X-Duramen") != "page":
                query.pop("start", None)  # only the page itself can start one: it costs the disk's time
            return _json(HTTPStatus.OK, action(self.server.watch, query))
        except UsageError as error:
            return _json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except DuramenError as error:
            return _json(HTTPStatus.CONFLICT, {"error": str(error)})

    def _metrics(self, query: dict[str, str]) -> str:
        watch = self.server.watch
        names = [place.name for place in watch.places.all()][:MAX_OBSERVERS]
        wanted = [query["log"]] if "log" in query else names
        own = [sample for sample in metrics.snapshot() if "log" not in dict(sample.labels)]
        return metrics.exposition([*watch.samples(wanted), *own])


def _text(status: HTTPStatus, text: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain; charset=utf-8", text.encode()


def _json(status: HTTPStatus, tree: Any) -> tuple[HTTPStatus, str, bytes]:
    return status, "application/json; charset=utf-8", json.dumps(tree).encode()


# --- what the page asks for


def _logs(watch: Watch, query: dict[str, str]) -> dict[str, Any]:
    total, places = watch.places.page(query.get("q", ""), _number(query, "skip", 0), LOGS_PER_PAGE)
    return {"total": total, "per_page": LOGS_PER_PAGE, "logs": [place.name for place in places]}


def _log(watch: Watch, query: dict[str, str]) -> dict[str, Any]:
    observer = watch.observer(query.get("log", ""))
    history = list(observer.history)
    return {
        "name": observer.place.name,
        "now": as_json(history[-1]),
        "rates": observer.rates()._asdict(),
        "history": [[seen.at, seen.next_offset, seen.size_bytes] for seen in history if seen.problem is None],
        "lag_history": [[seen.at, max((one.lag or 0 for one in seen.standings), default=0)] for seen in history],
    }


def _segments(watch: Watch, query: dict[str, str]) -> dict[str, Any]:
    log = watch.observer(query.get("log", "")).log()
    if "skip" in query:
        skip, count = _number(query, "skip", 0), min(_number(query, "count", 100), MAX_CELLS)
        segments = log.segments
        bases = [segment.base_offset for segment in segments] + [log.next_offset]
        rows = [
            {**segment._asdict(), "next_offset": bases[skip + number + 1]}
            for number, segment in enumerate(segments[skip : skip + count])
        ]
        return {"total": len(segments), "segments": rows}
    return {"total": len(log.segments), "cells": browsing.segment_cells(log, MAX_CELLS)}


def _records(watch: Watch, query: dict[str, str]) -> dict[str, Any]:
    log = watch.observer(query.get("log", "")).log()
    if query.get("q"):
        return browsing.search(log, query["q"], query.get("at", ""), _number(query, "count", 50))
    return browsing.page(log, query.get("at", ""), _number(query, "count", 50))


def _record(watch: Watch, query: dict[str, str]) -> dict[str, Any]:
    return browsing.one(watch.observer(query.get("log", "")).log(), _number(query, "offset", 0))


def _check(watch: Watch, query: dict[str, str]) -> dict[str, Any]:
    check = watch.check(query.get("log", ""), start="start" in query)
    return {"check": None if check is None else check.as_json()}


ACTIONS: dict[str, Callable[[Watch, dict[str, str]], dict[str, Any]]] = {
    "/api/logs": _logs,
    "/api/log": _log,
    "/api/segments": _segments,
    "/api/records": _records,
    "/api/record": _record,
    "/api/check": _check,
}


def _number(query: dict[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdigit() or len(text) > 19:
        raise UsageError(f"{name}={text!r} is no number")
    return int(text)
