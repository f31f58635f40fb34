"""The page's server over real HTTP on loopback: what it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import StorageError, UsageError
from duramen.metrics import METRICS
from duramen.watch import api
from duramen.watch.discovery import WatchedPath
from duramen.watch.history import History
from duramen.watch.observer import Observer
from duramen.watch.server import FILES, Server
from tests.values import amqp_messages as amqp
from tests.watch.building import many_segments, many_topics

Get = Callable[..., tuple[int, dict[str, str], bytes]]
LINE = re.compile(r'^([a-z0-9_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (\S+)$')


class Client:
    def __init__(self, server: Server) -> None:
        self.server = server

    def ask(
        self, path: str, query: dict[str, Any] | None = None, *, method: str = "GET", body: bytes | None = None,
        **headers: str,
    ) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
        host, port = self.server.server_address[:2]
        connection = http.client.HTTPConnection(str(host), int(port), timeout=120)
        try:
            target = path + ("?" + urlencode(query, doseq=True) if query else "")
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, path: str, expected: int = 200, **query: Any) -> Any:
        status, headers, body = self.ask(path, query)
        assert status == expected, body
        assert headers["content-type"].startswith("application/json")
        return json.loads(body)

    def raw(self, request: bytes) -> bytes:
        with socket.create_connection(self.server.server_address[:2], timeout=120) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture
def serving() -> Iterator[Callable[..., Client]]:
    servers: list[Server] = []

    def serve(*paths: Path, **options: Any) -> Client:
        server = Server([str(path) for path in paths], **options)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return Client(server)

    yield serve
    for server in servers:
        server.shutdown()
        server.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        for _ in range(3):
            log.append_batch([b"value %d" % number for number in range(40)], durability="write")
            log.seal()
        log.cursor("report").store(30)
    return tmp_path / "log"


def test_the_page_and_its_parts(serving: Callable[..., Client], path: Path) -> None:
    client = serving(path)
    page = Path(api.__file__).parent / "page"
    assert {file.name for file in page.iterdir()} == {name for name, _ in FILES.values()}
    for name, (_, kind) in FILES.items():
        status, headers, body = client.ask(name)
        assert (status, headers["content-type"]) == (200, kind)
        assert body
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "python" not in headers["server"].lower()
        assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"https://" not in body


def test_a_log_its_segments_and_records(serving: Callable[..., Client], path: Path) -> None:
    client = serving(path)
    assert [row["name"] for row in client.json("/api/logs")["rows"]] == [str(path)]
    seen = client.json("/api/log", log=path)
    assert seen["now"]["next_offset"] == 120
    assert seen["now"]["standings"][0]["lag"] == 90
    segments = client.json("/api/segments", log=path)
    assert segments["total"] == len(segments["cells"]) == 4
    part = client.json("/api/segments", log=path, skip=1, count=2)
    assert [one["base_offset"] for one in part["segments"]] == [40, 80]
    assert [one["next_offset"] for one in part["segments"]] == [80, 120]
    assert client.json("/api/segments", log=path, skip=99)["segments"] == []
    page = client.json("/api/records", log=path, at="100", count=5)
    assert [record["offset"] for record in page["records"]] == [100, 101, 102, 103, 104]
    found = client.json("/api/records", log=path, at="0", q="value 39")
    assert [record["offset"] for record in found["records"]] == [39, 79, 119]
    assert client.json("/api/record", log=path, offset=7)["fields"]


def overview(client: Client, **query: Any) -> dict[str, Any]:
    """The overview, after every log was observed."""
    deadline = time.monotonic() + 20
    while True:
        found: dict[str, Any] = client.json("/api/logs", **query)
        if not any(row["is_loading"] for row in found["rows"]):
            return found
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_overview(serving: Callable[..., Client], path: Path, tmp_path: Path) -> None:
    """One row per log or topic, with a row for a path that is missing and one for a log that cannot be read."""
    store = duramen.Store(str(tmp_path / "shop"))
    store.create("clicks", partitions=3, format="keratin")
    for number in range(12):
        store.topic("clicks").append(b"x", key=b"%d" % number)
    store.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("not a log")
    client = serving(path, tmp_path / "shop", tmp_path / "missing", tmp_path / "other")
    first = overview(client)
    rows = {row["name"]: row for row in first["rows"]}
    assert first["total"] == 4
    one, topic = rows[str(path)], rows[f"{tmp_path}/shop#clicks"]
    assert (one["health"], one["records"], one["lag"], one["formats"]) == ("good", 120, 90, ["keratin"])
    assert (one["partitions"], one["is_topic"], one["verified_at"]) == (1, False, None)
    assert (topic["partitions"], topic["records"], topic["is_topic"]) == (3, 12, True)
    assert topic["logs"] == [f"{tmp_path}/shop#clicks/{number}" for number in range(3)]
    missing = rows[str(tmp_path / "missing")]
    assert (missing["health"], missing["records"]) == ("unreadable", None)
    assert "no such file" in missing["reasons"][0]
    assert rows[str(tmp_path / "other")]["health"] == "unreadable"
    again = overview(client)  # problems come first as soon as they are known
    assert again["troubled"] == 2
    assert {row["health"] for row in again["rows"][:2]} == {"unreadable"}
    assert client.json("/api/log", log=tmp_path / "missing")["health"] == "unreadable"
    assert client.json("/api/records", 409, log=tmp_path / "missing")["error"]
    seen = client.json("/api/log", log=f"{tmp_path}/shop#clicks/1")
    assert (seen["title"], len(seen["partitions"])) == (f"{tmp_path}/shop#clicks", 3)


def test_damage_that_a_reader_meets_is_in_the_overview(serving: Callable[..., Client], path: Path) -> None:
    segment = min((path / "segments").glob("*.log"))
    raw = bytearray(segment.read_bytes())
    raw[200] ^= 1
    segment.write_bytes(raw)
    client = serving(path)
    assert overview(client)["rows"][0]["health"] == "good"  # not checked yet
    worst = [offset for offset in range(40) if client.ask("/api/record", {"log": path, "offset": offset})[0] == 409]
    assert worst
    row = overview(client)["rows"][0]
    assert row["health"] == "damaged"
    assert str(segment) in row["reasons"][0]


def test_a_check_by_another_process_is_in_the_overview(serving: Callable[..., Client], path: Path) -> None:
    client = serving(path)
    assert overview(client)["rows"][0]["verified_at"] is None
    segment = min((path / "segments").glob("*.log"))
    raw = bytearray(segment.read_bytes())
    raw[200] ^= 1
    segment.write_bytes(raw)
    duramen.verify(path, publish=True)
    deadline = time.monotonic() + 20
    while overview(client)["rows"][0]["health"] != "damaged":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    row = overview(client)["rows"][0]
    assert "the last check found" in row["reasons"][0]
    assert row["verified_at"] is not None


def test_a_live_view_waits_for_records(serving: Callable[..., Client], path: Path) -> None:
    client = serving(path)
    first = client.json("/api/tail", log=path, count=5)
    assert [record["offset"] for record in first["records"]] == [119, 118, 117, 116, 115]
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(client.json("/api/tail", log=path, after=first["next"])))
    waiting.start()
    with duramen.open(path, "a") as log:
        log.append(b"live")
        waiting.join(timeout=120)
    assert [record["preview"] for record in got[0]["records"]] == ["live"]
    assert got[0]["next"] == 121


def test_live_views_are_few(serving: Callable[..., Client], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_TAILS", threading.BoundedSemaphore(1))
    client = serving(path)
    with api._TAILS:
        assert "live views are open" in client.json("/api/tail", 409, log=path)["error"]
    assert client.json("/api/tail", log=path)["records"]


def test_a_value_is_downloaded_as_it_is(serving: Callable[..., Client], path: Path) -> None:
    with duramen.open(path, "a") as log:
        log.append(b"<script>alert(1)</script>\x00\xff")
    client = serving(path)
    status, headers, body = client.ask("/api/value", {"log": path, "offset": 120})
    assert (status, body) == (200, b"<script>alert(1)</script>\x00\xff")
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"] == 'attachment; filename="offset-120.bin"'
    assert headers["x-content-type-options"] == "nosniff"
    assert client.json("/api/value", 400, log=path, offset="1\r\nX: y")["error"]
    assert client.json("/api/value", 409, log=path, offset=5000)["error"]


def test_consumers_of_a_topic(serving: Callable[..., Client], tmp_path: Path) -> None:
    store = duramen.Store(str(tmp_path / "shop"))
    store.create("clicks", partitions=2, format="keratin")
    topic = store.topic("clicks")
    for number in range(20):
        topic.append(b"x", key=b"%d" % number)
    store.close()
    ends = []
    for number in range(2):
        with duramen.open(tmp_path / "shop" / "topics" / "clicks" / "partitions" / str(number), "a") as log:
            log.group("billing", consumer=f"worker-{number}").fetch(2)
            log.cursor("report").store(1)
            ends.append(log.next_offset)
    client = serving(tmp_path / "shop")
    found = client.json("/api/consumers", log=f"{tmp_path}/shop#clicks/1")
    assert [(one["kind"], one["name"]) for one in found["consumers"]] == [("group", "billing"), ("cursor", "report")]
    assert [part["lag"] for part in found["consumers"][0]["parts"]] == ends
    assert [part["in_flight"] for part in found["consumers"][0]["parts"]] == [2, 2]
    members = [
        [(one["consumer"], one["in_flight"]) for one in part["members"]] for part in found["consumers"][0]["parts"]
    ]
    assert members == [[("worker-0", 2)], [("worker-1", 2)]]
    assert [part["lag"] for part in found["consumers"][1]["parts"]] == [end - 1 for end in ends]
    assert found["consumers"][0]["recent"][-1][1] == 20
    assert not found["has_history"]


def test_the_history_of_a_day_outlives_the_server(serving: Callable[..., Client], path: Path, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    observer = Observer(PosixDisk(), WatchedPath(str(path), str(path)))
    for minutes in (30, 20, 10):
        seen = observer.observe()
        seen.at -= 60 * minutes
        History(PosixDisk(), state).add(str(path), seen)
    observer.close()
    client = serving(path, state=state)
    client.ask("/api/check", {"log": path, "start": 1}, **{"X-Duramen": "page"})
    deadline = time.monotonic() + 20
    while client.json("/api/check", log=path)["check"]["running"]:
        assert time.monotonic() < deadline
    again = serving(path, state=state)
    day = again.json("/api/log", log=path, history=1)["day"]
    assert [point[1:] for point in day[:3]] == [[120, seen.size_bytes, 90]] * 3
    found = again.json("/api/consumers", log=path)
    assert found["has_history"]
    assert [lag for _, lag in found["consumers"][0]["day"]][:3] == [90, 90, 90]
    assert overview(again)["rows"][0]["verified_at"] is not None
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_the_server_looks_at_logs_that_are_not_shown(
    serving: Callable[..., Client], path: Path, tmp_path: Path
) -> None:
    """The history gets its points, and the overview its problems, without a visit."""
    watch = serving(path, tmp_path / "missing", state=str(tmp_path / "state")).server.watch
    deadline = time.monotonic() + 20
    while not watch.noticed or not watch.history.read(str(path)).points:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert list(watch.noticed) == [str(tmp_path / "missing")]
    assert watch.history.read(str(path)).points[-1].lags == {"cursor report": 90}


def test_only_reading(serving: Callable[..., Client], path: Path) -> None:
    client = serving(path)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        status, headers, _ = client.ask("/api/check", {"log": path, "start": 1}, method=method, body=b"x")
        assert status == 405, method
        assert headers["allow"] == "GET, HEAD"
        assert "content-security-policy" in headers
    status, headers, body = client.ask("/", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 100
    client.json("/api/log", log=path)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", "", "192.0.2.1"])
def test_a_foreign_name_gets_nothing(serving: Callable[..., Client], path: Path, host: str) -> None:
    status, _, body = serving(path).ask("/api/logs", Host=host)
    assert status == 421
    assert str(path).encode() not in body


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1", "127.5.5.5:80", "[::1]:80"])
def test_its_own_names(serving: Callable[..., Client], path: Path, host: str) -> None:
    assert serving(path).ask("/api/logs", Host=host)[0] == 200


def test_a_token(serving: Callable[..., Client], path: Path) -> None:
    token = "s3cret; Päth=/"
    client = serving(path, token=token)
    for wrong in (None, "", "s3cret", token + "x", "\r\nX: y"):
        status, headers, body = client.ask("/api/logs", None if wrong is None else {"token": wrong})
        assert status == 401
        assert "set-cookie" not in headers
        assert str(path).encode() not in body
    status, headers, _ = client.ask("/", {"token": token})
    assert status == 200
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.ask("/api/logs", Cookie=f"other=1; {cookie.split(';')[0]}")[0] == 200
    assert client.ask("/api/logs", Cookie="duramen=wrong")[0] == 401
    plain = serving(path, token="plain")
    assert plain.ask("/metrics", Authorization="Bearer plain")[0] == 200
    assert plain.ask("/metrics", Authorization="bearer wrong")[0] == 401
    assert plain.ask("/metrics", Authorization="Basic plain")[0] == 401
    for name in ("/", "/page.js", "/metrics", "/nothing"):
        assert plain.ask(name)[0] == 401


def test_anything_but_loopback_needs_one(path: Path) -> None:
    for host in ("0.0.0.0", "::", "example.org", "192.0.2.1"):
        for token in (None, ""):
            with pytest.raises(UsageError, match="token"):
                Server([str(path)], host=host, token=token)


def test_a_request_with_the_token_may_use_any_host_name(serving: Callable[..., Client], path: Path) -> None:
    client = serving(path, host="0.0.0.0", token="secret")
    assert client.ask("/api/logs", Host="log.example")[0] == 401
    assert client.ask("/api/logs", Host="log.example", Authorization="Bearer secret")[0] == 200


def test_a_port_that_is_taken(serving: Callable[..., Client], path: Path) -> None:
    taken = int(serving(path).server.server_address[1])
    with pytest.raises(StorageError, match="cannot listen"):
        Server([str(path)], port=taken)


@pytest.mark.parametrize(
    ("address", "query", "status"),
    [
        ("/nothing", {}, 404),
        ("/../../etc/passwd", {}, 404),
        ("/api/", {}, 404),
        ("/api/log", {}, 400),
        ("/api/log", {"log": "/etc"}, 400),
        ("/api/log", {"log": "{path}/../log"}, 400),
        ("/metrics", {"log": "/etc"}, 400),
        ("/api/record", {"log": "{path}", "offset": "x"}, 400),
        ("/api/record", {"log": "{path}", "offset": "²"}, 400),
        ("/api/record", {"log": "{path}", "offset": "-1"}, 400),
        ("/api/record", {"log": "{path}", "offset": "9" * 19}, 400),
        ("/api/record", {"log": "{path}", "offset": "9" * 5000}, 400),
        ("/api/record", {"log": "{path}", "offset": str(2**63 - 2)}, 409),
        ("/api/records", {"log": "{path}", "at": "@never"}, 400),
        ("/api/records", {"log": "{path}", "at": "9" * 30}, 400),
        ("/api/records", {"log": "{path}", "q": "0xzz"}, 400),
        ("/api/records", {"log": "{path}", "count": "-1"}, 400),
        ("/api/records", {"log": "{path}", "since": "never"}, 400),
        ("/api/tail", {"log": "{path}", "after": "x"}, 400),
        ("/api/consumers", {"log": "/etc"}, 400),
        ("/api/value", {"log": "/etc"}, 400),
        ("/api/logs", {"skip": "1e9"}, 400),
        ("/api/segments", {"log": "{path}", "skip": "x"}, 400),
    ],
)
def test_wrong_questions(
    serving: Callable[..., Client], path: Path, address: str, query: dict[str, str], status: int
) -> None:
    asked = {name: value.format(path=path) for name, value in query.items()}
    assert serving(path).json(address, status, **asked)["error"]


def test_requests_that_are_none(serving: Callable[..., Client], path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = serving(path)
    local = b"Host: 127.0.0.1\r\n"
    assert b"malformed request" in client.raw(b"\x16\x03\x01\x02\x00 junk\r\n\r\n")
    assert b" 400 " in client.raw(b"GET http://[ HTTP/1.1\r\n" + local + b"\r\n").splitlines()[0]
    assert b" 414 " in client.raw(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n").splitlines()[0]
    assert b" 400 " in client.raw(b"GET /?" + b"a&" * 2000 + b" HTTP/1.1\r\n" + local + b"\r\n").splitlines()[0]
    smuggled = b"GET /api/logs HTTP/1.1\r\n" + local + b"Content-Length: 40\r\n\r\nGET /metrics HTTP/1.1\r\n" + local
    assert client.raw(smuggled + b"\r\n").count(b"HTTP/1.1 200") == 1
    assert client.ask("/api/logs")[0] == 200
    assert capsys.readouterr().err == ""


def test_only_the_page_starts_a_check(serving: Callable[..., Client], path: Path) -> None:
    segment = sorted((path / "segments").glob("*.log"))[1]
    raw = bytearray(segment.read_bytes())
    raw[200] ^= 1
    segment.write_bytes(raw)
    client = serving(path)
    assert client.json("/api/check", log=path, start=1)["check"] is None
    found = client.ask("/api/check", {"log": path, "start": 1}, **{"X-Duramen": "page"})
    assert found[0] == 200
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        check = client.json("/api/check", log=path)["check"]
        if not check["running"]:
            break
        time.sleep(0.02)
    assert check["problem"] is None
    assert check["damaged_count"] >= 1
    assert check["done_bytes"] == check["total_bytes"] > 0
    damage = [one for one in check["findings"] if one["severity"] == "damage"]
    assert any(one["path"] == str(segment) and one["position"] is not None for one in damage)
    before = client.ask("/metrics")[2]
    assert int(re.search(rb"^duramen_corrupt_findings_total (\d+)$", before, re.MULTILINE)[1]) >= len(damage)  # type: ignore[index]


def test_metrics_can_be_parsed(serving: Callable[..., Client], path: Path) -> None:
    client = serving(path)
    status, headers, body = client.ask("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    names = set()
    for line in body.decode().splitlines():
        if not line.startswith("# "):
            match = LINE.match(line)
            assert match is not None, line
            names.add(re.sub("_(bucket|sum|count)$", "", match[1]))
    assert names <= {re.sub("_count$", "", name) for name in METRICS} | set(METRICS)
    assert {"duramen_segments", "duramen_cursor_lag_records", "duramen_open_handles"} <= names
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(body.decode()))
    series = [(sample.name, tuple(sample.labels.items())) for family in families for sample in family.samples]
    assert len(series) == len(set(series)) > 30


@pytest.mark.slow
def test_a_store_of_a_thousand_topics(serving: Callable[..., Client], tmp_path: Path) -> None:
    store = many_topics(tmp_path / "store", 1000)
    client = serving(store)
    began = time.process_time()
    first = client.json("/api/logs")
    assert (first["total"], len(first["rows"])) == (1000, 50)
    last = client.json("/api/logs", skip=980)["rows"][-1]["logs"]
    assert last == [f"{store}#topic-0999/0"]
    assert client.json("/api/logs", q="topic-05")["total"] == 100
    assert client.json("/api/log", log=last[0])["now"]["next_offset"] == 3
    assert time.process_time() - began < 5
    began = time.process_time()
    body = client.ask("/metrics")[2].decode()
    seconds = time.process_time() - began
    assert len(re.findall(r'^duramen_next_offset\{log="[^"]+"\} 3$', body, re.MULTILINE)) == 1000
    assert seconds < 20  # a second or so on a quiet machine
    two = client.ask("/metrics", {"log": [first["rows"][0]["logs"][0], last[0]]})[2].decode()
    assert two.count("duramen_next_offset{") == 2
    assert len(client.server.watch._observers) <= 64
    assert len(client.server.watch._glances) <= 500


@pytest.mark.slow
def test_a_log_of_ten_thousand_segments(serving: Callable[..., Client], tmp_path: Path) -> None:
    path = many_segments(tmp_path / "log", 10_000)
    client = serving(path)
    began = time.process_time()
    segments = client.json("/api/segments", log=path)
    assert segments["total"] == 10_000
    assert len(segments["cells"]) <= 600
    assert len(client.json("/api/segments", log=path, skip=5000, count=10**6)["segments"]) == 600
    assert client.json("/api/log", log=path)["now"]["segments"] == 10_000
    page = client.json("/api/records", log=path, at="9990", count=50)
    assert [record["offset"] for record in page["records"]] == list(range(9990, 10_000))
    assert client.json("/api/record", log=path, offset=5000)["value_text"] == "record 5000"
    assert time.process_time() - began < 15


def test_names_that_want_to_do_harm(serving: Callable[..., Client], tmp_path: Path) -> None:
    hostile = tmp_path / 'a"}\n<script>alert(1)</script>'
    with duramen.open(hostile, "a", format="durable-log") as log:
        log.append(b"x")
    client = serving(hostile)
    assert client.json("/api/logs")["rows"][0]["name"] == str(hostile)
    assert client.json("/api/log", log=hostile)["now"]["next_offset"] == 1
    text = client.ask("/metrics")[2].decode()
    assert all(line.startswith("# ") or LINE.match(line) for line in text.splitlines())


def test_values_are_decoded_on_their_own_and_on_request(serving: Callable[..., Client], tmp_path: Path) -> None:
    with duramen.open(tmp_path / "messages", "a") as log:
        log.append(amqp.section(0x73, amqp.list_of([amqp.text("id-1")])) + amqp.data(b"hello"))
        log.append(b'{"n": 1}')
        log.append(b"\0\x53\x75junk")
    client, path = serving(tmp_path / "messages"), tmp_path / "messages"
    shown = client.json("/api/record", log=path, offset=0)["decoded"]
    assert shown["kind"] == "amqp"
    assert json.loads(shown["text"])["message_id"] == {"type": "string", "text": "id-1"}
    assert client.json("/api/record", log=path, offset=0, decode="none")["decoded"] is None
    assert client.json("/api/record", log=path, offset=1)["decoded"] is None
    assert client.json("/api/record", log=path, offset=2)["decoded"] is None
    assert client.json("/api/record", log=path, offset=1, decode="json")["decoded"]["text"] == '{"n":1}'
    assert "problem" in client.json("/api/record", log=path, offset=2, decode="amqp")["decoded"]
    client.json("/api/record", 400, log=path, offset=0, decode="wat")
    previews = [record["preview"] for record in client.json("/api/records", log=path)["records"]]
    assert previews[0] == "hello"
    assert previews[1] == '{"n": 1}'
    plain = client.json("/api/records", log=path, decode="none")["records"][0]["preview"]
    assert plain.startswith("0x")
    client.json("/api/records", 400, log=path, decode="wat")
