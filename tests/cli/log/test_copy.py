"""`duramen copy`: what people see, and exit codes. That nothing is left when it is stopped: see `test_convert`."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from tests.cli.running import FORMATS, Logs, Run, flip, segments


def test_the_real_thing(cli: Run, logs: Logs, tmp_path: Path) -> None:
    log, new = logs.copy("keratin"), tmp_path / "new"
    result = cli("copy", log, new)
    assert (result.code, result.err) == (0, "")
    first, second = result.text.splitlines()
    assert first.startswith(f"{log}: copied to {new}: ok: keratin, 3 segments, 300 records, offsets 0 to 299, ")
    assert second == "  2 files of consumers and writers copied"
    assert cli("verify", new).code == 0


@pytest.mark.parametrize("format", FORMATS)
def test_every_format(call: Run, logs: Logs, tmp_path: Path, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    plan = call("copy", log, tmp_path / "new", *options, "--dry-run")
    assert (plan.code, plan.err) == (0, "")
    assert "would be copied" in plan.text
    assert not (tmp_path / "new").exists()
    result = call("copy", log, tmp_path / "new", *options, "--json", "--until-offset", "123")
    assert (result.code, result.err) == (0, "")
    assert (result.json["records"], result.json["next_offset"]) == (123, 123)
    assert call("append", tmp_path / "new", "/dev/null").code == 0
    assert call("verify", tmp_path / "new").code == 0


def test_until_a_time(call: Run, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="rustlog") as log:
        for day in range(1, 6):
            log.append(b"x", timestamp=f"2024-01-0{day}T00:00:00Z")
    result = call("copy", tmp_path / "log", tmp_path / "new", "--until-time", "2024-01-03T00:00:00Z", "--json")
    assert result.json["records"] == 2
    epoch_ms = "1704240000001"  # one millisecond behind the third
    assert call("copy", tmp_path / "log", tmp_path / "n2", "--until-time", epoch_ms, "--json").json["records"] == 3
    assert call("copy", tmp_path / "log", tmp_path / "n3", "--until-time", "yesterday").fails(2, "not a time")


def test_what_goes_wrong(call: Run, logs: Logs, tmp_path: Path) -> None:
    log, new = logs.copy("durable-log"), tmp_path / "new"
    (tmp_path / "taken").mkdir()
    assert call("copy", log, tmp_path / "taken").fails(2, "exists already")
    assert call("copy", log, new, "--until-offset", "3", "--until-time", "0").fails(2, "not both")
    assert call("copy", log, new, "--until-offset", "-3").code == 2
    assert call("copy", log, new, "--until-time", "0").fails(2, "no time")
    assert call("copy", tmp_path / "nothing", new).fails(3, "nothing")
    assert call("copy", logs.copy("fixed-slot"), new).fails(2, "record_size=96")
    flip(segments(log)[1], 2000)
    assert call("copy", log, new).fails(1, str(segments(log)[1]), "duramen repair")
    assert not new.exists()
