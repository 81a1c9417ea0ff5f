"""What is installed is what was reviewed."""

import re
from pathlib import Path

LOCK = Path(__file__).parents[2] / "requirements.lock"


def test_every_package_is_locked_with_its_hashes() -> None:
    """Without a hash for each, pip would look at none of them."""
    text = re.sub(r"^\s*#.*$", "", LOCK.read_text(), flags=re.MULTILINE)
    packages = re.findall(r"^(\S+)(?:[ ;].*)?((?: \\\n|\n    --hash.*)*)", text, re.MULTILINE)
    assert len(packages) > 20
    assert not [name for name, _ in packages if not re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[\w.!+]+", name)]
    assert not [name for name, hashes in packages if "--hash=sha256:" not in hashes]
