"""The Spark session of all tests: one, as it takes seconds to start. Import the fixture `spark` where it is used."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from retention_job.spark.session import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch: Path = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "local[2]",
        memory="1g",
        settings={
            "spark.sql.shuffle.partitions": "2",
            # The session lives for a minute: what the second compiler makes would never pay. Nor would a heap that
            # begins small, or to verify Spark's thousands of classes.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms700m -Xmn400m"
            " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            # Compiling plans takes longer than running them on a few hundred rows.
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    yield session
    session.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
