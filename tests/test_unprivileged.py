"""The way in which root runs tests of what a user may not do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unprivileged import run_unprivileged


@pytest.mark.unprivileged
def test_the_body_has_no_privileges(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        (closed / "file").touch()


@pytest.mark.skipif(os.geteuid() != 0, reason="for another user the body runs as it is")
def test_a_failure_of_the_body_fails_the_test(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    def body() -> None:
        assert os.geteuid() == 0

    with pytest.raises(pytest.fail.Exception, match="AssertionError"):
        run_unprivileged(body, tmp_path, tmp_path_factory.getbasetemp())
