"""The logs of one server: observed while a client asks for them, checked on request.

A log is opened on demand and observed for a while after the last request, so idle logs cost nothing.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from duramen import metrics
from duramen.disk import Disk
from duramen.errors import DuramenError
from duramen.log import Log, verify_log
from duramen.watch.discovery import WatchedPath, WatchedPaths
from duramen.watch.observer import Observer

MAX_OBSERVERS = 64
WATCHED_FOR_S = 120.0
EVERY_S = 1.0
MAX_CHECKS = 2
MAX_FINDINGS = 500


class Watch:
    """All logs of one server. Safe to use from several threads."""

    def __init__(self, disk: Disk, paths: Sequence[str]) -> None:
        self.places = WatchedPaths(disk, paths)
        self._disk = disk
        self._guard = threading.Lock()
        self._observers: OrderedDict[str, tuple[Observer, float]] = OrderedDict()
        self._checks: dict[str, Check] = {}
        self._turns = threading.Semaphore(MAX_CHECKS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duramen watch", daemon=True)
        self._thread.start()

    def observer(self, name: str) -> Observer:
        """The observer of a log, which then samples it every second for a while."""
        place = self.places.get(name)
        with self._guard:
            known = self._observers.pop(name, None)
            observer = known[0] if known is not None else Observer(self._disk, place)
            self._observers[name] = (observer, time.monotonic())
            while len(self._observers) > MAX_OBSERVERS:
                self._observers.popitem(last=False)[1][0].close()
        return observer

    def check(self, name: str, *, start: bool) -> Check | None:
        """The last check of a log; with ``start``, a new one unless one is running."""
        place = self.places.get(name)
        with self._guard:
            check = self._checks.get(name)
            if start and (check is None or not check.running):
                check = self._checks[name] = Check(self._disk, place, self._turns)
            return check

    def samples(self, names: Iterable[str]) -> list[metrics.Sample]:
        """Samples of some logs. A log without an observer is opened, observed and closed again, so that a thousand
        logs need no more memory than one."""
        found: list[metrics.Sample] = []
        for name in names:
            with self._guard:
                known = self._observers.get(name)
            observer = known[0] if known is not None else Observer(self._disk, self.places.get(name))
            observer.observe()
            found += observer.samples()
            if known is None:
                observer.close()
        return found

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        with self._guard:
            for observer, _ in self._observers.values():
                observer.close()
            self._observers.clear()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            with self._guard:
                now = time.monotonic()
                for name, (observer, asked) in list(self._observers.items()):
                    if now - asked > WATCHED_FOR_S:
                        del self._observers[name]
                        observer.close()
                watched = [observer for observer, _ in self._observers.values()]
            for observer in watched:
                observer.observe()


class Check:
    """A check of every byte of a log in its own thread; a few run at a time."""

    def __init__(self, disk: Disk, place: WatchedPath, turns: threading.Semaphore) -> None:
        self.running = True
        self.done_bytes = self.total_bytes = 0
        self.findings: list[dict[str, Any]] = []
        self.findings_count = 0
        self.damaged_count = 0
        self.problem: str | None = None
        threading.Thread(target=self._run, args=(disk, place, turns), name="duramen check", daemon=True).start()

    def _run(self, disk: Disk, place: WatchedPath, turns: threading.Semaphore) -> None:
        try:
            with turns:
                with Log(place.path, disk=disk) as log:
                    self.total_bytes = sum(segment.size_bytes for segment in log.segments)
                report = verify_log(place.path, disk=disk, progress=self._progress)
            self.findings_count = len(report.findings)
            self.damaged_count = sum(finding.severity == "damage" for finding in report.findings)
            self.findings = [
                {
                    "code": finding.code,
                    "severity": str(finding.severity),
                    "path": finding.path,
                    "message": finding.message,
                    "action": finding.action,
                    "position": finding.position,
                    "first_offset": finding.first_offset,
                    "last_offset": finding.last_offset,
                }
                for finding in report.findings[:MAX_FINDINGS]
            ]
        except DuramenError as error:
            self.problem = str(error)
        finally:
            self.running = False

    def _progress(self, checked_bytes: int) -> None:
        self.done_bytes += checked_bytes

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}
