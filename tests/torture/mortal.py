"""Processes that share a simulated disk, and of which one can be killed in the middle of what it does.

`SimulatedDisk.clone` stands for a machine on which every process dies. Here one dies, and the others go on with what
they remember: every process has a `MortalDisk` over the same disk. After ``lives`` more changes it is dead. The change
at which it dies may still happen in part (half a write), nothing happens after it, and its locks are gone, as those of
a killed process are. `KilledError` ends the call; it is no `Exception`, so no handler of the engine keeps it.
"""

from __future__ import annotations

from duramen.disk import Gate, Lock
from duramen.testing.faulty_disk import CHANGING, FaultyDisk, FaultyGate, _Strike
from duramen.testing.simulated_disk import SimulatedDisk


class KilledError(BaseException):
    """The process is dead."""


class MortalDisk(FaultyDisk):
    """The disk as one process has it.

    >>> disk = SimulatedDisk()
    >>> one, other = MortalDisk(disk), MortalDisk(disk)
    >>> lock = one.lock("/lock", b"one")
    >>> one.die_after(1)
    >>> file = one.create("/a")
    Traceback (most recent call last):
    tests.torture.mortal.KilledError: create /a
    >>> other.is_locked("/lock"), other.kind("/a").value
    (False, 'missing')
    """

    inner: SimulatedDisk

    def __init__(self, inner: SimulatedDisk) -> None:
        super().__init__(inner)
        self.is_dead = False
        self._lives: int | None = None
        self._in_part = False
        self._held: list[Lock | Gate] = []

    def die_after(self, lives: int | None, *, in_part: bool = False) -> None:
        """The change of that number, counted from now on, is the last thing that is tried; None: live on.
        ``in_part``: if it is a write, half of it happens."""
        self._lives, self._in_part = lives, in_part

    def lock(self, path: str, note: bytes) -> Lock:
        lock = super().lock(path, note)
        self._held.append(lock)
        return lock

    def lock_directory(self, path: str) -> Lock:
        lock = super().lock_directory(path)
        self._held.append(lock)
        return lock

    def gate(self, path: str) -> Gate:
        gate = self.inner.gate(path)
        self._held.append(gate)
        return FaultyGate(self, path, gate)

    def _strike(self, operation: str, *paths: str) -> _Strike:
        if not self.is_dead and self._lives is not None and operation in CHANGING and operation != "open":
            self._lives -= 1
            if self._lives <= 0:
                self._die()
                if operation == "write" and self._in_part:
                    return _Strike(short=True)
        if self.is_dead:
            raise KilledError(f"{operation} {paths[0]}")
        return super()._strike(operation, *paths)

    def _die(self) -> None:
        """The kernel takes its locks away. The notes in them stay."""
        self.is_dead = True
        with self.inner._mutex:
            for number, lock in list(self.inner._locks.items()):
                if any(lock is held for held in self._held):
                    del self.inner._locks[number]
