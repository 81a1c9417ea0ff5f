"""`remote-wal doctor`: settings that would lose or leak data, and what to change."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.connection import BrokerConfig, Json
from cli.exit_code import ExitCode
from cli.progress import shown_progress
from cli.tables import tell_json

if TYPE_CHECKING:
    from doctor.findings import Finding

_COLOURS = {"ok": "green", "information": "blue", "unknown": "magenta", "warning": "yellow", "error": "red"}


def doctor(
    broker_config: BrokerConfig,
    json: Json = False,
) -> None:
    """Look for settings that would lose or leak data, and say what to change.

    Run it on the broker's host, as the agent's user. It writes one small object into the store and deletes it again,
    and changes nothing else. Exits with 0 if all is well, with 1 if something is to be looked at, with 3 if a check
    could not be made, with 6 if something is wrong.
    """
    findings = _findings(broker_config)
    code = exit_code(findings)
    if json:
        checks = [
            {"check": item.check, "level": item.level.value, "found": item.found, "change": item.change}
            for item in findings
        ]
        tell_json({"exit_code": code, "checks": checks})
    else:
        _print(findings)
    raise typer.Exit(code)


def exit_code(findings: "list[Finding]") -> ExitCode:
    """That of the worst of them."""
    from doctor.findings import Level

    codes = {Level.ERROR: ExitCode.CRITICAL, Level.WARNING: ExitCode.FINDINGS, Level.UNKNOWN: ExitCode.UNKNOWN}
    levels = {finding.level for finding in findings}
    return next((code for level, code in codes.items() if level in levels), ExitCode.GOOD)


def _findings(broker_config: Path) -> "list[Finding]":
    from agent.settings.setting_types import AgentSettingsError
    from agent.settings_file import agent_settings
    from doctor.diagnosis import diagnose
    from doctor.findings import Finding, Level
    from doctor.gathering import gather
    from kafka_log.errors import BrokerPropertiesError
    from kafka_log.server_properties import load_broker_properties
    from plugin.wall_clock import wall_ms

    try:
        broker = load_broker_properties(broker_config)
        settings = agent_settings(broker, broker_config)
    except (AgentSettingsError, BrokerPropertiesError, OSError) as error:
        return [Finding("settings", Level.ERROR, str(error), "correct the key; nothing else was looked at")]
    with shown_progress("asking the cluster, other agents and the store"):
        facts = gather(broker, settings, wall_ms)
    return [Finding("settings", Level.OK, f"{broker_config} can be read"), *diagnose(facts)]


def _print(findings: "list[Finding]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 1, 0), pad_edge=False)
    for column in ("check", ""):
        table.add_column(column, no_wrap=True)
    table.add_column("found, and what to change", overflow="fold")
    for item in findings:
        # As Text: an error's own brackets are no markup.
        colour = _COLOURS[item.level.value]
        told = Text(item.found)
        if item.change:
            told = told.append(f"\n→ {item.change}", style=colour)
        table.add_row(Text(item.check), Text(item.level.value, style=colour), told)
    Console().print(table)
