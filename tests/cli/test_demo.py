"""`duramen demo`: the whole story, and the files it leaves when asked to."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

import duramen
from duramen.cli.samples import write_samples
from tests.cli.running import FORMATS, Run


def test_the_whole_story(call: Run, tmp_path: Path) -> None:
    here = Path.cwd()
    result = call("demo", "--keep", tmp_path / "logs")
    assert (result.code, result.err) == (0, "")
    assert Path.cwd() == here
    for format in FORMATS:
        for verb in ("info", "cat", "dump", "verify"):
            assert f"$ duramen {verb} {format}" in result.text
        assert duramen.detect(tmp_path / "logs" / format).format == format
    assert result.text.count("damage found") == 5
    assert "not noticed" in result.text
    assert str(tmp_path / "logs") in result.text.splitlines()[-1]
    assert call("demo", "--keep", tmp_path / "logs").fails(2, "not empty")


def test_nothing_is_left_behind(call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert "scratch" in call("demo").text.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_samples_are_the_same_every_time(tmp_path: Path) -> None:
    first, second = (write_samples(str(tmp_path / name)) for name in "ab")
    for one, other in zip(first, second, strict=True):
        files = {path.relative_to(one.path): path.read_bytes() for path in Path(one.path).rglob("*") if path.is_file()}
        assert files == {
            path.relative_to(other.path): path.read_bytes() for path in Path(other.path).rglob("*") if path.is_file()
        }
