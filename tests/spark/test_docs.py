"""The code blocks of the pages that use Spark, in the one session of the tests."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.cli.main import main
from duramen.spark import local_session
from tests.test_docs import ALL_PAGES, BLOCK_ON_SPARK, PAGES, ROOT, blocks, run_page, run_python, scratch

__all__ = ["scratch"]

ON_SPARK = [page for page in ALL_PAGES if page not in PAGES]
PARTLY_ON_SPARK = [page for page in PAGES if blocks(page, BLOCK_ON_SPARK)]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("page", ON_SPARK, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks(page: Path, scratch: Path, spark: SparkSession) -> None:
    run_page(page, {"__name__": "__main__", "spark": spark})


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("page", PARTLY_ON_SPARK, ids=lambda page: str(page.relative_to(ROOT)))
def test_single_blocks(page: Path, scratch: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in this process: a JVM of its own for each would take most of the time."""
    monkeypatch.setattr(local_session, "_own", [spark])
    write_inputs()
    names: dict[str, object] = {"__name__": "__main__", "spark": spark}
    for block in blocks(page, BLOCK_ON_SPARK):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python":
            run_python(block, names, where)
            continue
        for command in block.code.replace("\\\n", " ").splitlines():
            prompt, *words = shlex.split(command)
            assert prompt == "$", f"{where}: {command}"
            if words[0] != "pip":
                assert words[0] == "duramen", f"{where}: {command}"
                assert main(words[1:]) == 0, f"{where}: {command}"


def write_inputs() -> None:
    """What the pages take for granted: a log of orders, the same as a stream of RabbitMQ's, a table and lines."""
    Path("examples").symlink_to(ROOT / "examples")
    for path in (Path("data", "incoming"), Path("logs"), Path("streams"), Path("lake")):
        path.mkdir(parents=True)
    woods = ("oak", "ash", "elm")
    values = [f'{{"order": {n}, "wood": "{woods[n % 3]}", "boards": {n % 7}}}' for n in range(3000)]
    with duramen.open("logs/orders", "a", format="keratin") as log:
        for number, value in enumerate(values):
            log.append(
                value.encode(), key=b"customer %d" % (number % 50), timestamp=1769860800000 + number,
                durability="write",
            )  # fmt: skip
    with duramen.open("streams/orders", "a", format="osiris") as log:
        log.append_batch([value.encode() for value in values])
    Path("data/orders.csv").write_text("id,wood\n" + "".join(f"{n},{woods[n % 3]}\n" for n in range(100)))
    Path("data/incoming/lines").write_text("one\ntwo\n")


def test_the_pages_that_have_some() -> None:
    names = {str(page.relative_to(ROOT)) for page in PARTLY_ON_SPARK}
    assert names == {"README.md", "docs/pipeline.md", "docs/how-to/lake.md", "docs/how-to/kafka.md"}
