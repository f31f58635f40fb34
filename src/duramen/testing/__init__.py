"""Disks for tests: one that can lose power between any two operations, and one that fails the n-th call.

Both stand behind the same seam as the real disk (`duramen.disk.base.Disk`), so whatever takes a disk can be run on
them: an engine, a format of your own, a function of four lines. Here is one that replaces a file, and forgets
something:

>>> def save(disk, path, data):
...     file = disk.create(path + ".new")
...     write_all(file, 0, data)
...     file.close()
...     disk.replace(path + ".new", path)
...     disk.sync_directory("/")

**Losing power.** `SimulatedDisk` keeps apart what programs see and what the medium holds. ``crash`` answers a new disk,
as a power loss at this moment could leave it; the old one goes on. A `CrashPattern` says which part of the unsynced
survives, and `patterns` gives the standard set.

>>> disk = SimulatedDisk()
>>> save(disk, "/state", b"heartwood")
>>> sorted({disk.crash(pattern).tree()["/state"] for pattern in patterns()})
[b'', b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00', b'heartwood']

The name arrived and the bytes did not: ``save`` has to sync the file before it gives it the name.

>>> def save(disk, path, data):
...     file = disk.create(path + ".new")
...     write_all(file, 0, data)
...     file.sync()
...     file.close()
...     disk.replace(path + ".new", path)
...     disk.sync_directory("/")

**Crashing everywhere.** ``on_operation`` is called after every change, so a test can crash there with every pattern
and look at what a program would find. A pattern prints as the call that makes it again:

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

Old or new and nothing between: that is what the function promises. A killed process, in contrast to a power loss, is
``disk.clone()``: everything written is there, and its locks are gone.

**Failing.** `FaultyDisk` stands over any disk, the real one too, and fails calls that a small language describes
(`parse_faults`). Here the sync fails, and with it the bytes are gone, although the second sync succeeds: this is what
Linux does, and why nobody may retry one.

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

**Exploring.** `Explorer` does all of that to a log: it runs a workload, crashes after every operation with every
pattern, recovers, and holds what is found against a model. ``python -m duramen.testing.torture`` hunts with it for as
long as you like.

>>> explorer = Explorer(inner_every=1000)
>>> explorer.explore(Case("fixed-slot", "batches", seed=7, moment=30))
>>> explorer.crashes
27

To fail every call once: run the work on a disk without faults, read ``calls``, and run it again for each
``Fault(call=n, error=errno.EIO)``.
"""

from __future__ import annotations

from duramen.disk.base import write_all
from duramen.disk.crash import CrashPattern, patterns
from duramen.disk.faulty import Fault, FaultyDisk, parse_faults
from duramen.disk.simulated import SimulatedDisk
from duramen.testing.explorer import Case, Explorer
from duramen.testing.running import BrokenPromiseError

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
