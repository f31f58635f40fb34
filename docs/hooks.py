"""What mkdocs does not do by itself: pages that lie beside docs/, and links that lead out of it.

Pages are written so that their links work where the files lie, in an editor and on a code host. On the site
RELIABILITY.md and its neighbours become pages, links to them follow, and a link to any other file of the project
becomes its text: the site does not carry the sources.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
BESIDE = {"RELIABILITY.md": "reliability.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

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
    elif target == "README.md":
        there = "index.md"
    else:
        return match["text"]
    relative = posixpath.relpath(there, posixpath.dirname(uri) or ".")
    return f"{match['image']}[{match['text']}]({relative}{match['anchor'] or ''})"
