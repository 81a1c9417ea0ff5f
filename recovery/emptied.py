"""Finds which log directories of a broker were erased, before the broker starts. Asks only this host.

An empty directory alone does not show whether its disk was erased or is not mounted. Data written into the mount point
of an unmounted disk is in the way once the disk is back, and fills the wrong disk until then. So these rules apply:

- A missing directory is not an erased one: after replacing a disk, one creates its mount point, or the directory.
- What /etc/fstab has at the directory, or above it, must be mounted. (`/` is.)
- If each log directory is known to be on its own disk, or is mounted by other means than fstab, one may require a mount
  below `/` in any case.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from recovery.errors import TargetRefusedError
from recovery.logs.log_directory_target import is_without_logs

FSTAB: Final = Path("/etc/fstab")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_NOT_MOUNTED: Final = {"none", "swap"}


def emptied_log_dirs(
    log_dirs: Sequence[Path],
    *,
    must_be_mounted: bool = False,
    fstab: Path = FSTAB,
    is_mounted: Callable[[Path], bool] | None = None,
) -> list[Path]:
    """Return the directories without a log, which must be restored; none if all have a broker's data.

    Raises TargetRefusedError if a disk may be unmounted, OSError.
    """
    empty = [path for path in log_dirs if not path.exists() or is_without_logs(path)]
    is_mounted = is_mounted or is_mount
    configured = _mount_points(fstab) if empty else []
    for path in empty:
        if not path.is_dir():
            raise _refused(path, "it is not there", "make it, if its disk was erased; else mount the disk")
        above = [place for place in (path.resolve(), *path.resolve().parents) if place != Path("/")]
        away = [place for place in above if place in configured and not is_mounted(place)]
        if away:
            raise _refused(path, f"{fstab} has {away[0]}, which is not mounted", f"mount {away[0]}")
        if must_be_mounted and not any(is_mounted(place) for place in above):
            raise _refused(path, "it is on no file system that is mounted below /", "mount its disk")
    return empty


def is_mount(path: Path) -> bool:
    """Whether a file system is mounted there now."""
    return os.path.ismount(path)


def _refused(path: Path, reason: str, hint: str) -> TargetRefusedError:
    return TargetRefusedError("recover into", str(path), reason, hint)


def _mount_points(fstab: Path) -> set[Path]:
    """Return the mount points of all lines; those not mounted at boot are a reason to check as well."""
    try:
        lines = fstab.read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return set()
    fields = (line.split() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    places = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), one[1]) for one in fields if len(one) > 1)
    return {Path(os.path.realpath(place)) for place in places if place not in _NOT_MOUNTED}
