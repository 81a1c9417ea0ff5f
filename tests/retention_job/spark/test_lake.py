"""The page on Spark makes tables of a topic, of Iceberg and of Delta Lake: its programs and commands are run as they
stand there.
"""

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
BLOCKS: list[tuple[str, str]] = re.findall(
    r"^```(\w*)\n(.*?)^```$", (ROOT / "docs/spark.md").read_text(), re.DOTALL | re.MULTILINE
)


def block(word: str, language: str = "") -> str:
    """The page's only block of this language with the word."""
    [found] = [text for name, text in BLOCKS if name == language and word in text]
    return found


@pytest.mark.gate
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("lake", "table"),
    [("iceberg", 'spark.table("lake.db.orders")'), ("delta", 'spark.read.format("delta").load("/lake/orders")')],
)
def test_a_topic_becomes_a_table_run_by_run(lake: str, table: str, tmp_path: Path) -> None:
    ruins = Ruins(tmp_path)
    ruins.write()
    program, command = block('toTable("lake.db.orders")', "python"), block(f":{lake}-spark")
    if lake == "delta":
        rest = program.index("columns = ")
        program = program[:rest] + block('format("delta")', "python")
    program += f'print("FOUND", sorted(row.offset for row in {table}.select("offset").collect()))\n'
    paths = {"/etc/remote-wal": str(tmp_path), '"/lake/': f'"{tmp_path}/lake/', "=/lake/": f"={tmp_path}/lake/"}
    for place, here in paths.items():
        program, command = program.replace(place, here), command.replace(place, here)
    java, words = find_java(), command.replace("\\", " ").split()
    at = words.index("--packages")
    group, name, version = words[at + 1].split(":")
    properties = {"lake.group": group, "lake.name": name, "lake.version": version}
    jar_set = JarSet(lake, Path(__file__).with_name("lake-ivy.xml"), "lake", properties)
    jars = fetch_jars(jar_set, ROOT / ".spark" / f"{name}-{version}", java, lambda _line: None).glob("*.jar")
    words[at : at + 2] = ["--jars", ",".join(map(str, jars))]
    quick = ["--driver-java-options", " ".join(QUICK_JVM_OPTIONS), "--master", "local[2]", "--driver-memory", "1g"]
    quick += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]

    def run() -> str:
        (tmp_path / words[-1]).write_text(program)
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
        return done.stdout.split("FOUND ")[1].strip()

    def upload(first: int, raw: bytes) -> None:
        ruins.upload(first, (ORDERS, 0, first, raw))

    upload(0, written_batch(0, [Written(b"k")] * 40, codec="zstd"))
    upload(40, written_batch(40, [Written(b"k")] * 5, attributes=TRANSACTIONAL, producer_id=7))
    assert run() == str([*range(40)]), "up to the first open transaction"
    upload(45, marker(45, 7, commits=True))
    upload(46, written_batch(46, [Written(b"k")] * 4))
    assert run() == str([*range(45), *range(46, 50)])
