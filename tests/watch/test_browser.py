"""Records for people: pages, one with all its fields, searches that go on, places by time; everything bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from duramen.errors import DuramenError, OffsetError, UsageError
from duramen.watch import browser
from tests.watch.building import many_segments

FORMATS: dict[str, dict[str, int]] = {
    "durable-log": {}, "keratin": {}, "rustlog": {}, "osiris": {}, "fixed-slot": {"record_size": 24},
}  # fmt: skip
HOSTILE = b"<b>\x00\x1b[31m\xff\xe2\x80\xae</b>"


def value(number: int, format: str) -> bytes:
    text = b"needle %d" % number if number % 10 == 0 else b"hay %d" % number
    return text.ljust(24, b".") if format == "fixed-slot" else text


@pytest.fixture(params=FORMATS)
def log(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def]
    with duramen.open(tmp_path / "log", "a", format=request.param, **FORMATS[request.param]) as opened:
        opened.append_batch([value(number, request.param) for number in range(60)])
        if opened.codec.capabilities.segments:
            opened.seal()
        opened.append_batch([value(number, request.param) for number in range(60, 120)])
    with duramen.open(tmp_path / "log") as reader:
        yield reader


def test_a_page(log) -> None:  # type: ignore[no-untyped-def]
    page = browser.page(log, "55", 10)
    assert [record["offset"] for record in page["records"]] == list(range(55, 65))
    assert page["next"] == 65
    assert (page["first_offset"], page["next_offset"]) == (0, 120)
    assert browser.page(log, "115", 50)["next"] is None
    assert browser.page(log, "500", 50)["records"] == []
    assert [record["offset"] for record in browser.page(log, "-2", 50)["records"]] == [118, 119]
    assert browser.page(log, "beginning", 1)["records"][0]["offset"] == 0
    assert browser.page(log, "end", 1)["records"][0]["offset"] == 0
    assert len(browser.page(log, "0", 10**9)["records"]) == 120 <= browser.PAGE_RECORDS


@pytest.mark.parametrize("at", ["x", "1.5", "--1", "²", "1" * 30, "@", "@never", "@" + "9" * 30, "0x10"])
def test_places_that_are_none(log, at: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError):
        browser.page(log, at, 10)


def test_by_time(log) -> None:  # type: ignore[no-untyped-def]
    if log.codec.capabilities.timestamps is None:
        with pytest.raises(UsageError, match="no time"):
            browser.page(log, "@2024-01-31", 10)
        return
    assert browser.page(log, "@2001-01-31", 1)["records"][0]["offset"] == 0
    assert browser.page(log, "@0", 1)["records"][0]["offset"] == 0
    assert browser.page(log, "@2999-01-31T12:00:00", 1)["records"] == []


def test_a_search_goes_on_where_it_stopped(log) -> None:  # type: ignore[no-untyped-def]
    found: list[int] = []
    at: int | None = 5
    while at is not None:
        answer = browser.search(log, "needle", str(at), 3)
        found += [record["offset"] for record in answer["records"]]
        assert all("needle" in record["preview"] for record in answer["records"])
        at = answer["next"]
    assert found == list(range(10, 120, 10))
    assert browser.search(log, "0x6e6565646c65203330", "0", 5)["records"][0]["offset"] == 30
    for wrong in ("0x0", "0xzz"):
        with pytest.raises(UsageError):
            browser.search(log, wrong, "0", 5)


def test_one_record_with_every_byte_named(log) -> None:  # type: ignore[no-untyped-def]
    for offset in (0, 30, 60, 119):
        shown = browser.one(log, offset)
        assert shown["offset"] == offset
        assert bytes.fromhex(shown["value_hex"]) == log.read(offset).value
        raw = Path(shown["path"]).read_bytes()
        assert shown["fields"], offset
        for field in shown["fields"]:
            digits = bytes.fromhex(field["hex"])
            assert raw[field["position"] : field["position"] + len(digits)] == digits
            assert len(digits) == min(field["length"], browser.FIELD_BYTES)
    with pytest.raises(OffsetError):
        browser.one(log, 120)


def test_contents_become_text_that_does_nothing(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append(HOSTILE, key=HOSTILE, headers=[("<i>\x07", HOSTILE)])
        shown = browser.one(log, 0)
        texts = [shown["preview"], shown["key"], shown["value_text"], *shown["headers"][0]]
        for text in [*texts, *(field["value"] for field in shown["fields"])]:
            assert all(char.isprintable() or char in "\n\t" for char in text), text
        assert shown["preview"].startswith("<b>··[31m·")


def test_a_large_value_is_cut(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append_batch([b"x" * (3 << 20)] * 8)
        shown = browser.one(log, 0)
        assert shown["is_cut"]
        assert len(shown["value_hex"]) == 2 * browser.DETAIL_BYTES
        page = browser.page(log, "0", 50)
        assert 0 < len(page["records"]) < 8  # bounded in bytes
        assert page["next"] == len(page["records"])


def test_damage_is_told(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append_batch([b"one", b"two", b"three"])
    segment = next((tmp_path / "log").glob("*.log"))
    segment.write_bytes(segment.read_bytes().replace(b"two", b"twO"))
    with duramen.open(tmp_path / "log") as log, pytest.raises(DuramenError):
        browser.one(log, 1)


def test_cells_are_few_and_cover_everything(tmp_path: Path) -> None:
    with duramen.open(many_segments(tmp_path / "log", 250)) as log:
        times: dict[int, str | None] = {}
        cells = browser.segment_cells(log, 60, times)
        assert len(cells) == 50
        assert sum(cell["segments"] for cell in cells) == 250
        assert [cell["next_offset"] for cell in cells[:-1]] == [cell["first_offset"] for cell in cells[1:]]
        assert cells[-1]["next_offset"] == 250
        assert not cells[-1]["sealed"]
    with duramen.open(tmp_path / "timed", "a", format="keratin") as log:
        for _ in range(3):
            log.append(b"x")
            log.seal()
        cells = browser.segment_cells(log, 60, times)
        assert all(cell["first_time"].startswith("20") for cell in cells[:-1])
        assert cells[-1]["first_time"] is None
        assert set(times) == {0, 1, 2, 3}
