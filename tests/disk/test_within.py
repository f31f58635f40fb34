"""Appends, fetches and acks by code that interrupts one of them in the same thread: a signal's handler, a finalizer.
They are done or refused; nothing hangs, and nothing that was answered is missing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TIMEOUT_S = 60


def run(script: str, *arguments: str) -> list[str]:
    """In a process of its own: if it hangs, the tests go on."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


APPENDING = """
import gc, signal, sys, threading, duramen
path, durability = sys.argv[1:]
stored, refused = [], []  # to add to a list is one step

def append(value):
    try:
        stored.append((log.append(value), value))
    except duramen.UsageError as error:
        assert "from within the same call" in str(error), error
        refused.append(1)

class Late:
    def __init__(self):
        self.me = self  # left to the garbage collector
    def __del__(self):
        append(b"late")

signal.signal(signal.SIGALRM, lambda *_: append(b"handler"))
with duramen.open(path, "a", format="durable-log", durability=durability) as log:
    others = [threading.Thread(target=lambda: [append(b"thread") for _ in range(300)]) for _ in range(2)]
    for other in others:
        other.start()
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
    for number in range(600):
        append(b"main")
        if not number % 10:
            Late()
    signal.setitimer(signal.ITIMER_REAL, 0)
    for other in others:
        other.join()
    gc.collect()
assert sorted(offset for offset, _ in stored) == list(range(len(stored)))
with duramen.open(path) as log:
    assert [record.value for record in log.scan()] == [value for _, value in sorted(stored)]
print(sum(value == b"main" for _, value in stored), sum(value == b"handler" for _, value in stored), sum(refused))
"""


@pytest.mark.slow
def test_a_handler_and_a_finalizer_that_append(tmp_path: Path) -> None:
    for durability in ("write", "fsync"):
        main, handled, refused = map(int, run(APPENDING, str(tmp_path / durability), durability))
        assert main == 600
        assert handled + refused > 0


CONSUMING = """
import signal, sys, duramen
fetched, refused = [], []  # to add to a list is one step

def fetch():
    try:
        batch = group.fetch_batch(10, lease=60)
    except duramen.UsageError as error:
        assert "from within the same call" in str(error), error
        refused.append(1)
        return None
    fetched.append(len(batch))
    return batch

signal.signal(signal.SIGALRM, lambda *_: fetch())
with duramen.open(sys.argv[1], "a", format="durable-log", durability="write") as log:
    log.append_batch([b"x"] * 100_000)
    group = log.group("g")
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0011)
    acked = 0
    for _ in range(300):
        acked += group.ack_many(fetch())
    signal.setitimer(signal.ITIMER_REAL, 0)
    status = group.status()
assert acked == 3000 and status.in_flight == sum(fetched) - acked, (acked, status, sum(fetched))
print(sum(fetched) - acked, sum(refused))
"""


def test_a_handler_that_fetches(tmp_path: Path) -> None:
    fetched, refused = map(int, run(CONSUMING, str(tmp_path / "log")))
    assert fetched + refused > 0
