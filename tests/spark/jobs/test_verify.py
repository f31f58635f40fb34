"""Verify on Spark says what the in-process verify says, about every log there is, however it is cut."""

from __future__ import annotations

import importlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.disk import PosixDisk
from duramen.formats import make
from duramen.log.maintain.retention import Retention
from duramen.log.segments.listing import list_log
from duramen.log.verify import ranges
from duramen.log.verify.ranges import RangeVerifier
from duramen.spark import jobs
from tests.log.conftest import FORMATS, options, write  # noqa: F401
from tests.sampling import examples

DATA = Path(__file__).parents[2] / "data"
Write = Callable[..., Path]


def osiris_logs() -> list[Path]:
    return sorted(path for path in (DATA / "osiris").iterdir() if path.is_dir())


def golden_segments() -> list[Path]:
    found = []
    for path in sorted((DATA / "golden").rglob("*")):
        if path.is_file():
            try:
                duramen.verify(path)
            except duramen.DuramenError:
                continue
            found.append(path)
    return found


def cut_in_process(path: Path, piece_bytes: int, **opts: int) -> tuple[duramen.Report, int]:
    """What the job does, without Spark: the segments that can be put together from pieces, the others in one go."""
    disk = PosixDisk()
    fmt = make(duramen.detect(path).format, **opts) if "record_size" not in opts else make("fixed-slot", **opts)
    directory = list_log(disk, str(path), fmt)
    verifier = RangeVerifier(disk, str(path), fmt, lambda _: None, directory)
    checked, cuts = [], 0
    for number, files in enumerate(directory.segments):
        is_last = number == len(directory.segments) - 1
        found = ranges.cut_ranges(disk, directory, files, fmt, piece_bytes)
        answer = None
        if len(found) > 1:
            parts = [verifier.check_range(files, piece, is_last=is_last) for piece in found]
            answer = verifier.join(files, parts, is_last=is_last)
            cuts += answer is not None
        checked.append(answer or verifier.check(files, is_last=is_last))
    return verifier.conclude(checked), cuts


@pytest.mark.parametrize("log", osiris_logs(), ids=lambda path: path.name)
def test_every_log_of_a_real_broker(spark: SparkSession, log: Path) -> None:
    assert jobs.verify(spark, str(log), piece_bytes=20_000) == duramen.verify(log)


def test_golden_files(spark: SparkSession) -> None:
    found = golden_segments()
    assert len(found) >= 3
    for path in found[:8]:
        assert jobs.verify(spark, str(path)) == duramen.verify(path)


@pytest.mark.parametrize("name", FORMATS)
def test_pieces_of_a_sound_log_make_the_same_report(write: Write, name: str) -> None:  # noqa: F811
    root = write(name, 1500, 900)
    whole = duramen.verify(root, format=name, **options(name))
    for piece_bytes in (700, 5000, 20_000):
        report, cuts = cut_in_process(root, piece_bytes, **options(name))
        assert report == whole
        assert cuts >= 1, "nothing was cut"


@pytest.mark.parametrize("name", FORMATS)
def test_pieces_of_a_damaged_log_make_the_same_report(write: Write, name: str) -> None:  # noqa: F811
    """Bits flipped anywhere, in segments and indexes, and files cut: what pieces say is what the whole says."""
    root = write(name, 700, 300)
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    dice = random.Random(name)
    for _ in range(examples(60)):
        path = dice.choice(files)
        before = path.read_bytes()
        broken = bytearray(before)
        if dice.random() < 0.2:
            broken = broken[: dice.randrange(len(broken))]
        for _ in range(dice.choice((1, 1, 3))):
            if broken:
                broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
        path.write_bytes(broken)
        try:
            expected = duramen.verify(root, format=name, **options(name))
        except duramen.DuramenError:
            path.write_bytes(before)
            continue
        report, _ = cut_in_process(root, 3000, **options(name))
        assert report == expected
        path.write_bytes(before)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    root = tmp_path / "events"
    with duramen.open(root, "a", format="keratin", segment_max_bytes=60_000) as log:
        for start in range(0, 1000, 100):
            log.append_batch([b"value %d" % n * 20 for n in range(start, start + 100)])
    victim = sorted((root / "segments").glob("*.log"))[1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 4
    victim.write_bytes(data)
    return root


def test_damage_with_a_sidecar(spark: SparkSession, damaged: Path) -> None:
    expected = duramen.verify(damaged)
    assert {"damaged-records", "digest-mismatch"} <= {finding.code for finding in expected.findings}
    assert jobs.verify(spark, str(damaged)) == expected
    assert jobs.verify(spark, str(damaged), piece_bytes=5000) == expected


def test_a_relative_path_is_shown_as_given(spark: SparkSession, damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors run in another directory than whoever asks."""
    monkeypatch.chdir(damaged.parent)
    assert jobs.verify(spark, "events") == duramen.verify("events")


def test_rows(spark: SparkSession, damaged: Path) -> None:
    rows = jobs.verify_rows(spark, str(damaged)).collect()
    expected = duramen.verify(damaged)
    assert [row.path for row in rows if row.kind == "segment"] == [s.path for s in expected.segments]
    assert [row.code for row in rows if row.kind == "finding"] == [f.code for f in expected.findings]


def test_a_segment_that_vanishes_is_one_clear_error(
    spark: SparkSession, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("duramen.spark.jobs.verify")
    real = module._run

    def remove_then_run(*args: Any) -> Any:
        shutil.rmtree(damaged / "segments", ignore_errors=True)  # a second time, too
        return real(*args)

    monkeypatch.setattr(module, "_run", remove_then_run)
    with pytest.raises(duramen.StorageError, match="no such file") as caught:
        jobs.verify(spark, str(damaged))
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("piece_bytes", [None, 5000])
def test_segments_that_retention_removes_during_the_check(
    spark: SparkSession, tmp_path: Path, piece_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("duramen.spark.jobs.verify")
    real = module._run
    root = tmp_path / "events"
    with duramen.open(root, "a", format="keratin", segment_max_bytes=20_000) as log:
        for number in range(60):
            log.append_batch([b"%d" % number * 20] * 50)
        bases = [segment.base_offset for segment in log.segments]

        def retain_then_run(*args: Any) -> Any:
            log.retain(Retention(before_offset=bases[2]))
            return real(*args)

        monkeypatch.setattr(module, "_run", retain_then_run)
        report = jobs.verify(spark, str(root), piece_bytes=piece_bytes)
    assert [segment.base_offset for segment in report.segments] == bases[2:]
    assert "segments-removed" in [finding.code for finding in report.findings]
    assert report.ok


def test_wrong_paths_and_options(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(duramen.StorageError, match="no such file"):
        jobs.verify(spark, str(tmp_path / "nowhere"))
    with pytest.raises(duramen.UsageError, match="has no option"):
        jobs.verify(spark, str(DATA / "osiris" / "plain"), nonsense=1)


@pytest.mark.parametrize("counts", [(4000,), (500,) * 8, (40,) * 100])
def test_tasks_are_about_equally_large(
    write: Write,  # noqa: F811
    counts: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A piece that is a few bytes short must not draw the next one into its task: half of the cores would wait."""
    root = write("keratin", *counts)
    module = importlib.import_module("duramen.spark.jobs.verify")
    sizes: list[int] = []

    def in_process(_spark: None, work: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
        sizes.extend(task.size_bytes for task in tasks)
        return [work(task) for task in tasks]

    monkeypatch.setattr(module, "distribute", in_process)
    whole = duramen.verify(root)
    piece_bytes = whole.bytes // 4
    assert jobs.verify(None, str(root), piece_bytes=piece_bytes) == whole  # type: ignore[arg-type]
    assert len(sizes) in (4, 5)
    assert max(sizes) < piece_bytes * 3 // 2


def test_a_segment_without_a_header_yet(spark: SparkSession, tmp_path: Path) -> None:
    """A power loss in a roll, before recovery: a new Osiris segment begins with all cursors, and the first sector is
    missing. That is not damage, because the writer acknowledged nothing in it."""
    with duramen.open(tmp_path / "log", "a", format="osiris") as log:
        log.append_batch([b"one", b"two"])
        for number in range(40):
            log.cursor(f"a cursor with a long name {number}").store(1)
        watermark = (tmp_path / "log" / ".duramen" / "watermark").read_bytes()
        log.seal()
        left = shutil.copytree(tmp_path / "log", tmp_path / "left")
    (left / ".duramen" / "watermark").write_bytes(watermark)
    begun = Path(duramen.open(tmp_path / "log").segments[-1].path)
    torn = left / begun.relative_to(tmp_path / "log")
    torn.write_bytes(bytes(512) + torn.read_bytes()[512:])
    here, there = duramen.verify(left), jobs.verify(spark, str(left))
    assert [finding.code for finding in here.findings if finding.severity != "note"] == []
    assert there.as_dict() == here.as_dict()


def test_a_file_that_is_cut_while_a_task_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks run in this process: the moment between listing and reading is chosen."""
    root = tmp_path / "log"
    with duramen.open(root, "a", format="durable-log") as log:
        log.append_batch([b"a" * 500] * 3)
    path = Path(log.segments[-1].path)
    size_bytes = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"x" * (1 << 20))  # as a writer that died leaves it
    job = importlib.import_module("duramen.spark.jobs.verify")
    mapped_file = PosixDisk.map

    def cutting(disk: PosixDisk, name: str) -> Any:
        mapped = mapped_file(disk, name)
        if name == str(path):
            os.truncate(path, size_bytes)
        return mapped

    def run_here(_spark: Any, check: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(PosixDisk, "map", cutting)
            return [check(task) for task in tasks]

    monkeypatch.setattr(job, "distribute", run_here)
    report = job.verify(None, str(root), piece_bytes=1 << 30)
    assert report.records == 3
    assert not report.findings
