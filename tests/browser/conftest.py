"""A real browser without a screen. Tests are skipped, with the reason, where there is none."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visiting import Page, serving

AXE = "4.14.0"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")  # not longer: while it runs, no other test of the process can call asyncio.run
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


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Page]]:
    """Serve some logs, and look at them."""
    with ExitStack() as stack:

        def look(
            *paths: Path, at: dict[str, Any] | None = None, state: str | None = None, token: str | None = None,
            **options: Any,
        ) -> Page:  # fmt: skip
            server = stack.enter_context(serving([str(path) for path in paths], state=state, token=token))
            page = Page(browser, server.url, at or {}, token, **options)
            stack.callback(page.close)
            return page

        yield look
