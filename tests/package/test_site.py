"""docs/ as a site: every page, link and title in its place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.package.bare_environment import ROOT

MKDOCS = Path(sys.executable).with_name("mkdocs")


@pytest.mark.skipif(not MKDOCS.exists(), reason="mkdocs is not here")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    told = subprocess.run(
        [MKDOCS, "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (told.returncode, [line for line in told.stderr.splitlines() if not line.startswith("INFO ")]) == (0, [])
    pages = {path.parent.name for path in tmp_path.glob("*/index.html")}
    assert pages >= {path.stem for path in (ROOT / "docs").glob("*.md")} | {
        "changes",
        "reporting",
        "contributing",
        "licence",
    }
    assert 'href="operations/"' in (tmp_path / "index.html").read_text(), "links of README.md lead to the site's pages"
