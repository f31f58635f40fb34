"""Group commit alone: no files, no records, only threads that hand requests in and wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from duramen.errors import PoisonedError, QueueTimeoutError, UsageError
from duramen.log.write.group_commit import GroupCommit, GroupLimits, Request

PATIENCE_S = 10


class Committer:
    """Remembers the groups, and can be held in the middle of one."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []
        self.leaders: list[int] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.act: Callable[[list[Request]], None] = lambda group: None
        self._busy = threading.Lock()

    def __call__(self, group: list[Request]) -> None:
        assert self._busy.acquire(blocking=False), "two groups at once"
        try:
            self.groups.append([request.work for request in group])
            self.leaders.append(threading.get_ident())
            self.entered.release()
            assert self.gate.wait(PATIENCE_S)
            self.act(group)
            for request in group:
                if request.error is None:
                    request.result = f"done {request.work}"
        finally:
            self._busy.release()

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE_S)


class Caller:
    """A thread with one request."""

    def __init__(self, commit: GroupCommit, request: Request, timeout_s: float | None = None) -> None:
        self.request = request
        self.answer: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(commit, timeout_s), daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int:
        assert self._thread.ident is not None
        return self._thread.ident

    def _run(self, commit: GroupCommit, timeout_s: float | None) -> None:
        try:
            self.answer = commit.submit(self.request, timeout_s)
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def join(self) -> Caller:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.request.work} hangs"
        return self


def request(work: Any, size_bytes: int = 10, records: int = 1, *, alone: bool = False) -> Request:
    return Request(work, size_bytes, records, alone)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def queued(commit: GroupCommit, count: int) -> None:
    wait_until(lambda: len(commit._queue) == count)


@contextmanager
def held(committer: Committer) -> Iterator[None]:
    """While a leader is held in the middle of its group; released at the end, whatever happens."""
    committer.wait_entered()
    try:
        yield
    finally:
        committer.gate.set()


def start(committer: Committer, **limits: Any) -> GroupCommit:
    return GroupCommit(committer, GroupLimits(**limits))


def idle(commit: GroupCommit) -> bool:
    return commit._leader is None and not commit._queue and commit._queued_bytes == commit._queued_records == 0


# --- called from within itself, as a signal's handler or a finalizer does


def test_a_leader_cannot_wait_for_itself() -> None:
    committer = Committer()
    commit = start(committer)

    def act(group: list[Request]) -> None:
        with pytest.raises(UsageError, match="from within the same call"):
            commit.submit(request("inner"))

    committer.act = act
    assert commit.submit(request("outer")) == "done outer"
    committer.act = lambda group: None
    assert commit.submit(request("next")) == "done next"
    assert committer.groups == [["outer"], ["next"]]
    assert idle(commit)


def test_the_holder_of_the_queue_cannot_wait_for_it() -> None:
    committer = Committer()
    commit = start(committer)
    with commit._lock, pytest.raises(UsageError, match="from within the same call"):
        commit.submit(request("inner"))
    assert commit.submit(request("next")) == "done next"
    assert idle(commit)


@pytest.mark.parametrize("is_taken", [False, True])
def test_an_append_that_interrupts_a_waiting_one(is_taken: bool) -> None:
    """Refused while the request that it interrupts may come to lead; one that is being committed needs nothing more."""
    committer = Committer()
    commit = start(committer)
    answers: list[Any] = []

    class Interrupted(Request):
        def sleep(self, deadline: float | None) -> bool:
            if not answers:
                answers.append(None)
                if is_taken:
                    committer.gate.set()
                    committer.wait_entered()
                try:
                    answers[0] = commit.submit(request("inner"))
                except UsageError:
                    answers[0] = "refused"
                    committer.gate.set()
            return super().sleep(deadline)

    committer.gate.clear()
    first = Caller(commit, request("first"))
    committer.wait_entered()
    second = Caller(commit, request("second"))
    queued(commit, 1)
    assert commit.submit(Interrupted("outer", 10, 1)) == "done outer"
    assert answers == ["done inner" if is_taken else "refused"]
    first.join()
    second.join()
    wait_until(lambda: idle(commit))


# --- leading and following


def test_one_caller_leads_itself() -> None:
    committer = Committer()
    commit = start(committer)
    assert [commit.submit(request(n)) for n in range(3)] == ["done 0", "done 1", "done 2"]
    assert committer.groups == [[0], [1], [2]]
    assert idle(commit)


def test_waiting_appends_share_the_next_group_and_one_of_them_leads_it() -> None:
    committer = Committer()
    commit = start(committer)
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    with held(committer):
        for n in range(5):
            callers.append(Caller(commit, request(n)))
            queued(commit, n + 1)
    assert [caller.join().answer for caller in callers] == ["done first", *(f"done {n}" for n in range(5))]
    assert committer.groups == [["first"], [0, 1, 2, 3, 4]], "in the order in which they came"
    assert committer.leaders == [callers[0].ident, callers[1].ident]
    assert idle(commit)


def test_a_request_that_runs_alone_shares_no_group() -> None:
    committer = Committer()
    commit = start(committer)
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    with held(committer):
        for n, alone in enumerate([False, False, True, False]):
            callers.append(Caller(commit, request(n, alone=alone)))
            queued(commit, n + 1)
    for caller in callers:
        caller.join()
    assert committer.groups == [["first"], [0, 1], [2], [3]]


@pytest.mark.parametrize(
    ("limits", "groups"),
    [
        ({"max_bytes": 25}, [[0, 1], [2, 3], [4]]),
        ({"max_bytes": 5}, [[0], [1], [2], [3], [4]]),
        ({"max_records": 3}, [[0, 1, 2], [3, 4]]),
        ({}, [[0, 1, 2, 3, 4]]),
    ],
)
def test_a_group_is_bounded(limits: dict[str, int], groups: list[list[int]]) -> None:
    committer = Committer()
    commit = start(committer, **limits)
    committer.gate.clear()
    callers = [Caller(commit, request("first", 1))]
    with held(committer):
        for n in range(5):
            callers.append(Caller(commit, request(n)))
            queued(commit, n + 1)
    for caller in callers:
        caller.join()
    assert committer.groups[1:] == groups


# --- lingering


def test_a_leader_lingers_for_others() -> None:
    committer = Committer()
    commit = start(committer, linger_ms=3_600_000, max_records=3)  # a full group does not wait for the time to pass
    callers = [Caller(commit, request(n)) for n in range(3)]
    for caller in callers:
        caller.join()
    assert [len(group) for group in committer.groups] == [3]


def test_lingering_ends() -> None:
    committer = Committer()
    commit = start(committer, linger_ms=30)
    began = time.monotonic()
    commit.submit(request(0))
    assert time.monotonic() - began >= 0.025


def test_a_request_that_must_be_alone_does_not_linger() -> None:
    commit = start(Committer(), linger_ms=3_600_000)
    assert commit.submit(request("close", alone=True)) == "done close"


# --- the bounded queue


def test_a_full_queue_makes_callers_wait_and_lets_them_in_later() -> None:
    committer = Committer()
    commit = start(committer, queue_bytes=25)
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    with held(committer):
        callers += [Caller(commit, request(n)) for n in range(5)]
        queued(commit, 2)
        time.sleep(0.05)
        assert len(commit._queue) == 2
    assert all(caller.join().answer for caller in callers)
    assert sorted(work for group in committer.groups[1:] for work in group) == list(range(5))
    assert all(len(group) <= 2 for group in committer.groups)


def test_a_request_larger_than_the_queue_is_taken_by_an_empty_one() -> None:
    commit = start(Committer(), queue_bytes=25, max_bytes=10)
    assert commit.submit(request("large", 10_000), timeout_s=1) == "done large"


def test_no_room_in_time() -> None:
    committer = Committer()
    commit = start(committer, queue_bytes=10)
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    with held(committer):
        callers.append(Caller(commit, request("queued")))
        queued(commit, 1)
        began = time.monotonic()
        with pytest.raises(QueueTimeoutError, match="the queue stayed full"):
            commit.submit(request("late"), timeout_s=0.05)
        assert time.monotonic() - began >= 0.045
        with pytest.raises(QueueTimeoutError):
            commit.submit(request("at once"), timeout_s=0)
    assert [caller.join().answer for caller in callers] == ["done first", "done queued"]
    assert committer.groups == [["first"], ["queued"]]
    assert idle(commit)


def test_queued_and_not_started_in_time() -> None:
    committer = Committer()
    commit = start(committer)
    committer.gate.clear()
    first = Caller(commit, request("first"))
    with held(committer):
        with pytest.raises(QueueTimeoutError, match="not begun in time"):
            commit.submit(request("late"), timeout_s=0.03)
        assert commit._queued_bytes == 0
    assert first.join().answer == "done first"
    assert committer.groups == [["first"]], "nothing of what timed out is committed"
    assert idle(commit)


def test_started_in_time_and_finished_late_is_acknowledged() -> None:
    committer = Committer()
    commit = start(committer)
    committer.gate.clear()
    first = Caller(commit, request("first"), timeout_s=0.01)
    with held(committer):
        time.sleep(0.05)
    assert first.join().answer == "done first"


def test_a_follower_of_a_slow_group_is_acknowledged() -> None:
    """Its time is over while another commits it: it is stored, so it must not be told that it is not."""
    committer = Committer()
    commit = start(committer)
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    committer.wait_entered()
    callers.append(Caller(commit, request("second")))
    queued(commit, 1)
    callers.append(Caller(commit, request("third"), timeout_s=0.3))
    queued(commit, 2)
    committer.act = lambda group: time.sleep(0.5) if group[0].work == "second" else None
    committer.gate.set()
    assert [caller.join().answer for caller in callers] == ["done first", "done second", "done third"]
    assert committer.groups == [["first"], ["second", "third"]]


# --- errors


def test_an_error_is_that_of_its_group_only() -> None:
    committer = Committer()
    commit = start(committer, max_records=2)

    def fail_the_second(group: list[Request]) -> None:
        if len(committer.groups) == 2:
            raise OSError("no space")

    committer.act = fail_the_second
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    with held(committer):
        for n in range(5):
            callers.append(Caller(commit, request(n)))
            queued(commit, n + 1)
    for caller in callers:
        caller.join()
    assert [type(caller.error) for caller in callers] == [type(None), OSError, OSError, *[type(None)] * 3]
    assert committer.groups == [["first"], [0, 1], [2, 3], [4]]
    assert idle(commit)


def test_a_request_that_was_refused_keeps_its_own_error() -> None:
    committer = Committer()
    commit = start(committer)

    def act(group: list[Request]) -> None:
        if len(group) > 1:
            group[0].error = ValueError("refused")
            raise OSError("failed")

    committer.act = act
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    with held(committer):
        for n in range(2):
            callers.append(Caller(commit, request(n)))
            queued(commit, n + 1)
    assert [type(caller.join().error) for caller in callers] == [type(None), ValueError, OSError]


def test_an_interrupt_in_a_group_is_the_leader_s_alone() -> None:
    committer = Committer()
    commit = start(committer)

    def act(group: list[Request]) -> None:
        if len(group) > 1:
            raise KeyboardInterrupt

    committer.act = act
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    with held(committer):
        for n in range(2):
            callers.append(Caller(commit, request(n)))
            queued(commit, n + 1)
    assert [type(caller.join().error) for caller in callers] == [type(None), KeyboardInterrupt, PoisonedError]
    assert commit.submit(request("afterwards")) == "done afterwards"


# --- interrupts: the main thread gets them wherever it happens to be, so they are put there by hand


class Interrupted(BaseException):
    pass


class Quitter(Request):
    """Interrupted as soon as it sleeps."""

    def sleep(self, deadline: float | None) -> bool:
        raise Interrupted


class LateQuitter(Request):
    """Interrupted when it has slept for the first time."""

    __slots__ = ("is_interrupted",)

    def sleep(self, deadline: float | None) -> bool:
        answer = super().sleep(deadline)
        if not hasattr(self, "is_interrupted"):
            self.is_interrupted = True
            raise Interrupted
        return answer


def test_an_interrupted_follower_takes_its_request_back() -> None:
    committer = Committer()
    commit = start(committer)
    committer.gate.clear()
    first = Caller(commit, request("first"))
    with held(committer):
        with pytest.raises(Interrupted):
            commit.submit(Quitter("quitter", 10, 1))
        last = Caller(commit, request("last"))
        queued(commit, 1)
    assert [caller.join().answer for caller in (first, last)] == ["done first", "done last"]
    assert committer.groups == [["first"], ["last"]]
    assert idle(commit)


@pytest.mark.parametrize("quitter", [0, 1, 2])
def test_appends_after_an_interrupted_follower_are_acknowledged(quitter: int) -> None:
    """Each wakes the next: whoever is gone when its group is answered must not break the chain."""
    committer = Committer()
    commit = start(committer)
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    leave, gone = threading.Event(), threading.Event()

    def act(group: list[Request]) -> None:
        if len(group) > 1:
            leave.set()
            assert gone.wait(PATIENCE_S)

    committer.act = act

    class Leaving(Request):
        def sleep(self, deadline: float | None) -> bool:
            assert leave.wait(PATIENCE_S)
            raise Interrupted

    committer.wait_entered()
    for number in range(4):  # the first of them leads
        kind = Leaving if number == quitter + 1 else Request
        callers.append(Caller(commit, kind(number, 10, 1)))
        queued(commit, number + 1)
    committer.gate.set()
    assert isinstance(callers[quitter + 2].join().error, Interrupted)
    gone.set()
    answers = [caller.join().answer for caller in callers]
    assert answers == ["done first", *(None if number == quitter + 1 else f"done {number}" for number in range(4))]
    assert committer.groups == [["first"], [0, 1, 2, 3]]
    assert idle(commit)


def test_a_follower_that_is_interrupted_when_it_gets_the_lead_passes_it_on() -> None:
    committer = Committer()
    commit = start(committer)
    committer.gate.clear()
    first = Caller(commit, request("first"))
    committer.wait_entered()
    quitting = Caller(commit, LateQuitter("quitter", 10, 1))
    queued(commit, 1)
    waiting = Caller(commit, request("waiting", alone=True))
    queued(commit, 2)
    committer.gate.set()
    assert isinstance(quitting.join().error, Interrupted)
    assert [caller.join().answer for caller in (first, waiting)] == ["done first", "done waiting"]
    assert committer.groups == [["first"], ["waiting"]]
    assert commit.submit(request("afterwards")) == "done afterwards"
    assert idle(commit)


def test_a_leader_that_is_interrupted_while_it_lingers_passes_the_lead_on() -> None:
    committer = Committer()
    commit = start(committer, linger_ms=50)
    quitting = Caller(commit, LateQuitter("quitter", 10, 1))
    wait_until(lambda: commit._leader is not None)
    following = Caller(commit, request("following"))
    assert isinstance(quitting.join().error, Interrupted)
    assert following.join().answer == "done following"
    assert committer.groups == [["following"]]
    assert idle(commit)


# --- many


@pytest.mark.parametrize("linger_ms", [0, 0.2])
def test_no_wake_up_is_lost(linger_ms: float) -> None:
    """Thirty-two threads, for a second each way: everybody is answered, once, with what is theirs."""
    committed: list[Any] = []

    def act(group: list[Request]) -> None:
        for one in group:
            one.result = one.work
            committed.append(one.work)

    limits = GroupLimits(max_records=8, max_bytes=200, queue_bytes=300, linger_ms=linger_ms)
    commit = GroupCommit(act, limits)
    until = time.monotonic() + 1
    answered: list[list[Any]] = [[] for _ in range(32)]
    timeouts = [0] * 32
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        number = 0
        try:
            while time.monotonic() < until:
                alone = number % 17 == 16
                try:
                    patience_s = 0.0005 if thread % 8 == 0 else None
                    answer = commit.submit(request((thread, number), 10 + number % 3, alone=alone), patience_s)
                    assert answer == (thread, number)
                    answered[thread].append(answer)
                except QueueTimeoutError:
                    timeouts[thread] += 1
                number += 1
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "somebody was never woken"
    assert not failures
    assert sorted(committed) == sorted(work for works in answered for work in works)
    for thread in range(32):
        assert [work for work in committed if work[0] == thread] == answered[thread], "a caller's own, in order"
    assert all(answered[thread] for thread in range(32) if thread % 8), "nobody starves"
    assert idle(commit)


# --- those who were there a moment ago


def crowd_of(commit: GroupCommit, threads: int, times: int) -> None:
    """So many threads, each with one request after another."""

    def run(name: int) -> None:
        for number in range(times):
            commit.submit(request((name, number)))

    workers = [threading.Thread(target=run, args=(name,), daemon=True) for name in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_S)
        assert not worker.is_alive()


def test_a_crowd_stays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise half of them would be committed while the other half waits, again and again."""
    monkeypatch.setattr(
        "duramen.log.write.group_commit.MOST_PATIENCE_S", 1.0
    )  # a busy machine takes longer to wake eight threads
    committer = Committer()
    committer.act = lambda group: time.sleep(0.05)
    crowd_of(GroupCommit(committer, GroupLimits()), threads=8, times=12)
    sizes = [len(group) for group in committer.groups]
    assert sum(sizes) == 96
    assert len(sizes) <= 18, sizes  # 12 if all are always together, 24 in two halves


def test_one_alone_is_not_kept_waiting() -> None:
    committer = Committer()
    commit = GroupCommit(committer, GroupLimits())
    commit._patience_s = PATIENCE_S
    for number in range(5):
        began = time.monotonic()
        commit.submit(request(number))
        assert time.monotonic() - began < PATIENCE_S / 2


def test_no_leader_waits_long_for_appenders_that_do_not_return() -> None:
    committer = Committer()
    commit = GroupCommit(committer, GroupLimits())
    commit._crowd, commit._patience_s = 5, 0.02
    began = time.monotonic()
    assert commit.submit(request("one")) == "done one"
    assert 0.02 <= time.monotonic() - began < PATIENCE_S / 2
    assert commit._crowd == 1
    assert commit._patience_s < 0.02


@pytest.mark.parametrize("patience", [0.0, 1.0])
def test_an_append_without_company_does_not_wait(patience: float) -> None:
    committer = Committer()
    committer.act = lambda group: time.sleep(0.01)
    commit = GroupCommit(committer, GroupLimits(), patience=patience)
    commit.submit(request("a slow one"))
    commit._crowd = 5  # there were more
    alone = request("alone")
    commit.submit(alone)
    assert (alone._turn is None) == (patience == 0), "a leader that waits sleeps on a lock of its own"


def test_a_waiting_leader_commits_for_a_request_that_runs_alone() -> None:
    committer = Committer()
    commit = GroupCommit(committer, GroupLimits())
    commit._crowd, commit._patience_s = 5, PATIENCE_S
    first = Caller(commit, request("first"))
    wait_until(lambda: commit._patient is not None)
    seal = Caller(commit, request("seal", 0, 0, alone=True))
    assert first.join().answer == "done first"
    assert seal.join().answer == "done seal"
    assert committer.groups == [["first"], ["seal"]]


def test_a_waiting_leader_commits_for_an_append_that_finds_no_room() -> None:
    committer = Committer()
    commit = GroupCommit(committer, GroupLimits(queue_bytes=15))
    commit._crowd, commit._patience_s = 5, PATIENCE_S
    first = Caller(commit, request("first"))
    wait_until(lambda: commit._patient is not None)
    second = Caller(commit, request("second"))
    assert first.join().answer == "done first"
    commit._patience_s = 0.0
    assert second.join().answer == "done second"


def test_the_append_that_completes_the_crowd_leads_it() -> None:
    committer = Committer()
    commit = GroupCommit(committer, GroupLimits())
    commit._crowd, commit._patience_s = 3, PATIENCE_S
    callers = [Caller(commit, request("first"))]
    wait_until(lambda: commit._patient is not None)
    callers.append(Caller(commit, request("second")))
    queued(commit, 2)
    callers.append(Caller(commit, request("third")))
    assert [caller.join().answer for caller in callers] == ["done first", "done second", "done third"]
    assert committer.leaders == [callers[2].ident]
    assert committer.groups == [["first", "second", "third"]]
    assert idle(commit)


def test_an_append_that_does_not_fit_into_the_group_wakes_its_leader() -> None:
    committer = Committer()
    commit = GroupCommit(committer, GroupLimits(max_bytes=15))
    commit._crowd, commit._patience_s = 2, PATIENCE_S
    first = Caller(commit, request("first"))
    wait_until(lambda: commit._patient is not None)
    second = Caller(commit, request("second"))
    assert [caller.join().answer for caller in (first, second)] == ["done first", "done second"]
    assert committer.groups == [["first"], ["second"]]
    assert idle(commit)


def test_an_interrupted_former_leader_harms_no_other_append() -> None:
    committer = Committer()
    commit = GroupCommit(committer, GroupLimits())
    commit._crowd, commit._patience_s = 2, 0.05
    quitting = Caller(commit, LateQuitter("quitter", 10, 1))
    wait_until(lambda: commit._patient is not None)
    committer.gate.clear()
    second = Caller(commit, request("second"))
    with held(committer):
        assert isinstance(quitting.join().error, Interrupted)
    assert second.join().answer == "done second"
    assert committer.groups == [["quitter", "second"]]
    assert idle(commit)


def test_a_crowd_with_a_request_that_runs_alone_has_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever completed it would commit a group without its own request, and lead beside the next."""
    monkeypatch.setattr("duramen.log.write.group_commit.PATIENCE", 1e6)
    monkeypatch.setattr("duramen.log.write.group_commit.MOST_PATIENCE_S", 0.3)
    committer = Committer()
    commit = GroupCommit(committer, GroupLimits())
    committer.gate.clear()
    callers = [Caller(commit, request("first"))]
    with held(committer):
        for number, work in enumerate(["second", "seal", "third"]):
            callers.append(Caller(commit, request(work, alone=work == "seal")))
            queued(commit, number + 1)
        committer.act = lambda group: time.sleep(0.05)
    wait_until(lambda: commit._patient is not None or len(committer.groups) > 1)
    callers.append(Caller(commit, request("fourth")))
    assert [caller.join().answer for caller in callers] == [f"done {caller.request.work}" for caller in callers]
    assert committer.groups[:3] == [["first"], ["second"], ["seal"]]
    assert idle(commit)
