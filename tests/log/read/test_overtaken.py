"""Readers while retention removes what they were about to read: they are told, and never shown less than there is."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import duramen
import duramen.log.read.log
from duramen.disk import PosixDisk
from duramen.disk.os_errors import refusal
from duramen.log.maintain.retention import Retention
from duramen.log.segments import snapshot


def test_a_follower_that_retention_overtakes_gets_an_error(tmp_path: Path) -> None:
    """It waited at the end; what came then was removed before it looked again. To go on behind it would hide that."""
    with duramen.open(tmp_path / "log", "a") as log, duramen.open(tmp_path / "log") as reader:
        for source in (log, reader):
            log.append_batch([b"read"] * 3)
            source.refresh()
            records = source.scan(from_offset=log.next_offset - 3, follow=True)
            assert [next(records).value for _ in range(3)] == [b"read"] * 3
            window = source._window(log.next_offset, None, None, None, None, None)
            passes = window.passes(("offset", "value"), True)
            assert next(passes) is None
            missed = log.next_offset
            for _ in range(3):
                log.append(b"missed")
                log.seal()
            assert log.retain(Retention(max_bytes=0)).first_offset == log.next_offset
            assert log.append(b"later") == missed + 3
            source.wait()
            for following in (passes, records):
                with pytest.raises(duramen.OffsetError, match=f"offset {missed}: .* begins at {missed + 3} now"):
                    next(following)
            assert [record.value for record in source.scan(missed + 3)] == [b"later"]


def test_a_follower_of_the_whole_log_begins_where_the_log_does(tmp_path: Path) -> None:
    """It asked for nothing in particular, and has read nothing yet."""
    with duramen.open(tmp_path / "log", "a") as log, duramen.open(tmp_path / "log") as reader:
        passes = reader._window(None, None, None, None, None, None).passes(("offset",), True)
        assert next(passes) is None
        log.append_batch([b"gone"] * 3)
        log.seal()
        log.retain(Retention(max_bytes=0))
        log.append(b"first")
        reader.wait()
        batch = next(passes)
        assert batch is not None
        assert batch.column("offset").to_pylist() == [3]


def test_a_reader_that_looks_while_the_log_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its looks at the watermark and at the directory the writer rolls, and retention removes the segment that
    the watermark means. What is left must not be taken for what is not acknowledged yet."""
    with duramen.open(tmp_path / "log", "a") as log, duramen.open(tmp_path / "log") as reader:
        log.append_batch([b"old"] * 3)
        list_now = snapshot.list_log_again
        times: list[int] = []

        def list_late(*arguments: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return list_now(*arguments)
            times.append(log.next_offset)
            if len(times) <= 2:
                thread = threading.Thread(target=roll)
                thread.start()
                thread.join()
            return list_now(*arguments)

        def roll() -> None:
            log.append(b"old")
            log.seal()
            log.retain(Retention(max_bytes=0))
            log.append(b"new")

        monkeypatch.setattr(snapshot, "list_log_again", list_late)
        reader.refresh()
        assert len(times) == 3
        monkeypatch.undo()
        log.append(b"not seen yet")
        assert (reader.first_offset, reader.next_offset) == (log.first_offset, log.next_offset - 1)
        assert [record.value for record in reader] == [b"new"]


def test_a_segment_that_goes_while_a_reader_looks_at_it(tmp_path: Path) -> None:
    """Of a log whose writer died, a reader finds the end by itself. The segment that it was about to look at may be
    removed by the next writer's retention."""

    class Fast(PosixDisk):
        """As if retention removed a segment between listing and mapping it."""

        left = 0

        def map(self, path: str) -> Any:
            if path.endswith(".log") and self.left:
                self.left -= 1
                raise refusal(errno.ENOENT, path)
            return super().map(path)

    with duramen.open(tmp_path / "log", "a") as log:
        log.append_batch([b"v"] * 3)
        shutil.copytree(tmp_path / "log", tmp_path / "dead")
    disk = Fast()
    with duramen.open(tmp_path / "dead", disk=disk) as reader:
        disk.left = 2
        reader.refresh()
        assert disk.left == 0
        assert reader.next_offset == 3
        disk.left = 10**6
        with pytest.raises(duramen.StorageError, match="no such file"):
            reader.refresh()
        disk.left = 0
