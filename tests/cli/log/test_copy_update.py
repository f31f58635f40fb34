"""`duramen copy --update`: what it prints, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import duramen
from tests.cli.running import Logs, Run


def test_an_update_says_what_is_new(cli: Run, logs: Logs, tmp_path: Path) -> None:
    log, target = logs.copy("keratin"), tmp_path / "backup"
    assert cli("copy", log, target, "--update").text.startswith(f"{log}: copied to {target}: ok: ")
    with duramen.open(log, "a") as opened:
        opened.append(b"new")
    assert "would be copied" in cli("copy", log, target, "--update", "--dry-run").text
    result = cli("copy", log, target, "--update")
    assert result.code == 0, result.err
    assert result.text.startswith(f"{log}: updated {target}: ok: keratin, 1 new record, 0 new segments, ")
    again = cli("copy", log, target, "--update", "--json").json
    assert (again["records"], again["size_bytes"], again["is_update"]) == (0, 0, True)
    assert cli("copy", log, target).fails(2, "exists already")
    assert cli("copy", logs.copy("keratin", "other"), target, "--update").fails(2, "not a copy of this log")


def test_a_store_is_updated_log_by_log(call: Run, tmp_path: Path) -> None:
    root, backup = tmp_path / "data", tmp_path / "backup"
    with duramen.Store(str(root)) as store:
        topic = store.create("orders", partitions=2)
        topic.append(b"a", partition=0)
        assert call("copy", root, backup, "--update").code == 0
        topic.append(b"b", partition=1)
        store.create("new").append(b"c")
        result = call("copy", root, backup, "--update")
    assert (result.code, result.err) == (0, "")
    assert [line.split(": ")[1].split()[0] for line in result.text.splitlines()] == ["copied", "updated", "updated"]
    with duramen.Store(str(backup)) as copied:
        assert copied.describe("orders").records == 2
        assert copied.describe("new").records == 1
