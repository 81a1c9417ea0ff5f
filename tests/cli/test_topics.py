"""`remote-wal topics enable`: what is written for a topic."""

import pytest
from typer.testing import CliRunner

from cli import main as main_module
from cli import topics as topics_module
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], TopicSettings(enable=True)),
        (["--archive"], TopicSettings(enable=True, archive=True)),
        (["--archive", "--link-policy", "always"], TopicSettings(True, LinkPolicy.ALWAYS, None, True)),
        (["--no-archive"], TopicSettings(enable=True, archive=False)),
    ],
)
def test_a_topic_is_enabled_with_or_without_an_archive(
    monkeypatch: pytest.MonkeyPatch, options: list[str], expected: TopicSettings
) -> None:
    written: list[tuple[list[str], object]] = []
    monkeypatch.setattr(topics_module, "_set", lambda topics, _client, settings: written.append((topics, settings)))
    result = CliRunner().invoke(
        main_module.build_app(), ["topics", "enable", "orders", "--bootstrap-server", "nowhere:1", *options]
    )
    assert result.exit_code == 0, result.output
    assert written == [(["orders"], expected)]
