"""The code blocks of the pages that use Spark, in the one session of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.test_docs import ALL_PAGES, BLOCK_ON_SPARK, PAGES, ROOT, blocks, run_page, scratch

__all__ = ["scratch"]

ON_SPARK = [page for page in ALL_PAGES if page not in PAGES]
PARTLY_ON_SPARK = [page for page in PAGES if blocks(page, BLOCK_ON_SPARK)]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("page", ON_SPARK, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks(page: Path, scratch: Path, spark: SparkSession) -> None:
    run_page(page, {"__name__": "__main__", "spark": spark})


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("page", PARTLY_ON_SPARK, ids=lambda page: str(page.relative_to(ROOT)))
def test_single_blocks(page: Path, scratch: Path, spark: SparkSession) -> None:
    run_page(page, {"__name__": "__main__", "spark": spark}, BLOCK_ON_SPARK)


def test_the_readme_has_one() -> None:
    assert ROOT / "README.md" in PARTLY_ON_SPARK
