"""Logs as an operator finds them: what should be a file is none, the sidecar is another's, half of a copy is missing.

Whatever it is, every verb says what is the matter and what to do, with the right exit code, and no record is given up.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import duramen
from tests.cli.running import FORMATS, Logs, Run, flip, segments

SEGMENTED = FORMATS[:4]


PUBLISHED = ("verified.json", "metrics.json")


def written(root: Path, name: str, counts: tuple[int, ...] = (50, 50, 50)) -> Path:
    """A log of ours: sealed segments, and an active one."""
    options = {"record_size": 20} if name == "fixed-slot" else {}
    with duramen.open(root, "a", format=name, **options) as log:
        for count in counts:
            log.append_batch([(b"value %d" % number).ljust(20, b".") for number in range(count)])
            if name != "fixed-slot":
                log.seal()
        log.append(b"the last one".ljust(20, b"."))
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Of each file, except what `verify` and writers publish."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name not in PUBLISHED)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", FORMATS)
def test_the_sidecar_is_a_file(tmp_path: Path, call: Run, name: str) -> None:
    root = written(tmp_path / "log", name)
    more = ("--option", "record_size=20") if name == "fixed-slot" else ()
    shutil.rmtree(root / ".duramen")
    (root / ".duramen").write_bytes(b"mine")
    done = call("verify", root, *more)
    assert done.code == 1
    assert "bad-sidecar" in done.text
    assert "→ move it away" in done.text
    assert call("cat", root, "--output", "raw", *more).code == 0
    assert call("info", root, *more).code == 0
    for verb in (("repair",), ("repair", "--apply"), ("seal",), ("reindex",)):
        assert call(verb[0], root, *verb[1:], *more).fails(3, ".duramen: the sidecar is not a directory (move it away")
    assert (root / ".duramen").read_bytes() == b"mine"
    copied = call("copy", root, tmp_path / "copy", *more)
    assert copied.code == 0, copied.err


@pytest.mark.parametrize("name", ["keratin", "osiris", "durable-log"])
def test_the_sidecar_is_of_a_log_of_another_format(tmp_path: Path, call: Run, name: str) -> None:
    root, other = written(tmp_path / "log", name), written(tmp_path / "other", "rustlog")
    shutil.rmtree(root / ".duramen")
    shutil.copytree(other / ".duramen", root / ".duramen")
    before = contents(root)
    done = call("verify", root)
    assert done.code == 1
    assert done.text.count("damage   bad-sidecar") == 1
    assert "missing-segment" not in done.text
    assert f"the sidecar belongs to a rustlog log, and the files are {name}" in " ".join(done.text.split())
    for verb in ("cat", "info", "repair", "seal", "reindex"):
        failed = call(verb, root)
        assert failed.code == 1
        assert "the sidecar belongs to a rustlog log" in failed.err, verb
    assert call("repair", root, "--apply").fails(1, "move it away")
    assert call("copy", root, tmp_path / "copy").fails(1, "move it away")
    assert {path: data for path, data in contents(root).items() if path != ".duramen/lock"} == {
        path: data for path, data in before.items() if path != ".duramen/lock"
    }
    shutil.rmtree(root / ".duramen")
    assert call("verify", root).code == 0


@pytest.mark.parametrize("name", SEGMENTED)
@pytest.mark.parametrize("what", ["directory", "fifo", "link"])
@pytest.mark.parametrize("number", [0, 1])
def test_in_the_place_of_a_segment_lies_something_else(
    tmp_path: Path, call: Run, name: str, what: str, number: int
) -> None:
    root = written(tmp_path / "log", name)
    path = segments(root)[number]
    path.rename(tmp_path / "elsewhere")
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "not mounted")
    before = contents(root)
    done = call("verify", root)
    assert done.code == 1
    assert "not-a-file" in done.text
    assert "put the file itself in its place" in " ".join(done.text.split())
    planned = call("repair", root)
    assert planned.code == 1
    assert "put the file itself in its place" in " ".join(planned.text.split())
    assert call("repair", root, "--apply").code == 1
    changed = {key for key, data in contents(root).items() if before.get(key) != data}
    assert changed <= {".duramen/lock"}  # nothing is given up for what may be back in a moment
    assert call("copy", root, tmp_path / "copy").fails(1, "in the place of a segment")
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    (tmp_path / "elsewhere").rename(path)
    assert call("verify", root).code == 0


@pytest.mark.parametrize("name", FORMATS)
def test_the_newest_segment_is_missing(tmp_path: Path, call: Run, name: str) -> None:
    """Neither a copy nor a conversion takes that for a shorter log; a repair goes on behind what was promised."""
    root = written(tmp_path / "log", name)
    segments(root)[-1].unlink()
    to = "durable-log" if name != "durable-log" else "rustlog"
    assert call("verify", root).code == 1
    assert call("copy", root, tmp_path / "copy").fails(1, "the active segment is missing")
    loss = [word for field in ("timestamp", "offset", "tracking") for word in ("--allow-loss", field)]
    assert call("convert", root, tmp_path / "converted", "--to", to, *loss).fails(1, "the active segment is missing")
    assert not (tmp_path / "copy").exists()
    before = contents(root)
    assert call("repair", root, "--apply").code == 0
    assert call("verify", root).code == 0
    with duramen.open(root, "a") as log:
        assert log.append(b"and on".ljust(20, b".")) == 151
    assert call("repair", root, "--undo").fails(2, "changed since")
    assert call("repair", root, "--undo", "--force").code == 0
    after = contents(root)
    of_the_place = (".duramen/lock", ".duramen/closed.json")  # which say who was here last
    kept = {path: data for path, data in before.items() if not path.endswith(of_the_place)}
    assert {path: after.get(path) for path in kept} == kept


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_log_by_a_name_of_any_bytes(tmp_path: Path, call: Run, name: str, logs: Logs) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/lo\xffg\nname"))
    shutil.copytree(logs.copy(name), odd)
    flip(segments(odd)[0], 150)
    for verb in (("verify",), ("repair",), ("repair", "--apply"), ("repair", "--undo"), ("reindex",), ("info",)):
        done = call(verb[0], odd, *verb[1:])
        assert done.code in (0, 1)
        assert "\n".join(done.err.splitlines()).count("\n") == 0


def test_a_copy_made_while_it_was_written(tmp_path: Path, call: Run) -> None:
    """Without checksums, what lies behind the watermark counts for nothing, and verify says so before it is cut."""
    root, copied = tmp_path / "log", tmp_path / "copy"
    with duramen.open(root, "a", format="rustlog", durability="write") as log:
        log.append_batch([b"acknowledged"] * 10)
        shutil.copytree(root, copied)
        log.append_batch([b"behind"] * 5)
        shutil.copy(segments(root)[0], segments(copied)[0])  # by now it holds more than the watermark says
    done = call("verify", copied)
    assert done.code == 0
    assert "unacknowledged" in done.text
    assert "offsets 10 to 14" in done.text
    assert len(call("cat", copied).text.splitlines()) == 10
    assert call("verify", root).text.count("unacknowledged") == 0
    with duramen.open(copied, "a") as log:
        assert log.next_offset == 10
    assert list((copied / ".duramen/quarantine").iterdir())
