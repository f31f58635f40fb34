"""The logs of one server: observed while a client asks for them, checked on request, recorded for a day.

A log is opened on demand and observed for a while after the last request. A log that is only listed is opened for each
observation, and closed again. One thread observes, and rests four times as long as a round takes; another one adds a
point to the history of every log every few minutes, and notes which logs have problems.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from duramen import metrics
from duramen.disk import Disk
from duramen.errors import DuramenError
from duramen.log import Log, verify_log
from duramen.watch.discovery import WatchedPath, WatchedPaths
from duramen.watch.history import EVERY_S as HISTORY_EVERY_S
from duramen.watch.history import History, LastCheck
from duramen.watch.observer import Observation, Observer, rates_of

MAX_OBSERVERS = 64
MAX_GLANCES = 500
MAX_RECORDED = 1000
WATCHED_FOR_S = 120.0
EVERY_S = 1.0
MAX_CHECKS = 2
MAX_FINDINGS = 500


class Watch:
    """All logs of one server. Safe to use from several threads."""

    def __init__(self, disk: Disk, paths: Sequence[str], state: str | None = None) -> None:
        self.places = WatchedPaths(disk, paths)
        self.history = History(disk, state)
        self.damage: dict[str, str] = {}
        """Damage that a request met since the last check, by name of the log."""
        self.noticed: dict[str, str] = {}
        """What is wrong with a log, as far as its last row in the overview knew."""
        self.stopping = threading.Event()
        self._disk = disk
        self._guard = threading.Lock()
        self._observers: OrderedDict[str, tuple[Observer, float]] = OrderedDict()
        self._glances: OrderedDict[str, tuple[Observer, float]] = OrderedDict()
        self._checks: dict[str, Check] = {}
        self._last_checks: dict[str, LastCheck | None] = {}
        self._turns = threading.Semaphore(MAX_CHECKS)
        self._wanted = threading.Event()
        tasks = {"duramen watch": self._observe, "duramen survey": self._survey}
        self._threads = [threading.Thread(target=task, name=name, daemon=True) for name, task in tasks.items()]
        for thread in self._threads:
            thread.start()

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

    def glance(self, place: WatchedPath) -> tuple[Observation | None, float]:
        """The latest observation of a log and its records per second, without waiting: None until the first."""
        with self._guard:
            known = self._observers.get(place.name)
            if known is None:
                old = self._glances.pop(place.name, None)
                known = (Observer(self._disk, place, kept=10) if old is None else old[0], time.monotonic())
                self._glances[place.name] = known
                while len(self._glances) > MAX_GLANCES:
                    self._glances.popitem(last=False)
        history = list(known[0].history)
        if not history:
            self._wanted.set()
            return None, 0.0
        return history[-1], rates_of([seen for seen in history if seen.at > history[-1].at - 30]).records

    def check(self, name: str, *, start: bool) -> Check | None:
        """The last check of a log; with ``start``, a new one unless one is running."""
        place = self.places.get(name)
        with self._guard:
            check = self._checks.get(name)
            if start and (check is None or not check.running):
                check = self._checks[name] = Check(self._disk, place, self._turns, self._checked)
            return check

    def last_check(self, place: WatchedPath) -> LastCheck | None:
        """The last check that ended, by this server or an earlier one."""
        if place.name not in self._last_checks:
            self._last_checks[place.name] = self.history.read(place.path).check
        return self._last_checks[place.name]

    def _checked(self, place: WatchedPath, check: LastCheck) -> None:
        self.damage.pop(place.name, None)
        self._last_checks[place.name] = check
        self.history.checked(place.path, check)

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
        self.stopping.set()
        self._wanted.set()
        for thread in self._threads:
            thread.join()
        with self._guard:
            for observer, _ in self._observers.values():
                observer.close()
            self._observers.clear()

    def _observe(self) -> None:
        took = 0.0
        while not self.stopping.is_set():
            self._wanted.wait(max(EVERY_S, 4 * took))
            self._wanted.clear()
            began = time.monotonic()
            for observer, stays_open in self._due(began):
                if self.stopping.is_set():
                    return
                observer.observe()
                if not stays_open:
                    observer.close()
            took = time.monotonic() - began

    def _due(self, now: float) -> list[tuple[Observer, bool]]:
        """Observers that a client asked for, those without an observation first; whether their logs stay open."""
        with self._guard:
            for watched in (self._observers, self._glances):
                for name, (observer, asked) in list(watched.items()):
                    if now - asked > WATCHED_FOR_S:
                        del watched[name]
                        observer.close()
            due = [(observer, True) for observer, _ in self._observers.values()]
            due += [(observer, False) for observer, _ in self._glances.values()]
        return sorted(due, key=lambda each: bool(each[0].history))

    def _survey(self) -> None:
        """Look at every log, at the start and every few minutes: for the history, and so that the overview knows which
        logs have problems."""
        while not self.stopping.is_set():
            for place in self.places.all()[:MAX_RECORDED]:
                observer = Observer(self._disk, place, kept=1)
                seen = observer.observe()
                observer.close()
                if seen.problem is not None:
                    self.noticed.setdefault(place.name, seen.problem)
                else:
                    self.history.add(place.path, seen)
                if self.stopping.wait(0.05):
                    return
            self.stopping.wait(HISTORY_EVERY_S - time.time() % HISTORY_EVERY_S)


class Check:
    """A check of every byte of a log in its own thread; a few run at a time."""

    def __init__(
        self, disk: Disk, place: WatchedPath, turns: threading.Semaphore, done: Callable[[WatchedPath, LastCheck], None]
    ) -> None:
        self.running = True
        self.finished_at: int | None = None
        self.done_bytes = self.total_bytes = 0
        self.findings: list[dict[str, Any]] = []
        self.findings_count = 0
        self.damaged_count = 0
        self.problem: str | None = None
        threading.Thread(target=self._run, args=(disk, place, turns, done), name="duramen check", daemon=True).start()

    def _run(
        self, disk: Disk, place: WatchedPath, turns: threading.Semaphore, done: Callable[[WatchedPath, LastCheck], None]
    ) -> None:
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
            self.finished_at = int(time.time())
            done(place, LastCheck(self.finished_at, self.damaged_count))
        except DuramenError as error:
            self.problem = str(error)
        finally:
            self.running = False

    def _progress(self, checked_bytes: int) -> None:
        self.done_bytes += checked_bytes

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}
