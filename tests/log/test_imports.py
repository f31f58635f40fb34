"""An append and a read do not import pandas, which takes half a second where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pandas")

LIFE = """
import sys
import duramen
path, name = sys.argv[1:]
with duramen.open(path, "a", format=name, **({"record_size": 4} if name == "fixed-slot" else {})) as log:
    log.append(b"some")
    log.append("text")
    log.append_batch([b"more", b"data"])
    if name == "keratin":
        log.append(b"some", key=b"key")
        log.append_batch([(b"key", b"some"), (None, b"more")])
    if name not in ("durable-log", "fixed-slot"):
        log.append(b"some", timestamp=4_000_000_000_000_000)
    assert log.read(0).value == b"some"
with duramen.open(path) as log:
    assert [record.value for record in log.scan(0, 4)] == [b"some", b"text", b"more", b"data"]
    assert sum(batch.num_rows for batch in log.batches()) == log.next_offset
assert duramen.verify(path).ok
sys.exit("pandas was imported" if "pandas" in sys.modules else 0)
"""


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris", "fixed-slot"])
def test_an_append_and_a_read_do_not_import_pandas(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-c", LIFE, str(tmp_path / "log"), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
