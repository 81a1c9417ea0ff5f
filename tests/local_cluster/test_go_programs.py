"""Programs in Go: what is said where one cannot be had, and that it is compiled once."""

from pathlib import Path

import pytest

from local_cluster.object_store.native import GoProgramMissingError, go_program

PROGRAM = ("example.com/some/program", "v1.2.3")


def test_without_go_one_line_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_cluster.object_store.native.downloads_directory", lambda _environment: tmp_path)
    with pytest.raises(GoProgramMissingError, match=r"needs Go.*there is no `go`$"):
        go_program(*PROGRAM, {"PATH": str(tmp_path)})


def test_why_it_cannot_be_compiled_is_told_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_cluster.object_store.native.downloads_directory", lambda _environment: tmp_path / "home")
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho looking >&2\necho no such version >&2\nexit 1\n")
    go.chmod(0o755)
    with pytest.raises(GoProgramMissingError, match="cannot compile program: no such version"):
        go_program(*PROGRAM, {"PATH": f"{tmp_path}:/bin:/usr/bin"})
    assert not list(tmp_path.rglob("program"))


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_cluster.object_store.native.downloads_directory", lambda _environment: tmp_path / "home")
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/asked"\ntouch "$GOBIN/program"\n')
    go.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    first, second = go_program(*PROGRAM, environment), go_program(*PROGRAM, environment)
    assert first == second
    assert first.is_file()
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
