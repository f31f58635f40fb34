"""The runner: ``python -m fuzz [--seconds N] [--target NAME] [--seed-dir DIR] [FILE ...]``.

Without a file it fuzzes: atheris runs one target per process, two processes at a time, and the seconds are shared out
among the targets. What is found lies under ``build/fuzz/``: a corpus per target, which the next run goes on with, and
the inputs that crashed. With files it replays them, without atheris. Exits with 1 if anything crashed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "fuzz"
AT_ONCE = 2
MAX_INPUT_BYTES = 8192
HANG_SECONDS = 20
INSTRUMENTED = ("duramen.formats.", "duramen.log.", "duramen.kernel.reference")
"""The twin stands in for the compiled kernel, which is not instrumented: both take the same paths."""


class Outcome(NamedTuple):
    """What one target's run came to, as libFuzzer tells it."""

    target: str
    executions: int
    seconds: float
    coverage: int
    corpus: int
    crashes: list[Path]
    log: Path


# --- one target, in a process of its own


def fuzz(name: str, seconds: int, directories: Sequence[str]) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    from fuzz.memory import limit
    from fuzz.targets import TARGETS

    for function in functions(INSTRUMENTED):
        atheris.instrument_func(function)
    target = TARGETS[name]
    for data in target.seeds():
        target(data)  # whatever is allocated once and kept is not counted against the bound
    limit()
    left = max(1, round(seconds - time.process_time()))
    flags = [
        f"-max_total_time={left}", f"-max_len={MAX_INPUT_BYTES}", f"-timeout={HANG_SECONDS}",
        f"-artifact_prefix={BUILD / name}-", "-rss_limit_mb=0", "-print_final_stats=1", "-verbosity=1",
    ]  # fmt: skip
    atheris.Setup([name, *flags, *directories], target)
    atheris.Fuzz()


def functions(packages: Sequence[str]) -> Iterator[FunctionType]:
    """Every function and method that the packages define.

    atheris can instrument modules as they are imported, but not through the loader of an editable install."""
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(tuple(packages)):
            continue
        holders = [module, *(v for v in vars(module).values() if isinstance(v, type) and v.__module__ == name)]
        for holder in holders:
            for value in list(vars(holder).values()):
                inner = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
                inner = getattr(inner, "__wrapped__", inner)
                if isinstance(inner, FunctionType) and inner.__module__ == name:
                    yield inner


# --- all of them


def prepare(name: str) -> tuple[Path, Path]:
    """The directories of a target's corpus and of its seeds."""
    from fuzz.targets import TARGETS

    corpus, start = BUILD / name / "corpus", BUILD / name / "seeds"
    for directory in (corpus, start):
        directory.mkdir(parents=True, exist_ok=True)
    for data in TARGETS[name].seeds():
        (start / sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    return corpus, start


def run(name: str, seconds: int, seed_dir: str | None) -> Outcome:
    directories = [str(path) for path in prepare(name)] + ([seed_dir] if seed_dir else [])
    command = [sys.executable, "-m", "fuzz", "--child", "--target", name, "--seconds", str(seconds), *directories]
    log, known, started = BUILD / name / "log.txt", set(BUILD.glob(f"{name}-*")), time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    crashes = sorted(set(BUILD.glob(f"{name}-*")) - known)
    if done.returncode and not crashes:
        crashes = [log]  # it ended before an input was to blame: the log says why
    numbers = {key: found[-1] for key in ("cov", "corp") if (found := re.findall(rf"{key}: (\d+)", text))}
    executed = re.findall(r"^(?:stat::number_of_executed_units: |#)(\d+)", text, re.MULTILINE)
    return Outcome(
        name, int(executed[-1]) if executed else 0, time.monotonic() - started,
        int(numbers.get("cov", 0)), int(numbers.get("corp", 0)), crashes, log,
    )  # fmt: skip


def show(outcomes: Sequence[Outcome]) -> None:
    print(f"{'target':<22} {'executions':>11} {'exec/s':>8} {'coverage':>9} {'corpus':>7} {'crashes':>8}")
    for found in outcomes:
        rate = found.executions / max(found.seconds, 0.001)
        print(
            f"{found.target:<22} {found.executions:>11,} {rate:>8,.0f} {found.coverage:>9,} {found.corpus:>7,}"
            f" {len(found.crashes):>8}"
        )
    print(f"{'total':<22} {sum(found.executions for found in outcomes):>11,}")
    for found in outcomes:
        for path in found.crashes:
            print(f"\n{found.target}: {path.relative_to(ROOT)}")
            if path == found.log:
                print("".join(f"  {line}\n" for line in path.read_text(errors="replace").splitlines()[-15:]))
            else:
                print(f"  what was said: {found.log.relative_to(ROOT)}")
                print(f"  replay: python -m fuzz --target {found.target} {path.relative_to(ROOT)}")


def fuzz_all(names: Sequence[str], seconds: int, seed_dir: str | None) -> int:
    share = max(1, seconds * min(AT_ONCE, len(names)) // len(names))
    print(f"{len(names)} targets, {share} s each, {AT_ONCE} at a time; at most {MAX_INPUT_BYTES} bytes an input")
    BUILD.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda name: run(name, share, seed_dir), names))
    show(outcomes)
    return 1 if any(found.crashes for found in outcomes) else 0


# --- again


def replay(name: str, files: Sequence[str]) -> int:
    """Run files through a target; the traceback of the first that fails is shown."""
    from fuzz.memory import bounded
    from fuzz.targets import TARGETS

    for path in files:
        data = Path(path).read_bytes()
        with bounded():
            TARGETS[name](data)
        print(f"{path}: {len(data)} bytes, nothing is wrong")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="throw random bytes at the decoders")
    parser.add_argument("--seconds", type=int, default=60, help="how long in all (default 60)")
    parser.add_argument("--target", action="append", help="only this one; may be given again")
    parser.add_argument("--seed-dir", help="a directory of more inputs to start from")
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", metavar="FILE", help="replay these with the one target")
    args = parser.parse_args()
    if args.child:
        fuzz(args.target[0], args.seconds, args.files)
    from fuzz.targets import TARGETS

    if args.list:
        print(*TARGETS, sep="\n")
        return 0
    names = args.target or list(TARGETS)
    if unknown := set(names) - TARGETS.keys():
        parser.error(f"no such target: {', '.join(sorted(unknown))}; the targets: {', '.join(TARGETS)}")
    if args.files:
        if len(names) != 1:
            parser.error("to replay a file, name its --target")
        return replay(names[0], args.files)
    return fuzz_all(names, args.seconds, args.seed_dir)


if __name__ == "__main__":
    sys.exit(main())
