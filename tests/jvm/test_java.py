import os
from pathlib import Path

import pytest

from jvm.java import Java, JavaNotFoundError, find_java, parse_java_major, trust_store_options


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16 LTS', 25),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.4"', 21),
        ("bash: java: command not found", None),
    ],
)
def test_the_major_version_is_read_in_every_form_that_java_prints(printed: str, major: int | None) -> None:
    assert parse_java_major(printed) == major


def _fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    at_home = _fake_java(tmp_path / "home", "21.0.1")
    on_path = _fake_java(tmp_path / "path", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environment, tmp_path / "none") == Java(at_home, 21)


def test_an_old_java_home_does_not_hide_a_newer_java_elsewhere(tmp_path: Path) -> None:
    _fake_java(tmp_path / "home", "1.8.0_1")
    installed = _fake_java(tmp_path / "jvm" / "java-17", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": ""}
    assert find_java(environment, tmp_path / "jvm") == Java(installed, 17)


def test_without_a_new_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    _fake_java(tmp_path / "home", "11.0.2")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": os.devnull}
    with pytest.raises(JavaNotFoundError, match=r"is Java 11.*install openjdk-17-jre-headless") as caught:
        find_java(environment, tmp_path / "none")
    assert "\n" not in str(caught.value)


def test_the_systems_certificates_are_handed_to_a_java_that_brings_its_own(tmp_path: Path) -> None:
    java = Java(_fake_java(tmp_path / "own", "17.0.1"), 17)
    own = tmp_path / "own" / "lib" / "security" / "cacerts"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"few")
    system = tmp_path / "system-cacerts"
    assert trust_store_options(java, [system]) == ()
    system.write_bytes(b"all")
    assert trust_store_options(java, [system]) == (f"-Djavax.net.ssl.trustStore={system}",)
    own.unlink()
    own.symlink_to(system)
    assert trust_store_options(java, [system]) == ()
