"""The native S3 server: what is said where it cannot be had."""

from pathlib import Path

import pytest

from local_cluster.native_object_store import NativeStoreMissingError, native_server


def test_without_go_one_line_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_cluster.native_object_store.downloads_directory", lambda _environment: tmp_path)
    with pytest.raises(NativeStoreMissingError, match=r"needs Go.*there is no `go`$"):
        native_server({"PATH": str(tmp_path)})


def test_why_it_cannot_be_compiled_is_told_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_cluster.native_object_store.downloads_directory", lambda _environment: tmp_path / "home")
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho looking >&2\necho no such version >&2\nexit 1\n")
    go.chmod(0o755)
    with pytest.raises(NativeStoreMissingError, match="cannot compile versitygw: no such version"):
        native_server({"PATH": f"{tmp_path}:/bin:/usr/bin"})
    assert not list(tmp_path.rglob("versitygw"))


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_cluster.native_object_store.downloads_directory", lambda _environment: tmp_path / "home")
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/asked"\ntouch "$GOBIN/versitygw"\n')
    go.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    first, second = native_server(environment), native_server(environment)
    assert first == second
    assert first.is_file()
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
