"""Which log directories of a broker were erased, told before the broker starts. Nothing but the host is asked.

An empty directory tells by itself neither that its disk was erased nor that its disk is not mounted; what is written
into a mount point whose disk is away is in the way once the disk is back, and fills the wrong disk until then. So
what can be known is held against it:

- A directory that is not there is no erased one: who puts in a new disk makes its mount point, or the directory.
- What /etc/fstab has at the directory, or above it, must be mounted. (`/` is.)
- Who knows that each log directory is on a disk of its own, or mounts by other means than fstab, may ask for a mount
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
    """Those without a log, to be restored; none where each has what a broker left.

    Raises TargetRefusedError where a disk may be away, OSError.
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
    """Of all lines; those that are not mounted at start are a reason to look as well."""
    try:
        lines = fstab.read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return set()
    fields = (line.split() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    places = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), one[1]) for one in fields if len(one) > 1)
    return {Path(os.path.realpath(place)) for place in places if place not in _NOT_MOUNTED}
