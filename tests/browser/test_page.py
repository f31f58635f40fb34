"""The page of `duramen serve` in a real browser."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from tests.watch.building import many_segments, many_topics

pytestmark = pytest.mark.xdist_group("browser")
Visit = Callable[..., Any]

HOSTILE = (
    b"<script>alert(1)</script>",
    b"<img src=x onerror=alert(2)>",
    b"<b>bold</b><a href='javascript:alert(3)'>click</a>",
    b"</td></table><iframe srcdoc='<script>parent.alert(4)</script>'>",
    b"\x00\x01\x07\x1b[31mred\x1b[0m\r\n\x7f",
    b"\xff\xfe\xc3\x28\xed\xa0\x80",
    "\u202egnp.exe\u2066 \ufeff \u200b".encode(),
    b"${alert(5)} {{7*7}} \\u003cscript\\u003e",
)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    with duramen.open(path, "a", format="keratin", segment_max_bytes=8000) as log:
        times = pa.array(
            [1_700_000_000_000_000 + number * 1_000_000 for number in range(300)], pa.timestamp("us", "UTC")
        )
        values = [b'{"order": %d}' % number for number in range(300)]
        keys = [b"customer-%d" % (number % 7) for number in range(300)]
        log.append_batch(pa.record_batch({"value": pa.array(values), "key": pa.array(keys), "timestamp": times}))
        log.cursor("report").store(120)
    return path


def offsets(page: Any) -> list[int]:
    cells = page.tab.locator("#records tbody tr td:first-child").all_inner_texts()
    return [int(cell.replace(",", "")) for cell in cells]


def show(page: Any, at: str, needle: str = "") -> list[int]:
    page.tab.fill("#at", at)
    page.tab.fill("#needle", needle)
    with page.tab.expect_response(re.compile("api/records")):
        page.tab.click("#browse button[type=submit]")
    page.wait("#records-state:has-text('record')")
    return offsets(page)


def test_a_log_at_a_glance(visit: Visit, orders: Path) -> None:
    page = visit(orders)
    page.wait("#records tbody tr")
    page.wait("#map button.active")
    assert page.text("#where") == str(orders)
    facts = page.text("#facts")
    assert "keratin" in facts
    assert "0 to 299" in facts
    assert "180" in page.text("#lags tbody tr:has-text('report')")
    with duramen.open(orders) as log:
        assert page.count("#map button") == len(log.segments)
    assert re.search(r"The oldest begins [\d,]+ days ago", page.text("#map-legend"))
    assert offsets(page) == list(range(250, 300))
    page.check()


def test_charts_draw_what_happens(visit: Visit, orders: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with duramen.open(orders, "a") as log:
            while not stop.wait(0.02):
                log.append(b"live", key=b"k", durability="write")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        page = visit(orders)
        page.wait("#chart-records .line", state="attached", timeout=30_000)
        page.wait("#facts div:has-text('at work')")
        box = page.tab.locator("#chart-records").bounding_box()
        view = page.tab.locator("#chart-records").get_attribute("viewBox").split()
        assert [round(box["width"]), round(box["height"])] == [int(view[2]), int(view[3])]  # letters keep their shape
        page.check()
    finally:
        stop.set()
        writer.join()


def test_browsing(visit: Visit, orders: Path) -> None:
    page = visit(orders)
    page.wait("#records tbody tr")
    assert show(page, "17") == list(range(17, 67))
    page.tab.click("#records-on")
    page.wait("#records tbody tr:first-child td:first-child:text-is('67')")
    moment = datetime.fromtimestamp(1_700_000_100, UTC).isoformat()
    assert show(page, f"@{moment}")[0] == 100
    assert show(page, "beginning", '"order": 29') == [29, *range(290, 300)]
    assert "300 looked at" in page.text("#records-state")
    page.tab.fill("#at", "never")
    page.tab.click("#browse button[type=submit]")
    page.wait("#records-state:has-text('not a position in a log')")
    page.tab.click("#map button:nth-child(2)")
    page.wait("#records tbody tr")
    assert page.errors == [page.errors[0]]  # the browser itself tells of the answer 400
    assert "400" in page.errors.pop()
    page.check()


def test_one_record(visit: Visit, orders: Path) -> None:
    page = visit(orders)
    page.wait("#records tbody tr")
    show(page, "42")
    page.tab.click("#records tbody tr:first-child")
    page.wait("#record:not([hidden])")
    assert page.text("#record-title").startswith("Offset 42: ")
    assert b'{"order": 42}'.hex(" ")[:47] in page.text("#value-hex")
    assert page.text("#value-text") == '{"order": 42}'
    names = page.tab.locator("#fields tbody td:nth-child(2)").all_inner_texts()
    assert {"magic", "offset", "payload", "crc32c"} <= set(names)
    assert "customer-0" in page.text("#fields")
    page.check()


def test_a_check_shows_damage(visit: Visit, orders: Path) -> None:
    segment = sorted((orders / "segments").glob("*.log"))[1]
    raw = bytearray(segment.read_bytes())
    raw[500] ^= 1
    segment.write_bytes(raw)
    page = visit(orders)
    page.wait("#map button.active")
    assert page.count("#map button.damaged") == 0
    page.tab.click("#check")
    page.wait("#check-state:has-text('damaged places')")
    assert page.count("#map button.damaged") == 1
    assert page.tab.locator("#map button").nth(1).get_attribute("class") == "damaged"
    assert str(segment) in page.text("#findings li.damage >> nth=0")
    page.check()


@pytest.mark.parametrize("format", ["keratin", "durable-log"])
def test_hostile_contents_do_nothing(visit: Visit, tmp_path: Path, format: str) -> None:
    path = tmp_path / "<img src=x onerror=alert(9)>"
    with duramen.open(path, "a", format=format) as log:
        for value in HOSTILE:
            if format == "keratin":
                log.append(value, key=value, headers=[("<script>alert(6)</script>", value)], durability="write")
            else:
                log.append(value, durability="write")
        log.cursor("<svg onload=alert(7)>").store(1)
    page = visit(path)
    page.wait("#records tbody tr")
    assert page.count("#records tbody tr") == len(HOSTILE)
    assert "<script>alert(1)</script>" in page.text("#records tbody")
    for number in range(len(HOSTILE)):
        with page.tab.expect_response(re.compile("api/record\\?")):
            page.tab.click(f"#records tbody tr:nth-child({number + 1})")
        page.wait(f"#record-title:has-text('Offset {number}:')")
        shown = page.text("#value-text") + page.text("#records tbody")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\u2066\u200b]", shown)
    page.wait("#lags tbody tr:has-text('svg')")
    show(page, "0", "<script>")
    assert page.count("#lags svg") == 0
    page.check()


def test_hostile_topics(visit: Visit, tmp_path: Path) -> None:
    """A store of another program: directories may have any name; those that are no topics are not shown."""
    store = many_topics(tmp_path / "store", 2)
    for name in ("<script>alert(1)", "..", "a b", "x\ny", '"><img src=x>'):
        if name != "..":
            (store / "topics" / name / "partitions" / "0").mkdir(parents=True)
    page = visit(store)
    page.wait("#records tbody tr")
    assert page.count("#logs li") >= 2
    page.check()


def test_ten_thousand_segments(visit: Visit, tmp_path: Path) -> None:
    page = visit(many_segments(tmp_path / "log", 10_000))
    page.wait("#map button.active")
    assert page.count("#map button") <= 600
    assert "10,000, 17 per cell" in page.text("#segments-count")
    page.tab.click("#map button:nth-child(100)")
    page.wait("#records tbody tr:first-child td:first-child:text-is('1,683')")
    page.check()


def test_a_thousand_topics(visit: Visit, tmp_path: Path) -> None:
    page = visit(many_topics(tmp_path / "store", 1000))
    page.wait("#logs li")
    assert page.count("#logs li") == 50
    assert page.text("#logs-shown") == "1–50 of 1,000"
    page.tab.click("#logs-on")
    page.wait("#logs-shown:has-text('51–100')")
    page.tab.fill("#log-query", "topic-0987")
    page.wait("#logs-shown:has-text('1–1 of 1')")
    page.tab.click("#logs li button")
    page.wait("#where:has-text('topic-0987')")
    page.wait("#records tbody tr:nth-child(3)")
    page.check()


def test_on_a_narrow_screen_nothing_sticks_out(visit: Visit, orders: Path) -> None:
    page = visit(orders)
    page.tab.set_viewport_size({"width": 390, "height": 844})
    page.wait("#records tbody tr")
    page.tab.click("#records tbody tr:first-child")
    page.wait("#record:not([hidden])")
    for selector in ("header", "main", "#log", "#charts", "#record"):
        box = page.tab.locator(selector).bounding_box()
        assert box["x"] + box["width"] <= 390, selector
    page.check()
