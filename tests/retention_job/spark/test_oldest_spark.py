"""The oldest Spark that the page on Spark names runs the source and the report."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OLDEST = "4.0.0"
TESTS = (
    "tests/retention_job/spark/test_stored_topics.py",
    "tests/retention_job/findings/test_findings.py",
    "tests/retention_job/page/test_report_output.py",
)


@pytest.mark.thorough
@pytest.mark.whole_machine
@pytest.mark.timeout(1800)
def test_the_oldest_spark_runs_the_source_and_the_report() -> None:
    assert OLDEST.startswith(re.findall(r"Spark (\S+) or newer", (ROOT / "docs/spark.md").read_text())[0])
    home = ROOT / ".spark" / f"pyspark-{OLDEST}"
    if not home.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", f"{home}.part", f"pyspark=={OLDEST}"]
        subprocess.run(pip, check=True)
        Path(f"{home}.part").rename(home)
    environment = {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{ROOT}", "SPARK_HOME": str(home / "pyspark")}
    version = subprocess.run(
        [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert version.stdout.strip() == OLDEST
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gate", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:]
