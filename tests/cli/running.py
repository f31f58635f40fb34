"""What the tests of the command line share: a result, copies of the samples, ways to damage them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duramen.cli.demo.samples import DemoSample

FORMATS = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot")


@dataclass
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def fails(self, code: int, *words: str) -> bool:
        """One line on standard error that starts with the program's name and holds these words; never a traceback."""
        assert self.code == code, (self.code, self.err)
        assert self.err.startswith("duramen: ")
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        for word in words:
            assert word in self.err, (word, self.err)
        return True


Run = Callable[..., Result]


class Logs:
    """Copies of the samples that a test may damage."""

    def __init__(self, pristine: dict[str, DemoSample], directory: Path) -> None:
        self._pristine = pristine
        self._directory = directory

    def copy(self, format: str, name: str | None = None) -> Path:
        target = self._directory / (name or format)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self._pristine[format].path, target)
        return target

    def options(self, format: str) -> Sequence[str]:
        pairs = self._pristine[format].options.items()
        return [word for name, value in pairs for word in ("--option", f"{name}={value}")]


def flip(path: Path, position: int, bits: int = 0x20) -> None:
    """Change a byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)


def segments(log: Path) -> list[Path]:
    """The segment files of a sample, oldest first."""
    found = [path for path in log.rglob("*") if path.suffix in (".log", ".segment")]
    return sorted(found)
