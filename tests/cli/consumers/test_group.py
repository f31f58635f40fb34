"""`duramen group`, `cursor` and `lag`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import duramen
from tests.cli.running import FORMATS, Run
from tests.consumers.logs import make_log


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Twenty records; of the group billing 0 to 2 and 5 are acknowledged, 3, 4, 6 and 7 in flight; a cursor at 12."""
    root = make_log(tmp_path / "orders", "keratin", 20)
    with duramen.open(root) as log:
        group = log.group("billing")
        held = group.fetch(8, lease=600)
        group.ack_many(held[:3] + held[5:6])
        log.cursor("report").store(12)
    return root


@pytest.mark.slow
def test_the_real_command(cli: Run, root: Path) -> None:
    listed = cli("group", root, "list", "--json")
    assert listed.code == 0
    (billing,) = listed.json
    assert (billing["name"], billing["offset"], billing["lag"], billing["in_flight"]) == ("billing", 3, 16, 4)
    lag = cli("lag", root)
    heads = "log kind name acked until log ends at lag in flight expired acked ahead problem"
    assert lag.text.splitlines()[0].split() == heads.split()
    assert lag.text.splitlines()[1].split() == [str(root), "group", "billing", "3", "20", "16", "4", "0", "1"]
    assert lag.text.splitlines()[2].split() == [str(root), "cursor", "report", "12", "20", "8"]
    assert cli("cursor", root, "report", "show").text == "12\n"


def test_show(call: Run, root: Path) -> None:
    shown = call("group", root, "billing").text
    for words in ("acked until    3", "lag            16 offsets", "4, 0 of them expired", "next deadline  in 9 min"):
        assert words in shown
    assert call("group", root, "billing", "show", "--json").json["next_offset"] == 20
    assert "billing" in call("group", root).text


def test_changes(call: Run, root: Path) -> None:
    def until() -> int:
        with duramen.open(root) as log:
            return log.group("billing").acked_until

    assert "would be acknowledged" in call("group", root, "billing", "ack", "3", "4", "--dry-run").text
    assert until() == 3
    assert "2 offsets acknowledged" in call("group", root, "billing", "ack", "3-4").text
    assert until() == 6
    assert "1 offset given back" in call("group", root, "billing", "nack", "6").text
    assert "would be reset from 6 to 15" in call("group", root, "billing", "reset", "--to", "-5", "--dry-run").text
    assert until() == 6
    assert call("group", root, "billing", "reset", "--to", "-5", "--json").json["offset"] == 15
    assert until() == 15
    for place, offset in (("beginning", 0), ("7", 7), ("@2000-01-01", 0), ("end", 20)):
        assert call("group", root, "billing", "reset", place).code == 0
        assert until() == offset
    assert "compacted" in call("group", root, "billing", "compact").text
    assert (root / "groups" / "orders-0_billing.delta").stat().st_size == 60
    assert "nothing was wrong" in call("group", root, "billing", "repair").text
    assert "would be deleted" in call("group", root, "billing", "delete", "--dry-run").text
    assert call("group", root, "billing", "delete").code == 0
    assert call("group", root).text == f"{root}: no groups\n"


def test_wrong_usage(call: Run, root: Path, tmp_path: Path) -> None:
    assert call("group", root, "nope", "show").fails(2, "the log has no group 'nope'", "its groups: billing")
    assert call("group", root, "..", "reset", "1").fails(2, "the log has no group")
    assert call("group", root, "billing", "reset").fails(2, "needs one position")
    assert call("group", root, "billing", "reset", "soon").fails(2, "not a position in a log")
    assert call("group", root, "billing", "reset", "99").fails(3, "does not contain this offset", "from 0 to 20")
    assert call("group", root, "billing", "ack").fails(2, "at least one offset")
    assert call("group", root, "billing", "ack", "x").fails(2, "expected an offset")
    assert call("group", root, "billing", "ack", "9-3").fails(2, "a range must ascend")
    assert call("group", root, "billing", "ack", "19").fails(2, "offset 19", "not in flight")
    assert call("group", root, "billing", "show", "3").fails(2, "takes no argument (got '3')")
    assert call("group", root, "billing", "dance").fails(2, "dance")
    assert call("group", tmp_path / "none").fails(3, "no such file")
    assert call("cursor", root, "x", "sing").fails(2, "a cursor has no action 'sing'", "show, store, delete")
    assert call("cursor", root, "x", "show").fails(2, "the log has no cursor 'x'")
    assert call("cursor", root, "x", "store").fails(2, "needs an offset")
    assert call("cursor", root, "x", "show", "3").fails(2, "takes no offset")
    assert call("cursor", root, "..", "store", "3").fails(2, "cannot be the name of a cursor")
    assert call("cursor", root, "x", "store", "3", "--tracking").fails(2, "osiris")
    assert call("lag", root, "--watch", "0").fails(2, "--watch")
    assert call("lag", tmp_path / "none").fails(3, "no such file")


def test_holders_and_dead_letters(call: Run, tmp_path: Path) -> None:
    root, dead = make_log(tmp_path / "log", "keratin", 5), tmp_path / "dead"
    with duramen.open(root) as log:
        group = log.group("g", consumer="worker-1", lease=60, max_attempts=3, dead_letter=dead)
        for _ in range(3):
            group.nack(group.fetch(2))
        group.fetch(3)
    assert call("group", root, "g", "members").text.splitlines()[1].split()[:2] == ["worker-1", "3"]
    assert call("group", root, "g", "members", "--json").json[0]["in_flight"] == 3
    assert call("group", root, "g", "stuck").text == "no records are stuck\n"
    assert "3 attempts, then to ../dead" in call("group", root, "g").text
    assert call("group", root, "g", "show", "--json").json["policy"]["max_attempts"] == 3
    assert call("group", root, "g", "replay").fails(2, "needs the log of the dead letters", "names ../dead")
    assert "2 dead letters would be delivered again" in call("group", root, "g", "replay", dead, "--dry-run").text
    done = call("group", root, "g", "replay", dead)
    assert done.text == f"{root}: group g: 2 dead letters will be delivered again\n"
    assert call("group", root, "g", "replay", dead, "--json").json["replayed"] == 0
    with duramen.open(root) as log:
        group = log.group("g", dead_letter=dead)
        assert [(one.offset, one.epoch) for one in group.fetch(2)] == [(0, 1), (1, 1)]
        group.nack([0], epochs=1)
        group.nack(group.fetch(1))
        assert group.fetch(1)[0].epoch == 3
    assert call("group", root, "g", "stuck").text.splitlines()[1].split()[:2] == ["0", "3"]
    assert call("group", root, "g", "delete").code == 0


@pytest.mark.parametrize("format_name", FORMATS)
def test_cursors(call: Run, tmp_path: Path, format_name: str) -> None:
    root = make_log(tmp_path / "log", format_name, 5)
    assert call("cursor", root).text == f"{root}: no cursors\n"
    assert "would be stored at 3" in call("cursor", root, "a b", "store", "3", "--dry-run").text
    assert not (root / ".duramen" / "cursors").exists()
    assert call("cursor", root, "a b", "store", "3").code == 0
    assert call("cursor", root, "store", "a b", "3").text.endswith("stored at 3, was 3\n"), "the order of version 0.1"
    assert call("cursor", root, "a b", "store", "4").text == f"{root}: cursor a b: stored at 4, was 3\n"
    (state,) = call("cursor", root, "list", "--json").json
    assert (state["name"], state["offset"]) == ("a b", 4)
    assert "a b" in call("cursor", root).text
    assert call("cursor", root, "a b", "delete", "--dry-run").code == 0
    assert call("cursor", root, "a b", "show").text == "4\n"
    assert call("cursor", root, "a b", "delete").code == 0
    assert call("cursor", root).text == f"{root}: no cursors\n"


def test_a_cursor_in_the_log_itself(call: Run, tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "osiris", 5)
    assert call("cursor", root, "reader", "store", "3", "--tracking").code == 0
    assert not (root / ".duramen" / "cursors").exists()
    assert "in the log" in call("cursor", root).text
    assert call("lag", root, "--json").json[0]["offset"] == 3


def test_damage_is_shown_and_mended(call: Run, root: Path) -> None:
    snap = root / "groups" / "orders-0_billing.snap"
    raw = bytearray(snap.read_bytes())
    raw[80] ^= 1
    snap.write_bytes(raw)
    (root / ".duramen" / "cursors" / "report.cursor").write_bytes(b"junk")
    for words in (("group", root), ("group", root, "billing"), ("lag", root), ("cursor", root)):
        shown = call(*words)
        assert shown.code == 1
        assert "checksum mismatch" in shown.text
    assert call("group", root, "billing", "ack", "3").fails(1, "checksum mismatch", "repair")
    assert "checksum mismatch" in call("group", root, "billing", "repair", "--dry-run").text
    assert snap.read_bytes() == raw
    assert call("group", root, "billing", "repair").code == 0
    assert call("group", root, "billing").code == 0
    kept = [path.read_bytes() for path in (root / ".duramen" / "quarantine").iterdir()]
    assert kept == [raw]


def test_lag_of_a_store(call: Run, tmp_path: Path) -> None:
    with duramen.Store(str(tmp_path / "data")) as store:  # type: ignore[attr-defined]
        store.create("orders", 2)
    for number in (0, 1):
        with duramen.open(tmp_path / "data" / "topics" / "orders" / "partitions" / str(number), "a") as log:
            log.append_batch([b"a", b"b", b"c"])
            log.group("g").ack(log.group("g").fetch(1)[0])
    for words in (tmp_path / "data", f"{tmp_path}/data#orders"):
        rows = call("lag", words, "--json").json
        assert [(Path(row["log"]).name, row["name"], row["lag"]) for row in rows] == [("0", "g", 2), ("1", "g", 2)]
    assert len(call("lag", f"{tmp_path}/data#orders/1", "--json").json) == 1
    assert call("group", f"{tmp_path}/data#orders/1", "g", "show", "--json").json["offset"] == 1


def test_watch_goes_on(root: Path) -> None:
    command = [sys.executable, "-m", "duramen", "lag", str(root), "--watch", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        first, second = json.loads(watching.stdout.readline()), json.loads(watching.stdout.readline())
        watching.kill()
    assert first[0]["lag"] == second[0]["lag"] == 16


def test_watch_sees_topics_come_and_go(tmp_path: Path) -> None:
    """What a root stands for is looked up every time, and a path that is gone does not end it."""
    root, alone = tmp_path / "data", tmp_path / "alone"
    duramen.open(alone, "a").close()
    with duramen.Store(root) as store, store.create("old").log(0) as log:
        log.cursor("c").store(0)
    command = [sys.executable, "-m", "duramen", "lag", str(root), str(alone), "--watch", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None

        def seen_until(*wanted: str) -> bool:
            for line in islice(watching.stdout or (), 100):
                if [row["log"].rpartition("/data")[2] or row["log"] for row in json.loads(line)] == list(wanted):
                    return True
            return False

        assert seen_until("#old/0")
        with duramen.Store(root) as store:
            with store.create("new").log(0) as log:
                log.cursor("c").store(0)
            assert seen_until("#new/0", "#old/0")
            store.delete("old")
        assert seen_until("#new/0")
        shutil.rmtree(alone)
        assert seen_until("#new/0", str(alone))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0


def test_times_of_cursors(call: Run, tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "osiris", 3)
    time = "2100-01-01T00:00:00.123Z"
    assert "would be stored" in call("cursor", root, "r", "store", "--timestamp", time, "--dry-run").text
    assert call("cursor", root, "r", "show").fails(2, "the log has no cursor 'r'")
    assert call("cursor", root, "r", "store", "--timestamp", time).code == 0
    assert call("cursor", root, "r", "show").text == "2100-01-01T00:00:00.123000+00:00\n"
    assert "2100-01-01 00:00:00.123" in call("cursor", root).text
    assert "was 2100" in call("cursor", root, "r", "store", "--timestamp", "0").text
    assert call("cursor", root, "r", "store", "2", "--timestamp", "0").fails(2, "in place of OFFSET")
    assert call("cursor", root, "r", "store", "2", "--tracking").code == 0
    assert call("cursor", root, "r", "show").text == "2 1970-01-01T00:00:00+00:00\n"
    other = make_log(tmp_path / "other", "keratin", 1)
    assert call("cursor", other, "store", "r", "--timestamp", "0").fails(2, "osiris")
