"""The page on Spark makes an Iceberg table of a topic: its program and its command are run, as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from jvm.ivy import JarSet, fetch_jars
from jvm.java import QUICK_JVM_OPTIONS, find_java
from tests.recovery.ruins import ORDERS, Ruins
from tests.topic_reader.written import TRANSACTIONAL, Written, marker, written_batch

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/spark.md").read_text()
TABLE = "lake.db.orders"
COUNT = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print("FOUND", sorted(row.offset for row in spark.table("{TABLE}").select("offset").collect()))
"""


@pytest.mark.gate
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_topic_becomes_an_iceberg_table_run_by_run(tmp_path: Path) -> None:
    ruins = Ruins(tmp_path)
    ruins.write()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    [program] = [text for language, text in blocks if language == "python" and TABLE in text]
    [command] = [text for language, text in blocks if not language and "iceberg" in text]
    name, version = re.findall(r"org\.apache\.iceberg:(\S+):(\S+)", command)[0]
    java = find_java()
    jar_set = JarSet(
        "Iceberg",
        Path(__file__).with_name("iceberg-ivy.xml"),
        "iceberg",
        {"iceberg.name": name, "iceberg.version": version},
    )
    [jar] = fetch_jars(jar_set, ROOT / ".spark" / f"{name}-{version}", java, lambda _line: None).iterdir()
    words = command.replace("\\", " ").replace("/lake/", f"{tmp_path}/lake/").split()
    words[words.index("--packages") : words.index("--packages") + 2] = ["--jars", str(jar)]
    quick = ["--driver-java-options", " ".join(QUICK_JVM_OPTIONS), "--master", "local[2]", "--driver-memory", "1g"]
    quick += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
    paths = {"/etc/remote-wal": str(tmp_path), "/lake/checkpoints": f"{tmp_path}/lake/checkpoints"}
    for place, here in paths.items():
        program = program.replace(place, here)

    def run(text: str) -> str:
        (tmp_path / words[-1]).write_text(text)
        spark = Path(pyspark.__file__).parent
        environment = {
            **os.environ, "JAVA_HOME": str(java.home), "SPARK_HOME": str(spark), "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        done = subprocess.run(
            [str(spark / "bin/spark-submit"), *quick, *words[1:]],
            cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout

    def upload(first: int, raw: bytes) -> None:
        ruins.upload(first, (ORDERS, 0, first, raw))

    upload(0, written_batch(0, [Written(b"k")] * 40, codec="zstd"))
    upload(40, written_batch(40, [Written(b"k")] * 5, attributes=TRANSACTIONAL, producer_id=7))
    run(program)
    upload(45, marker(45, 7, commits=True))
    upload(46, written_batch(46, [Written(b"k")] * 4))
    assert run(program + COUNT).split("FOUND ")[1].strip() == str([*range(45), *range(46, 50)])
