"""Appends of this tree beside those of another one, in turns: `python -m bench.trees OTHER/.venv/bin/python`.

Each tree runs in a process of its own, which appends on request and says how long that took. The ratio is this tree's
time to the other's: 1 is the same, less is faster.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from bench.measure import Samples
from duramen.formats import FORMATS

CHILD = """
import sys, threading, time
import duramen
root, name = sys.argv[1:]
size = {"record_size": 256} if name == "fixed-slot" else {}
logs = {
    level: duramen.open(f"{root}/{level}", "a", format=name, durability=level, **size) for level in ("write", "fsync")
}
value = b"x" * 256
batch = [value] * 1000

def threads(count, append):
    def run():
        for _ in range(50):
            append(value)
    started = [threading.Thread(target=run) for _ in range(count)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()

print("ready", flush=True)
for line in sys.stdin:
    what, level = line.split()
    log = logs[level]
    begin = time.perf_counter()
    if what == "batch":
        for _ in range(10 if level == "write" else 2):
            log.append_batch(batch)
    elif what == "16-threads":
        threads(16, log.append)
    else:
        for _ in range(2000 if level == "write" else 50):
            log.append(value)
    print(time.perf_counter() - begin, flush=True)
"""
WORK = ["single write", "single fsync", "batch write", "batch fsync", "16-threads fsync"]


class Tree:
    """One tree's process."""

    def __init__(self, python: str, root: Path, name: str) -> None:
        root.mkdir(parents=True)
        self._process = subprocess.Popen(
            [python, "-c", CHILD, str(root), name], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self._line() != "ready":
            raise SystemExit(f"{python} cannot append to a log of format {name}: see the error above")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run(self, work: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(work + "\n")
        self._process.stdin.flush()
        return float(self._line())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.communicate()


def compare(other: str, root: Path, name: str, rounds: int) -> None:
    """Print a row for each kind of append of a format."""
    with Tree(sys.executable, root / "this", name) as this, Tree(other, root / "other", name) as that:
        for work in WORK:
            ours, theirs = Samples(), Samples()
            for number in range(rounds):
                for tree, samples in ((this, ours), (that, theirs))[:: 1 if number % 2 else -1]:
                    samples.append(tree.run(work))
            ratios = Samples(a / b for a, b in zip(ours, theirs, strict=True))
            print(
                f"{name:12} {work:16} {ours.median / theirs.median:6.2f} {ours.best / theirs.best:6.2f} "
                f"{ratios.percentile(25):6.2f} {ratios.percentile(75):6.2f}", flush=True,
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="the Python of the other tree's environment")
    parser.add_argument("--formats", nargs="+", choices=sorted(FORMATS), default=sorted(FORMATS))
    parser.add_argument("--rounds", type=int, default=60)
    chosen = parser.parse_args()
    print(f"{'format':12} {'appends':16} median   best    25%    75%")
    for name in chosen.formats:
        root = Path(tempfile.mkdtemp(prefix="duramen-trees-"))
        try:
            compare(chosen.other, root, name, chosen.rounds)
        finally:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
