"""A real browser without a screen. Tests are skipped, with the reason, where there is none."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from duramen.watch.server import Server

AXE = "4.14.0"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: `make browser` installs it")
    with api.sync_playwright() as playwright:
        known = (*map(shutil.which, NAMES), playwright.chromium.executable_path)
        executable = next((path for path in known if path is not None and Path(path).exists()), None)
        if executable is None:
            pytest.skip("no Chromium was found: `make browser` installs one where it may")
        started = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which npm fetches once into build/."""
    source = Path(__file__).parents[2] / "build" / f"axe-core-{AXE}.js"
    if not source.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed: it fetches axe-core")
        with tempfile.TemporaryDirectory() as folder:
            command = [npm, "pack", "--silent", f"axe-core@{AXE}", "--pack-destination", folder]
            packed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            if packed.returncode:
                pytest.skip(f"npm cannot fetch axe-core: {packed.stderr.strip()[-200:]}")
            with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
                script = archive.extractfile("package/axe.min.js")
                assert script is not None
                source.parent.mkdir(exist_ok=True)
                source.write_bytes(script.read())
    return source.read_text(encoding="utf-8")


class Page:
    """A page of the browser that remembers everything it should not have done."""

    def __init__(self, browser: Any, url: str, place: dict[str, Any], token: str | None, **options: Any) -> None:
        self.url = url
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.context = browser.new_context(viewport={"width": 1280, "height": 1000}, **options)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(20_000)
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.errors.append(message.text))
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("dialog", self._dismiss)
        if token is not None:
            self.tab.goto(f"{url}?token={token}")
        self.go(**place)

    def go(self, **place: Any) -> None:
        """Open a place as a link that somebody pasted."""
        self.tab.goto("about:blank")
        self.tab.goto(self.url + "#" + urlencode(place))

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def text(self, selector: str) -> str:
        return str(self.tab.locator(selector).inner_text())

    def count(self, selector: str) -> int:
        return int(self.tab.locator(selector).count())

    def wait(self, selector: str, **options: Any) -> Any:
        return self.tab.wait_for_selector(selector, **options)

    def check(self, refused: int | None = None) -> None:
        """Nothing was loaded from elsewhere, nothing went wrong, and nothing of the contents came to life. The browser
        itself reports requests that the server refused with the status ``refused``."""
        foreign = [url for url in self.requests if not url.startswith((self.url, "data:", "about:"))]
        assert foreign == []
        assert [error for error in self.errors if f"status of {refused}" not in error] == []
        assert self.dialogs == []
        assert self.count("script") == 1
        assert self.count("main img, main iframe, main b, main i, main style, main form form") == 0
        links = self.tab.eval_on_selector_all("main a", "all => all.map((each) => each.getAttribute('href'))")
        assert all(link is None or link.startswith(("#", "api/value?")) for link in links)

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Page]]:
    """Serve some logs, and look at them."""
    servers: list[Server] = []
    pages: list[Page] = []

    def look(
        *paths: Path,
        at: dict[str, Any] | None = None,
        state: str | None = None,
        token: str | None = None,
        **options: Any,
    ) -> Page:
        server = Server([str(path) for path in paths], state=state, token=token)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        pages.append(Page(browser, server.url, at or {}, token, **options))
        return pages[-1]

    yield look
    for page in pages:
        page.close()
    for server in servers:
        server.shutdown()
        server.close()
