"""A release: from a clean clone, signed by a key that is handed in, and the same bytes each time."""

import errno
import hashlib
import json
import os
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.package.bare_environment import ROOT


@pytest.fixture
def key(tmp_path: Path) -> Path:
    made = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pub").write_bytes(public)
    return tmp_path / "key.pem"


def clone(directory: Path) -> Path:
    """Return a clean clone of this tree as it is, committed or not."""
    command = ["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(directory)]
    subprocess.run(command, check=True, capture_output=True)
    patch = subprocess.run(["git", "-C", str(ROOT), "diff", "--binary", "HEAD"], check=True, capture_output=True).stdout
    if patch:
        subprocess.run(["git", "-C", str(directory), "apply", "--index"], input=patch, check=True)
        who = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "core.hooksPath=/dev/null"]
        dated = os.environ | {"GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z", "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z"}
        subprocess.run(["git", "-C", str(directory), *who, "commit", "-qm", "as it is"], check=True, env=dated)
    return directory


def release(source: Path, out: Path, *words: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(source / "deploy" / "packages" / "release.py"), "--out", str(out), *words]
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=kept | {"PATH": path})


def without_dpkg(directory: Path) -> str:
    directory.mkdir()
    found = subprocess.run(["which", "git"], check=True, capture_output=True, text=True).stdout.strip()
    (directory / "git").symlink_to(found)
    return str(directory)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_the_same_commit_twice_gives_the_same_bytes(tmp_path: Path, key: Path) -> None:
    made = []
    for name in ("one", "a-longer-name"):
        done = release(clone(tmp_path / name), tmp_path / f"{name}-out", "--key", str(key))
        if "after connection broken by" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr
        made.append(
            {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in (tmp_path / f"{name}-out").iterdir()}
        )
    assert made[0] == made[1]


def test_every_file_is_named_and_the_names_are_signed(tmp_path: Path, key: Path) -> None:
    out, path = tmp_path / "out", without_dpkg(tmp_path / "bin")
    source = clone(tmp_path / "source")
    done = release(source, out, "--key", str(key), path=path)
    assert done.returncode == 0, done.stderr
    lines = [line.split("  ") for line in (out / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    found = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in out.iterdir()}
    assert found.items() - sums.items() == {(one, found[one]) for one in ("SHA256SUMS", "SHA256SUMS.sig")}
    verify = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(key.with_suffix(".pub")), "-rawin"]
    verify += ["-in", str(out / "SHA256SUMS"), "-sigfile", str(out / "SHA256SUMS.sig")]
    subprocess.run(verify, check=True, capture_output=True)
    with tarfile.open(next(out.glob("*.tgz"))) as chart:
        assert "remote-wal/Chart.yaml" in chart.getnames()
    parts = {one["name"] for one in json.loads((out / "sbom.cdx.json").read_text())["components"]}
    assert {"boto3", "confluent-kafka", "numpy"} <= parts
    assert "pytest" not in parts

    again = release(source, out, path=path)
    assert again.returncode == 4
    assert "not empty" in again.stderr
    (source / "README.md").write_text("changed")
    changed = release(source, tmp_path / "other", path=path)
    assert changed.returncode == 4
    assert "README.md" in changed.stderr
    (tmp_path / "no-key.pem").write_text("nothing")
    refused = release(source, tmp_path / "other", "--key", str(tmp_path / "no-key.pem"), path=path)
    assert refused.returncode == 4
    assert "no private key" in refused.stderr


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.ENOENT, "No such file or directory", "/key.pem"), "/key.pem: No such file or directory"),
        (OSError("a and b are the same file"), "a and b are the same file"),
    ],
)
def test_an_error_is_told_with_its_file_if_it_names_one(
    error: OSError, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    main = runpy.run_path(str(ROOT / "deploy" / "packages" / "release.py"))["main"]
    monkeypatch.setitem(main.__globals__, "release", fail)
    monkeypatch.setattr(sys, "argv", ["release"])
    assert main() == 4
    assert capsys.readouterr().err == f"release: {told}\n"
