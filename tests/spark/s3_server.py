"""An S3 server of a few requests, over a local directory: enough for a client that lists, looks and reads.

The client is the real one. Every byte that is handed out is counted, so that tests see what a read fetched.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class S3(ThreadingHTTPServer):
    """Buckets are the directories in ``root``."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.sent: list[tuple[str, int]] = []

    def address(self, path: str) -> str:
        query = f"scheme=http&endpoint_override=127.0.0.1:{self.server_port}&region=us-east-1"
        return f"s3://key:secret@{path}?{query}"


class _Handler(BaseHTTPRequestHandler):
    server: S3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Otherwise a body waits 40 ms until the client has acknowledged its header."""

    def do_HEAD(self) -> None:
        self._object(send=False)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" in parse_qs(parts.query):
            self._list(unquote(parts.path).strip("/"), parse_qs(parts.query))
        else:
            self._object(send=True)

    def _object(self, *, send: bool) -> None:
        name = unquote(urlsplit(self.path).path).strip("/")
        path = self.server.root / name
        if path.is_dir() and "/" not in name:
            self._answer(200, b"", {})
        elif not path.is_file():
            self._answer(404, b"" if not send else b"<Error><Code>NoSuchKey</Code></Error>", {})
        else:
            content = path.read_bytes()
            status, headers = 200, {"Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT", "ETag": '"x"'}
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if wanted and send:
                start, end = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
                headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
                status, content = 206, content[start : end + 1]
            if send:
                self.server.sent.append((name, len(content)))
            self._answer(status, content if send else b"", headers, len(content))

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        base = self.server.root / bucket
        keys = sorted(str(p.relative_to(base)) for p in base.rglob("*") if p.is_file())
        keys = [key for key in keys if key.startswith(prefix)]
        folders: set[str] = set()
        if "delimiter" in query:
            below = {key: key[len(prefix) :].partition("/") for key in keys}
            folders = {prefix + part[0] + "/" for part in below.values() if part[1]}
            keys = [key for key, part in below.items() if not part[1]]
        stamp = "<LastModified>2023-11-14T22:13:20.000Z</LastModified>"
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{(base / key).stat().st_size}</Size>{stamp}</Contents>"
            for key in keys
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        count = len(keys) + len(folders)
        body = (
            f"<?xml version='1.0'?><ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{count}</KeyCount><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
        )
        self._answer(200, body.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str], length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def serving(root: Path) -> Iterator[S3]:
    with S3(root) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
