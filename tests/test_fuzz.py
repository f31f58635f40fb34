"""A slice of the fuzzing without a fuzzer: every target on all its seeds and on fixed mutations of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from duramen.formats.osiris.chunk import Chunk, Compression, SubBatch, deflate, encode_chunk
from duramen.formats.osiris.osiris import LOG_HEADER
from fuzz import __main__ as runner
from fuzz.memory import BOUND_BYTES, bounded
from fuzz.mutations import mutations
from fuzz.targets import TARGETS, Target

MUTATIONS = 150

# Inputs that once broke a promise, by the target that they broke it in.
CRASHED = {
    "rustlog: zeros behind a torn first record are no record": ("rustlog-segment", "00000102" + "00" * 29),
    "keratin: the blocks of a torn SSNAP file lie within it": ("keratin-snap", "53534e4150" + "00" * 24),
}


def run(target: Target, data: bytes) -> None:
    try:
        target(data)
    except BaseException as error:
        error.add_note(f"the input, {len(data)} bytes: {data[:1000].hex()}")
        raise


@pytest.mark.parametrize("name", TARGETS)
def test_target(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    assert len(seeds) > 2
    for data in seeds:
        run(target, data)
    with bounded():
        for data in mutations(seeds, MUTATIONS, name):
            run(target, data)


@pytest.mark.parametrize(("name", "data"), CRASHED.values(), ids=CRASHED.keys())
def test_what_crashed_once(name: str, data: str) -> None:
    run(TARGETS[name], bytes.fromhex(data))


def test_records_that_inflate_from_nothing_stay_within_the_bound() -> None:
    """18 KiB that claim 32 million empty records: each is four bytes of a sub-batch, and many more in a column."""
    body = deflate(bytes(4 * 65_535), Compression.ZSTD)
    batch = SubBatch(Compression.ZSTD, 65_535, 4 * 65_535, body)
    data = LOG_HEADER + encode_chunk(Chunk(0, 0, 1, entries=(batch,) * 500))
    with bounded():
        run(TARGETS["osiris-segment"], data)


def test_there_is_a_target_for_every_decoder() -> None:
    segments = {name.removesuffix("-segment") for name in TARGETS if name.endswith("-segment")}
    assert segments == {"durable-log", "keratin", "rustlog", "osiris", "fixed-slot", "kafka"}


def test_the_bound_bites() -> None:
    with bounded(), pytest.raises(MemoryError):
        bytearray(2 * BOUND_BYTES)
    bytearray(1 << 20)


def test_mutations_are_the_same_every_time() -> None:
    seeds = [b"first", b"second"]
    assert list(mutations(seeds, 50, "x")) == list(mutations(seeds, 50, "x"))
    assert list(mutations(seeds, 50, "x")) != list(mutations(seeds, 50, "y"))


# --- the runner


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    arguments = ["fuzz"]
    monkeypatch.setattr(sys, "argv", arguments)
    return arguments


def test_replay_of_an_input(replay: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"{}")
    replay += ["--target", "rustlog-checkpoint", str(path)]
    assert runner.main() == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_replay_shows_what_is_broken(replay: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(TARGETS, "detect", TARGETS["detect"]._replace(run=broken))
    path = tmp_path / "input"
    path.write_bytes(b"")
    replay += ["--target", "detect", str(path)]
    with pytest.raises(ZeroDivisionError):
        runner.main()


@pytest.mark.parametrize("arguments", [["--target", "nothing"], ["file"]])
def test_wrong_usage(replay: list[str], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    replay += arguments
    with pytest.raises(SystemExit) as caught:
        runner.main()
    assert caught.value.code == 2
    assert "target" in capsys.readouterr().err
