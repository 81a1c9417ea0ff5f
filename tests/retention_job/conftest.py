"""One Spark session for the whole room; it takes some seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from retention_job.session import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch: Path = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "local[2]",
        memory="1g",
        shuffle_partitions=2,
        scratch=scratch,
        settings={"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.sql.adaptive.enabled": "false"},
    )
    yield session
    session.stop()
