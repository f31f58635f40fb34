"""The recipe of docs/backup.md: `cp` or `rsync` of a log that a process writes to, sidecar first."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import duramen
from tests.cli.running import Run
from tests.log.conftest import options

WRITER = """
    import sys, duramen
    path, name, chosen = sys.argv[1], sys.argv[2], eval(sys.argv[3])
    with duramen.open(path, "a", format=name, segment_max_bytes=4096, **chosen) as log:
        number = 0
        while True:
            log.append(b"%016d" % number)
            number += 1
            if number % 20 == 0:
                print(number, flush=True)
"""


@pytest.mark.parametrize("tool", ["cp", "rsync"])
@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris"])
def test_nothing_acknowledged_before_the_copy_is_lost(call: Run, tmp_path: Path, name: str, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    log, copy = tmp_path / "log", tmp_path / "copy"
    arguments = [str(log), name, repr({key: one for key, one in options(name).items() if key != "segment_max_bytes"})]
    command = [sys.executable, "-c", textwrap.dedent(WRITER), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        try:
            acknowledged = 0
            while acknowledged < 400:
                acknowledged = int(writer.stdout.readline())
            copy.mkdir()
            subprocess.run(["cp", "-a", log / ".duramen", copy], check=True)
            if tool == "rsync":
                subprocess.run(["rsync", "-a", "--exclude=.duramen", f"{log}/", copy], check=True)
            else:
                others = [path for path in sorted(log.iterdir()) if path.name != ".duramen"]
                subprocess.run(["cp", "-a", *others, copy], check=True)
        finally:
            writer.kill()
    result = call("verify", copy)
    assert result.code == 0, result.text
    with duramen.open(copy, "a") as opened:
        values = [record.value for record in opened.scan()]
        opened.append(b"%016d" % len(values))
    assert len(values) >= acknowledged
    assert values == [b"%016d" % number for number in range(len(values))]
    assert call("verify", copy).code == 0
