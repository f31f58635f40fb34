"""`retain`, `compact`, `top` and `serve`, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import duramen
from tests.cli.running import Run

MODULE = [sys.executable, "-m", "duramen.cli.main"]


def filled(path: Path, format: str = "durable-log") -> Path:
    with duramen.open(path, "a", format=format) as log:
        for number in range(4):
            log.append_batch([b"a=%d" % number, b"%d=x" % number], durability="write")
            log.seal()
    return path


def files(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def offsets(path: Path) -> list[int]:
    with duramen.open(path) as log:
        return [record.offset for record in log.scan()]


@pytest.mark.slow
def test_retain(cli: Run, tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    before = files(path)
    told = cli("retain", path, "--before-offset", "5", "--dry-run")
    assert told.code == 0
    assert "2 segments would be removed" in told.text
    assert files(path) == before
    done = cli("retain", path, "--before-offset", "5", "--json")
    assert done.code == 0
    assert [one["base"] for one in done.json["removed"]] == [0, 2]
    assert done.json["first_offset"] == 4
    assert offsets(path) == [4, 5, 6, 7]
    with duramen.open(path, "a") as log:
        log.cursor("slow").store(4)
    held = cli("retain", path, "--max-bytes", "0")
    assert held.code == 0
    assert "held back by cursor 'slow' (needs offset 4 on)" in held.text


def test_retain_beside_a_writer(call: Run, tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    with duramen.open(path, "a"):
        assert "2 segments would be removed" in call("retain", path, "--before-offset", "4", "--dry-run").text
        assert call("retain", path, "--before-offset", "4").fails(3, "already open for writing in this process")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["retain", "{log}"], ["at least one rule", "--max-age"]),
        (["retain", "{log}", "--max-age", "7 fortnights"], ["must be a duration"]),
        (["retain", "{log}", "--max-bytes", "lots"], ["must be a size"]),
        (["retain", "{log}", "--keep-free", "120%"], ["must be a percentage"]),
        (["retain", "{log}", "--before-offset", "-5"], ["must be at least 0 (got -5)"]),
        (["compact", "{log}"], ["no key"]),
        (["compact", "{log}", "--key", "regex:a"], ["does not say"]),
        (["compact", "{log}", "--min-dirty", "2", "--key", "prefix:1"], ["0 to 1"]),
        (["top", "{log}", "--every", "0"], ["must be greater than 0"]),
        (["serve", "{log}", "--host", "0.0.0.0"], ["token"]),
    ],
)
def test_wrong_usage(call: Run, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    path = filled(tmp_path / "log")
    before = files(path)
    assert call(*(argument.format(log=path) for argument in arguments)).fails(2, *words)
    assert files(path) == before


@pytest.mark.parametrize("verb", ["retain --max-bytes 1", "compact --key prefix:1", "top --once", "serve"])
def test_no_such_log(call: Run, tmp_path: Path, verb: str) -> None:
    name, *options = verb.split()
    assert call(name, tmp_path / "nothing", *options).fails(3, "no such file or directory")
    assert not (tmp_path / "nothing").exists()


def test_compact(cli: Run, tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    before = files(path)
    told = cli("compact", path, "--key", "delimiter:=", "--dry-run")
    assert told.code == 0
    assert "3 records of 8 would be removed" in told.text
    assert files(path) == before
    done = cli("compact", path, "--key", "delimiter:=", "--json")
    assert (done.json["records_before"], done.json["records_after"], done.json["keys"]) == (8, 5, 5)
    assert offsets(path) == [1, 3, 5, 6, 7]
    again = cli("compact", path, "--key", "delimiter:=")
    assert again.text == "nothing to do: every key occurs once: nothing to remove\n"


def test_compact_where_it_cannot(call: Run, tmp_path: Path) -> None:
    path = filled(tmp_path / "log", "osiris")
    assert call("compact", path, "--key", "prefix:1").fails(2, "osiris log cannot be compacted", "convert")
    assert call("compact", path, "--key", "prefix:1", "--dry-run").fails(2, "cannot be compacted")


@pytest.mark.slow
def test_top(cli: Run, tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    with duramen.open(path, "a") as log:
        log.cursor("slow").store(3)
    (tmp_path / "broken").mkdir()
    shown = cli("top", path, tmp_path / "broken", "--once", "--every", "0.1")
    assert shown.code == 0
    header, one, two = shown.text.splitlines()
    assert header.split()[:4] == ["log", "format", "records/s", "bytes/s"]
    assert one.split()[:2] == [str(path), "durable-log"]
    assert "it holds no log" in two
    tree = cli("top", path, "--json", "--every", "0.1").json
    assert [(entry["log"], entry["next_offset"]) for entry in tree] == [(str(path), 8)]
    assert tree[0]["standings"][0]["lag"] == 5


def start(*arguments: str | Path, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*MODULE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def test_serve(tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    with start("serve", path, tmp_path / "missing", "--port", "0", "--state", tmp_path / "state") as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline().decode()
            url = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert url is not None, line
            with urllib.request.urlopen(url[0] + "api/logs", timeout=120) as answer:
                names = {row["name"] for row in json.load(answer)["rows"]}
            assert names == {str(path), str(tmp_path / "missing")}, "in any order: known problems come first"
            server.send_signal(signal.SIGINT)
            out, err = server.communicate(timeout=120)
        finally:
            server.kill()
    assert (server.returncode, out, err) == (0, b"", b"")
    assert (tmp_path / "state").is_dir()


def test_serve_with_a_token_of_the_environment(tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    with start(
        "serve", path, "--port", "0", "--metrics", "--state", "", env={**os.environ, "DURAMEN_TOKEN": "s3cret"}
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline().decode()
            assert "s3cret" not in line
            url = re.search(r"http://127\.0\.0\.1:\d+/metrics", line)
            assert url is not None, line
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url[0], timeout=120)
            refused.value.close()
            assert refused.value.code == 401
            asked = urllib.request.Request(url[0], headers={"Authorization": "Bearer s3cret"})
            with urllib.request.urlopen(asked, timeout=120) as answer:
                assert b"duramen_next_offset" in answer.read()
        finally:
            server.kill()


def test_rules(call: Run) -> None:
    shown = call("serve", "--rules")
    assert shown.code == 0
    assert "- alert: DuramenPoisoned" in shown.text


def test_top_on_a_terminal(tmp_path: Path) -> None:
    """A screen of its own, which is gone when ctrl-C ends it."""
    pty = pytest.importorskip("pty")
    path = filled(tmp_path / "log")
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "24"}
    command = [*MODULE, "top", str(path), "--every", "0.2"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as top:
        os.close(slave)
        seen = b""
        try:
            deadline = time.monotonic() + 30
            while seen.count(b"durable-log") < 2 and time.monotonic() < deadline:
                if select.select([master], [], [], 1)[0]:
                    seen += os.read(master, 65536)
            top.send_signal(signal.SIGINT)
            while True:
                try:
                    more = os.read(master, 65536)
                except OSError:
                    break
                if not more:
                    break
                seen += more
            assert top.wait(20) == 0
        finally:
            top.kill()
            os.close(master)
    assert seen.startswith(b"\x1b[?1049h")
    assert b"\x1b[?1049l" in seen
    assert b"records/s" in seen
    assert b"Traceback" not in seen
