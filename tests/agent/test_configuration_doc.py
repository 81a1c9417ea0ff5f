"""What docs/ says of settings and metrics is what the code says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.metrics.metrics_doc import metrics_document
from agent.settings.agent_settings import AgentSettings
from agent.settings.configuration_doc import configuration_document, table

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("name", "generate"), [("configuration", configuration_document), ("metrics", metrics_document)]
)
def test_the_committed_file_is_the_generated_one(name: str, generate: Callable[[], str]) -> None:
    assert (DOCS / f"{name}.md").read_text() == generate(), f"run: python -m {generate.__module__} > docs/{name}.md"


def test_every_key_has_a_meaning() -> None:
    assert not [key for key, field in AgentSettings.documented().items() if not field.description]


def test_prose_in_a_table_is_no_markup() -> None:
    assert table(("key", "meaning"), [("`key`", "<id> of *this* | that")]).splitlines()[-1] == (
        r"| `key` | \<id> of \*this\* \| that |"
    )
