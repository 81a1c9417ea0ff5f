"""What the documents point to is there."""

import re
from pathlib import Path

import pytest

from doctor.diagnosis import CHECKS
from local_cluster.kafka_distribution import KAFKA_VERSIONS
from retention_job.findings.kinds import Kind

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _anchors(document: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_titles_that_exist(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert not broken


def test_every_document_is_a_page_of_the_site() -> None:
    named = re.findall(r"^ +- ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert {document.name for document in DOCUMENTS} - {"README.md"} <= {*named}


def test_images_have_the_kafka_that_the_readme_names() -> None:
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    found = re.findall(r"apache/kafka:([\w.]+)", "".join(path.read_text() for path in files))
    assert len(found) >= 3
    assert {*found} == {KAFKA_VERSIONS[-1]}
    assert f"| {KAFKA_VERSIONS[-1]}, the default;" in (ROOT / "README.md").read_text()


def test_every_pool_of_threads_stands_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = ("agent", "replication", "rlm")
    code = "".join(path.read_text() for package in packages for path in (ROOT / package).rglob("*.py"))
    pools = re.findall(r'(?:thread_name_prefix=|pool\([^"\n]*)"([a-z-]+)"', code)
    assert len(pools) > 8
    assert not [pool for pool in pools if f"`{pool}`" not in text]


def test_every_check_of_doctor_is_explained() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert not [check for check in CHECKS if f"`{check}`" not in text]


def test_every_finding_of_the_report_is_explained_with_its_severity() -> None:
    text = (ROOT / "docs" / "report.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE)) >= {(kind, kind.severity) for kind in Kind}


def test_every_reason_that_faults_are_counted_under_is_explained() -> None:
    text = (ROOT / "docs" / "runbooks.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "replication").rglob("*.py"))
    reasons = set(re.findall(r'\.fault\("([a-z_]+)"', code)) | set(re.findall(r'HydrationError\("([a-z_]+)"', code))
    assert len(reasons) > 10
    assert not {reason for reason in reasons if reason not in text}
