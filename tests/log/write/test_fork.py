"""A process that forks while it has logs open. The child inherits the objects and the descriptors, and not the lock: it
must not write a byte, and above all not cut off what its parent appends meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import duramen

FORMATS = {"fixed-slot": {"record_size": 4}}

SCRIPT = """
import os, sys, duramen, pyarrow
path, options = sys.argv[1], eval(sys.argv[2])

def in_child(work):
    child = os.fork()
    if not child:
        try:
            print(work(), flush=True)
        except duramen.DuramenError as error:
            print(type(error).__name__, error, flush=True)
        finally:
            os._exit(0)
    return child

log = duramen.open(path, "a", **options)
"""


def run(script: str, path: Path, options: dict[str, object]) -> list[str]:
    command = [sys.executable, "-c", SCRIPT + script, str(path), repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("format", duramen.formats())
def test_a_forked_child_cannot_append(tmp_path: Path, format: str) -> None:
    script = """
log.append(b"1234")
calls = [
    lambda: log.append(b"5678"), lambda: log.append_batch([b"5678"]), lambda: log.producer("p").append(b"5678"),
    lambda: log.append_once([[b"5678"]], writer="w", batch=1), lambda: log.sync(), lambda: log.retain(),
]
for call in calls:
    os.waitpid(in_child(call), 0)
print(log.append(b"abcd"))
log.close()
"""
    *refused, offset = run(script, tmp_path / "log", {"format": format, **FORMATS.get(format, {})})
    assert len(refused) == 6
    assert all("was opened by process" in line and "after the fork" in line for line in refused), refused
    assert offset == "1"
    assert [record.value for record in duramen.open(tmp_path / "log")] == [b"1234", b"abcd"]


@pytest.mark.slow
@pytest.mark.parametrize("format", duramen.formats())
def test_a_forked_child_that_closes_the_log_takes_nothing_from_its_parent(tmp_path: Path, format: str) -> None:
    """What it inherits ends where the log ended at the fork. To cut the file there, or to write that down as the
    watermark, would destroy what was acknowledged since."""
    script = """
log.append_batch([b"x" * size] * (3_000_000 // size))     # large enough to have room reserved behind it
reading, writing = os.pipe()
child = in_child(lambda: (os.read(reading, 1), log.close(), log.is_closed))
for n in range(3):
    log.append(b"%0*d" % (size, n))
os.write(writing, b"x")
os.waitpid(child, 0)
print([record.value[-1:] for record in log.scan(log.next_offset - 3)], log.append(b"%0*d" % (size, 3)) + 1)
os.kill(os.getpid(), 9) if killed else log.close()
"""
    size = 4 if format == "fixed-slot" else 100_000
    for killed in (False, True) if format in ("keratin", "rustlog") else (False,):
        path = tmp_path / f"killed {killed}"
        options = {"format": format, **FORMATS.get(format, {})}
        command = [sys.executable, "-c", f"size, killed = {size}, {killed}\n" + SCRIPT + script, str(path)]
        done = subprocess.run([*command, repr(options)], capture_output=True, text=True, timeout=60, check=False)
        closed, seen = done.stdout.splitlines()
        assert closed.endswith("True)"), done.stderr
        count = 3_000_000 // size + 4
        assert seen == f"[b'0', b'1', b'2'] {count}"
        assert duramen.verify(path).ok
        with duramen.open(path, "a") as log:
            assert log.next_offset == count
            assert [record.value[-1:] for record in log.scan(count - 4)] == [b"0", b"1", b"2", b"3"]


def test_a_forked_child_reads_what_it_inherits(tmp_path: Path) -> None:
    script = """
log.append_batch([b"a", b"b"])
group = log.group("g")
(first,) = group.fetch(1, lease=60)
os.waitpid(in_child(lambda: ([r.value for r in log], group.ack(first), [d.value for d in group.fetch(5)])), 0)
print(group.status().acked_until, group.fetch(5))
log.close()
"""
    assert run(script, tmp_path / "log", {}) == ["([b'a', b'b'], True, [b'b'])", "1 []"]


def test_a_store_in_a_forked_child_reopens_its_logs(tmp_path: Path) -> None:
    script = """
log.close()
store = duramen.Store(path + " store")
topic = store.create("orders", partitions=4)
topic.append_batch(pyarrow.table({"value": [b"a", b"a"], "partition": [0, 1]}))      # by threads, one per partition
rows = pyarrow.table({"value": [b"b", b"b"], "partition": [2, 3]})
child = in_child(lambda: ([record.value for record in topic.scan()], topic.append_batch(rows)))
os.waitpid(child, 0)
os.waitpid(in_child(lambda: topic.append(b"c", partition=0)), 0)
print(topic.append(b"d", partition=0), [record.value for record in topic.scan()])
store.close()
"""
    lines = run(script, tmp_path / "log", {})
    assert lines[0] == "([b'a', b'a'], {2: Appended(base_offset=0, count=1), 3: Appended(base_offset=0, count=1)})"
    assert "is open for writing elsewhere (pid" in lines[1]
    assert lines[2] == "Placed(partition=0, offset=1) [b'a', b'd', b'a', b'b', b'b']"


def test_a_child_forked_while_threads_append_reads_and_closes(tmp_path: Path) -> None:
    """Whatever they had locked stays locked in the child."""
    script = """
import threading
log.append(b"first")
ends = threading.Event()

def work():
    while not ends.is_set() and log.next_offset < 100_000:
        log.append(b"v" * 3000)

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
found = set()
for _ in range(120):
    child = in_child(lambda: (log.next_offset > 0, log.close()))
    found.add(os.waitpid(child, 0)[1])
ends.set()
for thread in threads:
    thread.join()
log.close()
print(found, duramen.verify(path).ok)
"""
    lines = run(script, tmp_path / "log", {})
    assert set(lines) == {"(True, None)", "{0} True"}
