"""Opening for append reads each file of the sidecar at most once, and builds the format once."""

from __future__ import annotations

import posixpath
from collections import Counter
from typing import Any

import pytest

from duramen.disk import Mapped, Page
from duramen.log import WritableLog
from duramen.log.recover import RecoveryCase
from duramen.log.segments import listing
from duramen.testing import SimulatedDisk

FORMATS = ["durable-log", "fixed-slot", "keratin", "osiris", "rustlog"]


class CountingDisk(SimulatedDisk):
    """Counts how often each file of the sidecar is read: mapped, or loaded as a page."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def map(self, path: str) -> Mapped:
        self._count(path)
        return super().map(path)

    def page(self, path: str, size_bytes: int, *, writable: bool) -> Page:
        page = super().page(path, size_bytes, writable=writable)
        load = page.load

        def counted() -> bytes:
            self._count(path)
            return load()

        page.load = counted  # type: ignore[method-assign]
        return page

    def _count(self, path: str) -> None:
        if posixpath.basename(posixpath.dirname(path)) == ".duramen":
            self.reads[posixpath.basename(path)] += 1


def filled(format_name: str) -> tuple[CountingDisk, WritableLog]:
    disk = CountingDisk()
    options: dict[str, Any] = {"record_size": 4} if format_name == "fixed-slot" else {}
    log = WritableLog("/log", disk=disk, format=format_name, **options)
    log.append_batch([b"aaaa"] * 20)
    if log.codec.capabilities.segments:
        log.seal()
        log.append_batch([b"bbbb"] * 20)
    return disk, log


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_closed_log_is_opened_with_one_read_of_each_file(format_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = filled(format_name)
    log.close()
    built: list[str] = []
    make = listing.make
    monkeypatch.setattr(listing, "make", lambda name, **options: built.append(name) or make(name, **options))
    disk.reads.clear()
    with WritableLog("/log", disk=disk) as log:
        assert max(disk.reads.values()) == 1, disk.reads
        assert {"log.json", "watermark", "closed.json"} <= disk.reads.keys()
        assert built == [format_name]
        assert [step.case for step in log.recovery] == [RecoveryCase.CLEAN]


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_configuration_of_a_crashed_log_is_read_once(format_name: str) -> None:
    disk, log = filled(format_name)
    log.tail.close()
    log._sidecar.release()
    disk.reads.clear()
    with WritableLog("/log", disk=disk) as opened:
        assert disk.reads["log.json"] == 1
        assert len(list(opened.scan())) == (20 if not opened.codec.capabilities.segments else 40)
