"""Hooks of mkdocs for pages outside docs/ and for links that lead out of it.

Links in the pages work in the source tree, in an editor and on a code host. On the site README.md and its neighbours
become pages, links to them follow, and a link to any other file of the project becomes its text: the site does not
contain the sources.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
BESIDE = {
    "README.md": "index.md", "RELIABILITY.md": "reliability.md", "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md",
}  # fmt: skip

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for source, page in BESIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    home = next((source for source, target in BESIDE.items() if target == uri), f"docs/{uri}")
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [_LINK.sub(lambda match: _link(match, home, uri), part) for part in parts[::2]]
    return "".join(parts)


def _link(match: re.Match[str], home: str, uri: str) -> str:
    """A link as it must read on the page ``uri``, which lies at ``home`` in the project."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(home), match["target"]))
    if target in BESIDE:
        there = BESIDE[target]
    elif target.startswith("docs/"):
        there = target.removeprefix("docs/")
    else:
        return match["text"]
    relative = posixpath.relpath(there, posixpath.dirname(uri) or ".")
    return f"{match['image']}[{match['text']}]({relative}{match['anchor'] or ''})"
