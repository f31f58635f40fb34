"""The examples in the docstrings are run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import duramen

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(duramen.__path__, "duramen.")
    if not name.rpartition(".")[2].startswith("_")
]


@pytest.mark.parametrize("name", ["duramen", *MODULES])
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0
