"""A server in this process, and a page of the browser that looks at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from duramen.watch.server import Server


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


@contextmanager
def serving(paths: Sequence[str], **options: Any) -> Iterator[Server]:
    server = Server(paths, **options)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.close()
