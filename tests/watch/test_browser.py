"""Records for people: pages, one with all its fields, searches that go on, places by time; everything bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.errors import DuramenError, LimitError, OffsetError, UsageError
from duramen.watch import browser, search
from tests.watch.building import many_segments

FORMATS: dict[str, dict[str, int]] = {
    "durable-log": {}, "keratin": {}, "rustlog": {}, "osiris": {}, "fixed-slot": {"record_size": 24},
}  # fmt: skip
HOSTILE = b"<b>\x00\x1b[31m\xff\xe2\x80\xae</b>"


def value(number: int, format: str) -> bytes:
    text = b"needle %d" % number if number % 10 == 0 else b"hay %d" % number
    return text.ljust(24, b".") if format == "fixed-slot" else text


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine ends no search."""
    monkeypatch.setattr(search, "SEARCH_S", 600.0)


@pytest.fixture(params=FORMATS)
def log(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def]
    with duramen.open(tmp_path / "log", "a", format=request.param, **FORMATS[request.param]) as opened:
        opened.append_batch([value(number, request.param) for number in range(60)])
        if opened.codec.capabilities.segments:
            opened.seal()
        opened.append_batch([value(number, request.param) for number in range(60, 120)])
    with duramen.open(tmp_path / "log") as reader:
        yield reader


def offsets(found: dict[str, Any]) -> list[int]:
    return [record["offset"] for record in found["records"]]


def test_a_page(log) -> None:  # type: ignore[no-untyped-def]
    page = browser.records(log, {"at": "55"}, 10)
    assert offsets(page) == list(range(55, 65))
    assert (page["next"], page["is_finished"], page["problem"]) == (65, True, None)
    assert browser.records(log, {"at": "115"}, 50)["next"] is None
    assert browser.records(log, {"at": "500"}, 50)["records"] == []
    assert offsets(browser.records(log, {"at": "-2"}, 50)) == [118, 119]
    assert offsets(browser.records(log, {"at": "beginning"}, 1)) == [0]
    assert offsets(browser.records(log, {"at": "end"}, 1)) == [0]
    assert len(browser.records(log, {}, 10**9)["records"]) == 120 <= browser.PAGE_RECORDS


def test_newest_first(log) -> None:  # type: ignore[no-untyped-def]
    page = browser.records(log, {"order": "newest"}, 50)
    assert offsets(page) == list(range(119, 69, -1))
    assert page["next"] == 69
    page = browser.records(log, {"order": "newest", "at": "69"}, 200)
    assert offsets(page) == list(range(69, -1, -1))
    assert page["next"] is None
    assert browser.records(log, {"order": "newest", "at": "0"}, 5)["next"] is None
    assert offsets(browser.records(log, {"order": "newest", "at": "end"}, 2)) == [119, 118]


@pytest.mark.parametrize("at", ["x", "1.5", "--1", "²", "1" * 30, "@", "@never", "@" + "9" * 30, "0x10"])
def test_places_that_are_none(log, at: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError):
        browser.records(log, {"at": at}, 10)


def test_by_time(log) -> None:  # type: ignore[no-untyped-def]
    if log.codec.capabilities.timestamps is None:
        for query in ({"at": "@2024-01-31"}, {"since": "2024-01-31"}):
            with pytest.raises(UsageError, match="no time"):
                browser.records(log, query, 10)
        return
    assert offsets(browser.records(log, {"at": "@2001-01-31"}, 1)) == [0]
    assert offsets(browser.records(log, {"at": "@0"}, 1)) == [0]
    assert browser.records(log, {"at": "@2999-01-31T12:00:00"}, 1)["records"] == []
    assert browser.records(log, {"until": "2001-01-31"}, 1)["records"] == []
    assert browser.records(log, {"since": "2999-01-31"}, 1)["records"] == []
    assert offsets(browser.records(log, {"since": "2001-01-31", "until": "2999-01-31", "order": "newest"}, 1)) == [119]
    with pytest.raises(UsageError, match="not a time"):
        browser.records(log, {"since": "never"}, 1)


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_a_search_goes_on_where_it_stopped(log, order: str, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """With a budget of one block of some records, a search stops many times before its end, and says so."""
    monkeypatch.setattr(search, "SEARCH_BYTES", 1)
    found: list[int] = []
    query = {"q": "needle", "order": order}
    unfinished = 0
    while True:
        step = browser.records(log, query, 3)
        found += offsets(step)
        assert all("needle" in record["preview"] for record in step["records"])
        assert step["looked"] <= 12
        unfinished += not step["is_finished"]
        if step["next"] is None:
            break
        query["at"] = str(step["next"])
    assert sorted(found, reverse=order == "newest") == found
    assert sorted(found) == list(range(0, 120, 10))
    assert unfinished > 10
    assert offsets(browser.records(log, {"q": "0x6e6565646c65203330"}, 5)) == []
    monkeypatch.setattr(search, "SEARCH_BYTES", 1 << 20)
    assert offsets(browser.records(log, {"q": "0x6e6565646c65203330"}, 5)) == [30]
    for wrong in ("0x0", "0xzz"):
        with pytest.raises(UsageError):
            browser.records(log, {"q": wrong}, 5)


def test_filters(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        for number in range(30):
            headers = [("source", b"web" if number % 2 else b"app"), ("n", b"%d" % number)] if number % 3 else None
            log.append(b"v%d" % number, key=b"k%d" % (number % 5) if number % 4 else None, headers=headers)

        def found(**query: str) -> list[int]:
            return offsets(browser.records(log, query, 100))

        assert found(key="k3") == [3, 13, 18, 23]
        assert found(key="0x6b33") == [3, 13, 18, 23]
        assert found(header="source=web") == [n for n in range(30) if n % 3 and n % 2]
        assert found(header="web") == found(header="source=web")
        assert found(header="sour") == [n for n in range(30) if n % 3]
        assert found(header="sour=web") == []
        assert found(header="n=2", q="v2", key="k") == [2, 22, 23, 25, 26, 29]
        assert found(header="nothing") == []


def test_the_tail(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch([b"%d" % number for number in range(100)])
        first = browser.tail(log, {}, 0, 50)
        assert (offsets(first), first["next"]) == (list(range(99, 49, -1)), 100)
        assert browser.tail(log, {}, 100, 50)["records"] == []
        log.append_batch([b"%d" % number for number in range(100, 300)])
        fast = browser.tail(log, {}, 100, 50)
        assert (offsets(fast)[-1], fast["next"], fast["skipped"]) == (250, 300, 150)
        assert offsets(browser.tail(log, {"q": "25"}, 100, 50)) == [*range(259, 249, -1), 225, 125]


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
        assert shown["preview"] == "0x" + HOSTILE.hex()
        assert shown["value_text"].startswith("<b>··[31m·")


def test_a_large_value_is_cut(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append_batch([b"x" * (3 << 20)] * 8)
        shown = browser.one(log, 0)
        assert shown["is_cut"]
        assert len(shown["value_hex"]) == 2 * browser.DETAIL_BYTES
        assert browser.value_of(log, 3) == b"x" * (3 << 20)
        page = browser.records(log, {}, 50)
        assert offsets(page) == offsets(browser.records(log, {"order": "newest"}, 50))[::-1] == list(range(8))


def test_a_value_that_is_too_large_to_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "DOWNLOAD_BYTES", 100)
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append(b"x" * 101)
        with pytest.raises(LimitError, match=r"101 bytes.*cat"):
            browser.value_of(log, 0)


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_a_search_ends_at_damage(tmp_path: Path, order: str) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        for number in range(3):
            log.append_batch([b"%d" % (number * 10 + each) for each in range(10)])
            log.seal()
    segment = sorted((tmp_path / "log").glob("*.log"))[1]
    raw = bytearray(segment.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 30] = b"\xff" * 30
    segment.write_bytes(raw)
    with duramen.open(tmp_path / "log") as log:
        found = browser.records(log, {"order": order}, 50)
        assert str(segment) in found["problem"]
        shown = offsets(found)
        assert shown[:10] == (list(range(10)) if order == "oldest" else list(range(29, 19, -1)))
        assert len(shown) < 20
        assert found["next"] is None


def test_damage_is_reported(tmp_path: Path) -> None:
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
