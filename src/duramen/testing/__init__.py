"""A kit for crash tests: a disk that can lose power between any two operations, and a disk that fails the n-th call.

Both implement the interface of the real disk (`duramen.disk.Disk`), so that everything that takes a disk runs on them:
a log, a format of your own, a function of four lines. This function replaces a file and forgets something:

>>> def save(disk, path, data):
...     file = disk.create(path + ".new")
...     write_all(file, 0, data)
...     file.close()
...     disk.replace(path + ".new", path)
...     disk.sync_directory("/")

**Losing power.** `SimulatedDisk` separates what programs see from what the medium holds. ``crash`` returns a new disk,
as a power loss at this moment could leave it; the old one is unchanged. A `CrashPattern` determines which unsynced
changes survive, and `patterns` returns the standard set.

>>> disk = SimulatedDisk()
>>> save(disk, "/state", b"heartwood")
>>> sorted({disk.crash(pattern).tree()["/state"] for pattern in patterns()})
[b'', b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00', b'heartwood']

The name arrived and the bytes did not: ``save`` must sync the file before it renames it.

>>> def save(disk, path, data):
...     file = disk.create(path + ".new")
...     write_all(file, 0, data)
...     file.sync()
...     file.close()
...     disk.replace(path + ".new", path)
...     disk.sync_directory("/")

**Crashing everywhere.** The disk calls ``on_operation`` after every change, so that a test can crash there with every
pattern and check what a program would find. The repr of a pattern is the call that recreates it:

>>> disk = SimulatedDisk()
>>> save(disk, "/state", b"sapwood")
>>> found = set()
>>> def explore(number, operation):
...     for pattern in patterns(seed=number):
...         found.add(disk.crash(pattern).tree()["/state"])
>>> disk.on_operation = explore
>>> save(disk, "/state", b"heartwood")
>>> sorted(found)
[b'heartwood', b'sapwood']
>>> patterns(seed=3)[12]
CrashPattern('torn', 'kept', block_bytes=512, seed=3)

Old or new and nothing in between: the function keeps its promise. A killed process, in contrast to a power loss, is
``disk.clone()``: it keeps everything written, without the locks.

**Failing.** `FaultyDisk` wraps any disk, also the real one, and fails the calls that a small language describes
(`parse_faults`). Here the first sync fails and loses the bytes, although the second sync succeeds. Linux does that,
which is why a program must never retry a failed sync.

>>> under = SimulatedDisk()
>>> disk = FaultyDisk(under, "sync#1: EIO", sync_failure="lost")
>>> file = disk.create("/state")
>>> write_all(file, 0, b"heartwood")
>>> file.sync()
Traceback (most recent call last):
duramen.errors.StorageError: /state: input/output error (the device failed: the kernel's log says more)
>>> file.sync()
>>> disk.sync_directory("/")
>>> under.crash(CrashPattern("kept", "kept")).tree()["/state"]
b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
>>> disk.fired, disk.calls
(['3 sync /state: sync#1: EIO'], 5)

**Exploring.** `Explorer` applies all of this to a log: it runs a workload, crashes after every operation with every
pattern, recovers, and compares the result with a model. A broken promise raises `BrokenPromiseError`, whose text has
the `Case` to run again.

>>> explorer = Explorer(inner_every=1000)
>>> explorer.explore(Case("fixed-slot", "batches", seed=7, moment=30))
>>> explorer.crashes
27

To fail every call once: run the work on a disk without faults, read ``calls``, and run it again for each
``Fault(call=n, error=errno.EIO)``.
"""

from __future__ import annotations

from duramen.disk import write_all
from duramen.testing.crash import CrashPattern, patterns
from duramen.testing.explorer import Case, Explorer
from duramen.testing.faulty_disk import Fault, FaultyDisk, parse_faults
from duramen.testing.run import BrokenPromiseError
from duramen.testing.simulated_disk import SimulatedDisk

__all__ = [
    "BrokenPromiseError",
    "Case",
    "CrashPattern",
    "Explorer",
    "Fault",
    "FaultyDisk",
    "SimulatedDisk",
    "parse_faults",
    "patterns",
    "write_all",
]
