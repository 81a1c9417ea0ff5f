"""How agents of the simulation hold what the metadata topic tells: as little in memory as can be."""

import tempfile
from pathlib import Path
from typing import Final

from metadata_topic.store.segments.entry_blocks import MemoryBound

ON_DISK: Final = MemoryBound(Path(tempfile.gettempdir()), block_bytes=0, pages=1)
"""Every segment that another one follows is written there and read back; files have no names."""
