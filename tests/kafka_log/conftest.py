from pathlib import Path

import pytest

from tests.kafka_log.log_writer import LogWriter


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "topic-0")
