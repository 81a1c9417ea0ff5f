"""Changes of a file that its readers must notice."""

from pathlib import Path

from plugin.clients.backend_settings import state_of


def test_a_file_that_only_became_readable_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    assert state_of(file) is None
    file.write_text("renewed")
    file.chmod(0o600)
    before = file.stat()
    unreadable = state_of(file)
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the file system's clock is coarse
        file.chmod(0o644)
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert state_of(file) != unreadable
