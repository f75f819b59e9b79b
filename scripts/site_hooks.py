"""What mkdocs does besides its plugins for the site of the documentation: named in ``mkdocs.yml``.

Pages are written for the repository: their links are paths between its files. Files outside ``docs`` that pages link to
become pages too, and the links follow them.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent

OUTSIDE = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "LICENSE": "license.md",
}
"""Files beside ``docs`` that are pages of the site, and their names there; programs in ``examples`` are as well."""

_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
_PIPE = re.compile(r"<code>[^<]*\\\|[^<]*</code>")
_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):<code>~?([\w.]+)</code>")
_SHIM = """if (location.protocol === "file:") {
  // Browsers start no worker from a file; from text that they already have they do.
  const started = window.Worker, text = %s;
  window.Worker = function () { return new started(URL.createObjectURL(new Blob([text], {type: "text/javascript"}))); };
}
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in ``docs``."""
    for source, name in _outside().items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if not source.endswith(".md"):
            language = "python" if source.endswith(".py") else "text"
            text = f"# {source}\n\n```{language}\n{text}```\n"
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    outside = _outside()
    here = page.file.src_uri
    source = next((path for path, name in outside.items() if name == here), f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["path"]))
        name = outside.get(target) or target.removeprefix("docs/")
        return posixpath.relpath(name, posixpath.dirname(here) or ".") + (match["anchor"] or "")

    parts = _FENCE.split(markdown)
    return "".join(part if _FENCE.fullmatch(part) else _LINK.sub(moved, part) for part in parts)


def on_page_content(html: str, **_: Any) -> str:
    """Turn roles of docstrings (``func``, ``class``, …) into links to where the name is explained.

    And show a ``|`` in the code of a table as what it is: there it is written with a backslash.
    """
    html = _PIPE.sub(lambda code: code[0].replace("\\|", "|"), html)
    return _ROLE.sub(r'<autoref identifier="\1" optional><code>\1</code></autoref>', html)


def on_post_build(config: MkDocsConfig) -> None:
    """Let the search work where the site is opened as a file."""
    scripts = Path(config.site_dir) / "assets" / "javascripts"
    [worker] = scripts.glob("workers/search.*.js")
    text = json.dumps(worker.read_text(encoding="utf-8"))
    (scripts / "iframe-worker.js").write_text(_SHIM % text, encoding="utf-8")


def _outside() -> dict[str, str]:
    programs = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.py"))
    return {**OUTSIDE, **{path: os.path.splitext(path)[0] + ".md" for path in programs}}
