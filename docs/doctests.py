"""Examples in docstrings as code blocks on the site: Markdown would take ``>>>`` for quotations.

An extension of griffe, which reads the sources for mkdocstrings. Changes nothing but what the site shows.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with every run of ``>>>`` lines, and what they print, in a block of its own.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2\\n\\nThat is all.")
    'Adds.\\n\\n```python\\n>>> 1 + 1\\n2\\n```\\n\\nThat is all.'
    """
    return _EXAMPLE.sub(lambda match: f"```python\n{match[0]}\n```", text)
