"""Makes all files of a release from a clean clone: the same commit twice gives the same bytes.

./run release [--out dist] [--key KEY.pem]

Wheel and host.lock are what a host or the image installs; the .deb holds both, built for this host's distribution and
Python. SHA256SUMS names every file; with a key (Ed25519, PEM) SHA256SUMS.sig signs it.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

ROOT = Path(__file__).resolve().parents[2]
NAME = "remote-wal"
LOCKED = re.compile(r"^([\w.-]+)==([\w.!+-]+)", re.MULTILINE)


class ReleaseError(Exception):
    """No release can be made from this tree, or with this key."""


def main() -> int:
    """Make the release. Exits with 4 if the tree or the key does not allow it."""
    parser = argparse.ArgumentParser(prog="./run release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty or new directory; default: dist")
    parser.add_argument("--key", type=Path, help="an Ed25519 key, PEM, that signs SHA256SUMS")
    given = parser.parse_args()
    try:
        release(given.out.resolve(), given.key)
    except (ReleaseError, OSError) as error:
        told: object = error
        if isinstance(error, OSError) and error.strerror:
            told = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        sys.stderr.write(f"release: {told}\n")
        return 4
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"release: {error.cmd[0]} failed:\n{error.stderr}\n")
        return 3
    return 0


def release(out: Path, key_file: Path | None) -> None:
    """Write all files of a release into `out`. Raises ReleaseError, OSError, CalledProcessError."""
    key = _key(key_file) if key_file is not None else None
    if changed := _git("status", "--porcelain"):
        raise ReleaseError(f"the tree differs from its commit, first in {changed.splitlines()[0][3:]}")
    if out.exists() and any(out.iterdir()):
        raise ReleaseError(f"{out} is not empty")
    out.mkdir(parents=True, exist_ok=True)
    epoch = int(_git("log", "-1", "--format=%ct"))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    _tell("wheel")
    wheel = _wheel(out, environment)
    version = wheel.name.split("-")[1]
    lock = _python(environment, str(ROOT / "deploy" / "packages" / "host_lock.py"))
    (out / "host.lock").write_text(lock)
    shutil.copytree(ROOT / "deploy" / "image", out, dirs_exist_ok=True)
    _tell("chart")
    (out / f"{NAME}-chart-{version}.tgz").write_bytes(chart(ROOT / "deploy" / "helm", epoch))
    (out / "sbom.cdx.json").write_text(bill_of_materials(version, lock))
    if shutil.which("dpkg-deb"):
        _tell("package for Debian, which takes a minute or two")
        _called([str(ROOT / "deploy" / "packages" / "build_package.sh"), "deb", str(wheel), str(out)], environment)
    else:
        _tell("no .deb: dpkg-deb is not here")
    sums = "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in sorted(out.iterdir()))
    (out / "SHA256SUMS").write_text(sums)
    if key is not None:
        (out / "SHA256SUMS.sig").write_bytes(key.sign(sums.encode()))
    _tell(
        f"{out} has {len(list(out.iterdir()))} files" + ("" if key is not None else "; unsigned, as no --key is given")
    )


def chart(source: Path, epoch: int) -> bytes:
    """Return the chart as `helm package` lays it out, without the times and owners of this machine."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for file in sorted(one for one in source.rglob("*") if one.is_file()):
            entry = tarfile.TarInfo(f"{NAME}/{file.relative_to(source).as_posix()}")
            entry.size, entry.mtime, entry.mode = file.stat().st_size, epoch, 0o644
            with file.open("rb") as content:
                tar.addfile(entry, content)
    return packed.getvalue()


def bill_of_materials(version: str, lock: str) -> str:
    """Return a CycloneDX 1.6 document of the packages that a host installs."""
    root = {"type": "application", "name": NAME, "version": version, "purl": f"pkg:pypi/{NAME}@{version}"}
    parts = [
        {"type": "library", "name": name, "version": its, "purl": f"pkg:pypi/{name}@{its}"}
        for name, its in LOCKED.findall(lock)
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": parts,
    }
    return json.dumps(document, indent=2) + "\n"


def _key(file: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ReleaseError(f"{file} is no private key in PEM without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ReleaseError(f"{file} is no Ed25519 key")
    return key


def _wheel(out: Path, environment: Mapping[str, str]) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        built = [sys.executable, "setup.py", "-q", "egg_info", "-e", scratch, "build", "-b", f"{scratch}/build"]
        _called([*built, "bdist_wheel", "-d", str(out)], environment)
    (wheel,) = out.glob("*.whl")
    return wheel


def _git(*words: str) -> str:
    return _called(["git", "-C", str(ROOT), *words], os.environ).rstrip()


def _python(environment: Mapping[str, str], *words: str) -> str:
    return _called([sys.executable, *words], environment)


def _called(command: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, cwd=ROOT, env=dict(environment), check=True, capture_output=True, text=True)
    return done.stdout


def _tell(line: str) -> None:
    sys.stderr.write(f"release: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
