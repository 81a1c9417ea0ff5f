"""Pages of the site that lie at the top of the tree, and links between them and docs/."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_TOP = Path(__file__).resolve().parents[2]
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "reporting.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "licence.md",
}
"""By their place in the tree; names that differ from those of docs/ by more than capitals."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the tree's top pages to the site's files."""
    for source, page in _PAGES.items():
        text = (_TOP / source).read_text()
        files.append(
            File.generated(config, page, content=f"# Licence\n\n```\n{text}```\n" if source == "LICENSE" else text)
        )
    return files


def on_page_markdown(markdown: str, **_told: Any) -> str:
    """Rewrite a page's links for the site, where all pages are in one directory."""

    def on_site(link: re.Match[str]) -> str:
        name = re.sub(r"^(\.\./)?(docs/)?", "", link[1])
        return f"]({_PAGES.get(name, name)}{link[2]})"

    return re.sub(r"\]\((?!\w+:)([^)#]*)((?:#[^)]*)?)\)", on_site, markdown)
