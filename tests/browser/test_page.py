"""The page of `duramen serve` in a real browser."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.watch import search
from tests.browser.visiting import Page, serving
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
    b'{"<img src=x onerror=alert(8)>": ["</pre><script>alert(9)</script>", {}, [], 1e400, "\\u0000"]}',
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine ends no search."""
    monkeypatch.setattr(search, "SEARCH_S", 600.0)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    with duramen.open(path, "a", format="keratin", segment_max_bytes=8000) as log:
        times = pa.array(
            [1_700_000_000_000_000 + number * 1_000_000 for number in range(300)], pa.timestamp("us", "UTC")
        )
        values = [b'{"order": %d, "total": 10.50, "id": 12345678901234567890}' % number for number in range(300)]
        keys = [b"customer-%d" % (number % 7) for number in range(300)]
        log.append_batch(pa.record_batch({"value": pa.array(values), "key": pa.array(keys), "timestamp": times}))
        log.cursor("report").store(120)
    return path


@pytest.fixture(scope="module")
def pages(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page for what needs no log of its own."""
    path = tmp_path_factory.mktemp("empty") / "log"
    duramen.open(path, "a", format="keratin").close()
    with serving([str(path)]) as server:
        page = Page(browser, server.url, {}, None)
        yield page
        page.close()


@pytest.fixture
def damaged(orders: Path) -> Path:
    segment = sorted((orders / "segments").glob("*.log"))[1]
    raw = bytearray(segment.read_bytes())
    raw[500] ^= 1
    segment.write_bytes(raw)
    return orders


def offsets(page: Any) -> list[int]:
    cells = page.tab.locator("#records tbody td:first-child a").all_inner_texts()
    return [int(cell.replace(",", "")) for cell in cells]


def show(page: Any, **fields: str) -> list[int]:
    """Fill in the form, and wait for the records."""
    for name in ("at", "q", "key", "header", "since", "until"):
        page.tab.fill(f"#{name}", fields.get(name, ""))
    page.tab.eval_on_selector("#order", "(each, order) => { each.value = order }", fields.get("order", "oldest"))
    with page.tab.expect_response(re.compile("api/records")):
        page.tab.click("#browse button[type=submit]")
    page.wait("#records-state:text-matches('record')")
    return offsets(page)


def row(page: Any, name: object) -> str:
    return f"#logs tbody tr:has(a:text-is('{name}'))"


def test_the_overview_and_one_missing_path(visit: Visit, orders: Path, tmp_path: Path) -> None:
    with duramen.Store(str(tmp_path / "shop")) as store:
        store.create("clicks", partitions=3, format="keratin")
    page = visit(orders, tmp_path / "shop", tmp_path / "missing")
    page.wait(f"{row(page, orders)} .badge.good")
    text = page.text(row(page, orders))
    assert all(part in text for part in ("keratin", "300", "180", "never"))
    assert "3 partitions" in page.text(row(page, f"{tmp_path}/shop#clicks"))
    page.wait(f"{row(page, tmp_path / 'missing')} .badge.unreadable")
    assert "no such file" in page.text(row(page, tmp_path / "missing"))
    page.wait("#trouble:has-text('1 log with problems')")
    page.check()


def test_with_a_token(visit: Visit, orders: Path) -> None:
    """The link with the token opens the page once; its scripts and requests carry the cookie."""
    page = visit(orders, token="s3cret")
    page.wait(f"{row(page, orders)} .badge.good")
    page.check()


def test_an_empty_server_and_an_empty_log(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "shop" / "topics").mkdir(parents=True)
    duramen.open(tmp_path / "log", "a", format="keratin").close()
    page = visit(tmp_path / "log")
    page.tab.fill("#log-query", "nothing")
    page.wait("#nothing:has-text('No log has “nothing” in its name')")
    page.tab.fill("#log-query", "")
    page.tab.click(f"{row(page, tmp_path / 'log')} a")
    page.wait("#records-state:text-is('No records')")
    page.wait("#facts:has-text('none')")
    page.check()


def test_a_check_shows_damage_on_both_pages(visit: Visit, damaged: Path) -> None:
    page = visit(damaged)
    page.wait(f"{row(page, damaged)} .badge.good")
    page.tab.click(f"{row(page, damaged)} button")
    page.wait(f"{row(page, damaged)} .badge.damaged")
    page.wait(f"{row(page, damaged)} .verified:has-text('ago')")
    assert "the last check found" in page.text(row(page, damaged))
    page.go(log=damaged, tab="segments")
    page.wait("#check-state:has-text('damaged places')")
    page.wait("#map button.damaged")
    assert page.tab.locator("#map button").nth(1).get_attribute("class") == "damaged"
    assert str(damaged / "segments") in page.text("#findings li.damage >> nth=0")
    page.wait("#health .badge.damaged")
    page.tab.click("#check")
    page.wait("#check-state:has-text('damaged places')")
    page.check()


def test_back_forward_and_links(visit: Visit, orders: Path, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "other", "a", format="durable-log") as log:
        log.append_batch([b"one", b"two"])
    page = visit(orders, tmp_path / "other")
    page.tab.click(f"{row(page, orders)} a")
    page.wait("#records tbody tr:nth-child(50)")
    assert offsets(page) == list(range(299, 249, -1))
    assert show(page, q='"order": 29', order="oldest") == [29, *range(290, 300)]
    page.tab.click("#records tbody tr:first-child a")
    page.wait("#record-title:text-is('Offset 29')")
    page.tab.click("#tabs a:has-text('Segments')")
    page.wait("#map button.active")
    link = page.tab.url
    page.tab.go_back()
    page.wait("#record-title:text-is('Offset 29')")
    page.wait("#records tbody tr:nth-child(11)")
    assert page.tab.input_value("#q") == '"order": 29'
    page.tab.go_back()
    page.wait("#record", state="hidden")
    page.tab.go_back()
    page.wait("#records tbody tr:nth-child(50)")
    assert page.tab.input_value("#q") == ""
    page.tab.go_back()
    page.wait(row(page, tmp_path / "other"))
    page.tab.go_forward()
    page.wait("#records tbody tr:nth-child(50)")
    page.tab.goto(link)
    page.wait("#map button.active")
    page.go(log=orders, order="oldest", at=17, key="customer-3", offset=17)
    page.wait("#record-title:text-is('Offset 17')")
    page.wait("#records tbody tr.chosen")
    assert offsets(page)[:2] == [17, 24]
    assert page.tab.title() == f"{orders.parent.name}/orders · Duramen"
    page.check()


def test_no_numbers_of_the_log_before(visit: Visit, orders: Path, tmp_path: Path) -> None:
    """While another log loads, the page says so."""
    with duramen.open(tmp_path / "other", "a", format="durable-log") as log:
        log.append_batch([b"one", b"two"])
    page = visit(orders, tmp_path / "other", at={"log": orders})
    page.wait("#facts:has-text('keratin')")
    page.wait("#records tbody tr")
    held: list[Any] = []
    waits = True
    slow = re.compile(r"api/(log|records)\?.*other")
    page.tab.route(slow, lambda route: held.append(route) if waits else route.continue_())
    page.tab.evaluate("log => { location.hash = '#' + new URLSearchParams({log}) }", str(tmp_path / "other"))
    page.wait("#where:has-text('other')")
    page.wait("#records-state:has-text('Loading')")
    assert "keratin" not in page.text("#facts")
    assert page.tab.get_attribute("#facts", "aria-busy") == "true"
    assert page.count("#records tbody tr") == 0
    waits = False
    for route in held:
        route.continue_()
    page.wait("#facts:has-text('durable-log')")
    page.wait("#records tbody tr:nth-child(2)")
    page.check()


def test_charts_and_live_records(visit: Visit, orders: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with duramen.open(orders, "a") as log:
            while not stop.wait(0.02):
                log.append(b"live", key=b"k", durability="write")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        page = visit(orders, at={"log": orders, "order": "live"})
        page.wait("#records tbody tr td.value:has-text('live')")
        first = offsets(page)[0]
        page.tab.wait_for_function(
            "first => Number(document.querySelector('#records tbody a').textContent.replace(',', '')) > first",
            arg=first,
        )
        shown = offsets(page)
        assert shown == sorted(shown, reverse=True)
        page.wait("#records-state:has-text('Live')")
        page.tab.click("#records-state button")
        page.wait("#records-state:has-text('Paused')")
        page.wait("#facts div:has-text('at work')")
        page.tab.click("#tabs a:has-text('Rates')")
        page.wait("#chart-records .line", state="attached", timeout=30_000)
        page.tab.wait_for_function(  # letters keep their shape
            "() => { const chart = document.getElementById('chart-records'), box = chart.viewBox.baseVal; "
            "return box.width === chart.clientWidth && box.height === chart.clientHeight }"
        )
        assert re.match(r"Records per second: \d+ now", page.tab.get_attribute("#chart-records", "aria-label"))
        page.check()
    finally:
        stop.set()
        writer.join()


def test_a_live_view_survives_an_error(visit: Visit, orders: Path) -> None:
    page = visit(orders)
    page.tab.route(re.compile("api/tail"), lambda route: route.fulfill(status=409, json={"error": "gone"}), times=1)
    page.go(log=orders, order="live")
    page.wait("#records-state:has-text('gone')")
    page.wait("#records-state:has-text('Live')")
    assert offsets(page)[0] == 299
    page.check(refused=409)


def test_browsing(visit: Visit, orders: Path) -> None:
    page = visit(orders, at={"log": orders})
    page.wait("#records tbody tr")
    assert show(page, at="17") == list(range(17, 67))
    page.tab.click("#records-on")
    page.wait("#records tbody tr:nth-child(100)")
    assert offsets(page) == list(range(17, 117))
    moment = datetime.fromtimestamp(1_700_000_100, UTC).isoformat()
    assert show(page, at=f"@{moment}")[0] == 100
    assert show(page, since="2023-11-14T22:15:00", until="2023-11-14T22:15:05", order="newest") == [
        104,
        103,
        102,
        101,
        100,
    ]
    assert show(page, q='"order": 29') == [29, *range(290, 300)]
    assert "11 records among 300, that is all" in page.text("#records-state")
    page.tab.fill("#at", "never")
    page.tab.click("#browse button[type=submit]")
    page.wait("#records-state:has-text('not a position in a log')")
    page.tab.click("#clear")
    page.wait("#records tbody tr:nth-child(50)")
    page.tab.click("#tabs a:has-text('Segments')")
    page.tab.click("#map button:nth-child(2)")
    page.wait("#records tbody tr")
    page.check(refused=400)


def test_a_search_that_is_not_finished_goes_on(visit: Visit, orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SEARCH_BYTES", 1)
    page = visit(orders, at={"log": orders, "q": '"order": 7,'})
    page.wait("#records-state:has-text('No records among 50; not finished')")
    page.tab.click("#records-on:text-is('Not finished: go on')")
    page.wait("#records-state:has-text('No records among 100; not finished')")
    monkeypatch.setattr(search, "SEARCH_BYTES", 1 << 20)
    page.tab.click("#records-on")
    page.wait("#records-state:has-text('1 record among 300, that is all')")
    assert offsets(page) == [7]
    page.check()


def test_one_record(visit: Visit, orders: Path) -> None:
    with duramen.open(orders, "a") as log:
        log.append(bytes(range(64)), key=b"\x00\x01", headers=[("trace", b"abc"), ("raw", b"\xff")])
    page = visit(orders, at={"log": orders, "offset": 42}, permissions=["clipboard-read", "clipboard-write"])
    page.wait("#value .name")
    assert page.text("#value") == '{\n  "order": 42,\n  "total": 10.50,\n  "id": 12345678901234567890\n}'
    page.tab.click("#copy")
    page.wait("#copy-state:has-text('copied')")
    assert page.tab.evaluate("navigator.clipboard.readText()") == page.text("#value")
    with page.tab.expect_download() as download:
        page.tab.click("#download")
    assert download.value.suggested_filename == "offset-42.bin"
    assert Path(download.value.path()).read_bytes().startswith(b'{"order": 42, "total": 10.50')
    page.tab.click("#forms button:has-text('Hex')")
    assert b'{"order": 42'.hex(" ")[:35] in page.text("#value")
    page.tab.click("#forms button:has-text('JSON')")
    page.tab.click("#record summary")
    names = page.tab.locator("#fields tbody td:nth-child(2)").all_inner_texts()
    assert {"magic", "offset", "payload", "crc32c"} <= set(names)
    page.tab.click("#record-newer")
    page.wait("#value:has-text('\"order\": 43')")
    page.go(log=orders, offset=300)
    page.wait("#value.hex:has-text('00 01 02 03')")
    assert "0x0001" in page.text("#record-facts")
    assert page.text("#record-headers tbody").split() == ["trace", "abc", "raw", "0xff"]
    assert page.tab.is_disabled("#forms button:has-text('JSON')")
    page.tab.click("#record-newer")
    page.wait("#record-problem:has-text('301')")
    page.check(refused=409)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"a:b{": "x,\\"]", "e": [], "o": {}}', ["{", '  "a:b{": "x,\\"]",', '  "e": [],', '  "o": {}', "}"]),
        ("[1.10, -1e400,12345678901234567890]", ["[", "  1.10,", "  -1e400,", "  12345678901234567890", "]"]),
        ('[{"a": [true]}]', ["[", "  {", '    "a": [', "      true", "    ]", "  }", "]"]),
        ("{'a': 1}", None),
        ("17", None),
        ("[" * 100_000, None),
        ("[" + "1," * 50_000 + "1]", None),
    ],
    ids=["strings", "numbers", "nested", "no JSON", "a number", "deep", "long"],
)  # fmt: skip
def test_json_keeps_what_was_written(pages: Any, text: str, lines: list[str] | None) -> None:
    script = "async text => { const nodes = (await import('/record.js')).pretty(text); "
    script += "return nodes && nodes.map((each) => each.textContent ?? each).join('') }"
    shown = pages.tab.evaluate(script, text)
    assert shown == (None if lines is None else "\n".join(lines))


def test_consumers_and_their_history(visit: Visit, tmp_path: Path) -> None:
    with duramen.Store(str(tmp_path / "shop")) as store:
        store.create("clicks", partitions=2, format="keratin")
        for number in range(20):
            store.topic("clicks").append(b"x", key=b"%d" % number)
    for number in range(2):
        with duramen.open(tmp_path / "shop" / "topics" / "clicks" / "partitions" / str(number), "a") as log:
            log.group("billing", consumer=f"worker-{number}").fetch(2)
    page = visit(
        tmp_path / "shop", at={"log": f"{tmp_path}/shop#clicks/0", "tab": "consumers"}, state=str(tmp_path / "s")
    )
    page.wait("#consumers article")
    facts = page.text("#consumers dl")
    assert "Lag\n20" in facts
    assert "In flight\n4" in facts
    assert "Members\nworker-0 (2), worker-1 (2)" in facts
    assert page.count("#consumers tbody tr") == 2
    page.tab.click(".range button:has-text('1 day') >> visible=true")
    page.wait("#consumers svg text:has-text('collecting')")
    page.tab.click("#consumers tbody tr:nth-child(2) a")
    page.wait("#where:has-text('clicks/1')")
    page.tab.select_option("#partition", label="0")
    page.wait("#where:has-text('clicks/0')")
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
    page.wait("#logs .badge.good")
    page.tab.click("#logs a")
    page.wait("#records tbody tr")
    assert page.count("#records tbody tr") == len(HOSTILE)
    assert "<script>alert(1)</script>" in page.text("#records tbody")
    page.go(log=path, offset=0, order="oldest")
    for number in range(len(HOSTILE)):
        page.wait(f"#record[aria-labelledby]:not([aria-busy]) #record-title:text-is('Offset {number}')")
        shown = page.text("#record") + page.text("#records tbody")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\u2066\u200b]", shown)
        if number + 1 < len(HOSTILE):
            page.tab.click("#record-newer")
    show(page, q="<script>")
    page.tab.click("#tabs a:has-text('Consumers')")
    page.wait("#consumers h3:has-text('svg')")
    assert page.count("#consumers h3 svg") == 0
    page.check()


def test_hostile_topics(visit: Visit, tmp_path: Path) -> None:
    """A store of another program: directories may have any name; those that are no topics are not shown."""
    store = many_topics(tmp_path / "store", 2)
    for name in ("<script>alert(1)", "a b", "x\ny", '"><img src=x>'):
        (store / "topics" / name / "partitions" / "0").mkdir(parents=True)
    page = visit(store, at={"log": "<img src=x>#\"'/x", "tab": "<script>", "offset": "x", "order": "y"})
    page.wait("#state:has-text('no such log')")
    page.go()
    page.wait("#logs .badge.good")
    assert page.count("#logs tbody tr") >= 2
    page.check(refused=400)


def test_thousands_of_segments(visit: Visit, tmp_path: Path) -> None:
    page = visit(many_segments(tmp_path / "log", 2000), at={"log": tmp_path / "log", "tab": "segments"})
    page.wait("#map button.active")
    assert page.count("#map button") == 500
    assert "2,000 segments, 4 per cell" in page.text("#segments-count")
    page.tab.click("#map button:nth-child(100)")
    page.wait("#records tbody tr:first-child a:text-is('396')")
    page.check()


def test_hundreds_of_topics(visit: Visit, tmp_path: Path) -> None:
    page = visit(many_topics(tmp_path / "store", 200))
    page.wait("#logs tbody tr")
    assert page.count("#logs tbody tr") == 50
    assert page.text("#logs-shown") == "1–50 of 200"
    page.tab.click("#logs-on")
    page.wait("#logs-shown:has-text('51–100')")
    page.tab.go_back()
    page.wait("#logs-shown:has-text('1–50')")
    page.tab.fill("#log-query", "topic-0187")
    page.wait("#logs tbody tr:nth-child(2)", state="detached")
    page.tab.click("#logs a")
    page.wait("#where:has-text('topic-0187')")
    page.wait("#records tbody tr:nth-child(3)")
    page.check()


def test_with_the_keyboard_alone(visit: Visit, orders: Path) -> None:
    page = visit(orders)
    page.wait("#logs .badge.good")
    keys = page.tab.keyboard
    keys.press("/")
    keys.type("orders")
    focused = "document.activeElement.textContent"
    for _ in range(5):
        keys.press("Tab")
        if page.tab.evaluate(focused) == str(orders):
            break
    keys.press("Enter")
    page.wait("#records tbody tr")
    assert page.tab.evaluate("document.activeElement.id") == "where"
    page.tab.focus("#records tbody a")
    keys.press("Enter")
    page.wait("#value .name")
    page.tab.wait_for_function("document.activeElement.id === 'record-title'")
    keys.press("Escape")
    page.wait("#record", state="hidden")
    assert page.tab.evaluate(focused) == "299"
    page.tab.focus("#tabs a:has-text('Segments')")
    keys.press("Enter")
    page.wait("#map button.active")
    page.tab.focus("#map button")
    keys.press("ArrowRight")
    assert page.tab.evaluate("document.activeElement.title").startswith("segment 1:")
    keys.press("Enter")
    page.wait("#records tbody tr")
    page.check()


def test_on_a_narrow_screen_nothing_sticks_out(visit: Visit, orders: Path) -> None:
    page = visit(orders)
    page.tab.set_viewport_size({"width": 390, "height": 844})
    page.wait("#logs .badge.good")
    wide = "document.documentElement.scrollWidth"
    assert page.tab.evaluate(wide) <= 390
    for tab in ("records", "consumers", "rates", "segments"):
        page.go(log=orders, tab=tab, offset=42 if tab == "records" else "")
        page.wait({"records": "#value .name", "segments": "#map button"}.get(tab, f"#{tab}-view"))
        assert page.tab.evaluate(wide) <= 390, tab
    page.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(visit: Visit, axe: str, damaged: Path, tmp_path: Path, scheme: str) -> None:
    """axe-core finds no violation in any view."""
    page = visit(damaged, tmp_path / "missing", color_scheme=scheme)
    page.wait(".badge.unreadable")
    page.wait(".badge.good")
    views = {
        "#logs .badge.unreadable": {},
        "#value .name": {"log": damaged, "offset": 299},
        "#consumers article": {"log": damaged, "tab": "consumers"},
        "#chart-lag .axis": {"log": damaged, "tab": "rates"},
        "#findings li": {"log": damaged, "tab": "segments"},
    }
    for ready, place in views.items():
        page.go(**place)
        if ready == "#findings li":
            page.tab.click("#check")
        page.wait(ready, state="attached")
        page.wait("[aria-busy=true]", state="detached")  # what loads is dimmed
        page.tab.evaluate(axe)
        found = page.tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
        wrong = [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found["violations"]]
        assert wrong == [], place
    page.check()
