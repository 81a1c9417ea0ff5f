from pathlib import Path

import pytest

from plugin.errors import RemoteStorageConfigError, RemoteStorageError
from plugin.loading import (
    CLASS_NAME_KEY,
    CLASS_PATH_KEY,
    DEFAULT_CLASS_NAME,
    StorageSpec,
    load_storage_manager,
    settings_under_prefix,
    until_loaded,
)
from plugin.local_directory import LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext

CONTEXT = StorageContext("cluster", 1)

FOREIGN = """
from plugin.local_directory import LocalWalStorageManager
from plugin.remote_wal_storage_manager import RemoteWalStorageManager

class OursToo(LocalWalStorageManager):
    pass

class Unrelated:
    pass

class Half(RemoteWalStorageManager):
    pass

class Needy(LocalWalStorageManager):
    def __init__(self, something):
        pass
"""


@pytest.fixture
def class_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "foreign_storage", raising=False)
    (tmp_path / "foreign_storage.py").write_text(FOREIGN)
    return str(tmp_path)


def test_the_default_is_a_local_directory(tmp_path: Path) -> None:
    manager = load_storage_manager(
        StorageSpec(DEFAULT_CLASS_NAME, None, {"directory": str(tmp_path / "objects")}), CONTEXT
    )
    assert isinstance(manager, LocalWalStorageManager)


def test_a_foreign_class_is_found_on_its_class_path(class_path: str, tmp_path: Path) -> None:
    manager = load_storage_manager(
        StorageSpec("foreign_storage.OursToo", class_path, {"directory": str(tmp_path / "objects")}), CONTEXT
    )
    assert type(manager).__name__ == "OursToo"


@pytest.mark.parametrize(
    "class_name",
    [
        "foreign_storage.Unrelated",
        "foreign_storage.Half",
        "foreign_storage.Needy",
        "foreign_storage.Missing",
        "no_such_module.Class",
        "builtins.print",
        "NoDots",
        "",
        ".LeadingDot",
    ],
)
def test_what_is_no_storage_manager_is_refused_with_the_kafka_key(class_path: str, class_name: str) -> None:
    with pytest.raises(RemoteStorageConfigError) as caught:
        load_storage_manager(StorageSpec(class_name, class_path, {}), CONTEXT)
    assert caught.value.key == CLASS_NAME_KEY


@pytest.mark.parametrize("path", ["relative/dir", "/no/such/directory"])
def test_a_class_path_that_is_no_directory_is_refused(path: str) -> None:
    with pytest.raises(RemoteStorageConfigError) as caught:
        load_storage_manager(StorageSpec(DEFAULT_CLASS_NAME, path, {}), CONTEXT)
    assert caught.value.key == CLASS_PATH_KEY


def test_a_class_path_cannot_replace_our_modules(tmp_path: Path, class_path: str) -> None:
    import sys

    load_storage_manager(StorageSpec(DEFAULT_CLASS_NAME, class_path, {"directory": str(tmp_path / "o")}), CONTEXT)
    assert sys.path[-1] == class_path


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "directory"),
        ({"directory": "/tmp/x", "put.latency.ms": "soon"}, "put.latency.ms"),
        ({"directory": "/dev/null/x"}, "directory"),
    ],
)
def test_a_wrong_setting_is_named_with_its_full_key(settings: dict[str, str], key: str) -> None:
    with pytest.raises(RemoteStorageConfigError) as caught:
        load_storage_manager(StorageSpec(DEFAULT_CLASS_NAME, None, settings, "my.prefix."), CONTEXT)
    assert caught.value.key == "my.prefix." + key


def test_settings_are_taken_from_under_the_prefix() -> None:
    properties = {"rsm.wal.config.directory": "/x", "rsm.wal.configs": "no", "log.dirs": "/y"}
    assert settings_under_prefix(properties) == {"directory": "/x"}
    assert settings_under_prefix({"a.b": "c"}, "a.") == {"b": "c"}


async def test_a_store_that_is_away_is_tried_again_soon_and_one_that_refuses_its_settings_seldom() -> None:
    errors: list[RemoteStorageError] = [
        RemoteStorageError("load", "-", "away"),
        RemoteStorageConfigError("load", "-", "no"),
    ]
    left, told, slept = list(errors), list[str](), list[float]()

    async def load() -> str:
        if left:
            raise left.pop(0)
        return "loaded"

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    assert await until_loaded(load, told.append, "inline", sleep) == "loaded"
    assert (told, slept) == ([str(error) for error in errors], [2.0, 30.0])
