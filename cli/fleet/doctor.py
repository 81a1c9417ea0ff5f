"""`remote-wal doctor`: finds settings that would lose or leak data, and says what to change."""

import contextlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import BrokerConfig, Json
from cli.exit_code import ExitCode
from cli.progress import shown_progress
from cli.tables import plain_console, tell_json

if TYPE_CHECKING:
    from agent.settings.agent_settings import AgentSettings
    from doctor.findings import Finding
    from kafka_log.broker_files.server_properties import BrokerProperties

_ASK_AGAIN_S = 2.0
_COLOURS = {"ok": "green", "information": "blue", "unknown": "magenta", "warning": "yellow", "error": "red"}


def doctor(
    broker_config: BrokerConfig,
    before_restart: Annotated[
        bool, typer.Option(help="Ask only whether a broker or an agent may be restarted now. Writes nothing.")
    ] = False,
    agent: Annotated[
        bool,
        typer.Option(
            "--agent",
            help="With --before-restart: the agent is to be restarted, not the broker. Its own state forbids nothing.",
        ),
    ] = False,
    wait: Annotated[float, typer.Option(help="With --before-restart: ask again for so many seconds.", min=0)] = 0.0,
    json: Json = False,
) -> None:
    """Look for settings that would lose or leak data, and say what to change.

    Run it on the broker's host, as the agent's user. It writes one small object into the store and deletes it again,
    and changes nothing else. Exits with 0 if all is well, with 1 if something is to be looked at, with 3 if a check
    could not be made, with 6 if something is wrong.

    With --before-restart it asks all brokers and agents, from any host that reaches them, and exits with 0 only if one
    of them may go now.
    """
    findings = _findings(broker_config, wait if before_restart else None, restarts_agent=agent)
    code = exit_code(findings)
    if json:
        checks = [
            {"check": item.check, "level": item.level.value, "found": item.found, "change": item.change}
            for item in findings
        ]
        tell_json({"checks": checks}, code)
    else:
        _print(findings)
    raise typer.Exit(code)


def exit_code(findings: "list[Finding]") -> ExitCode:
    """Return the exit code for the worst of the findings."""
    from doctor.findings import Level

    codes = {Level.ERROR: ExitCode.CRITICAL, Level.WARNING: ExitCode.FINDINGS, Level.UNKNOWN: ExitCode.UNKNOWN}
    levels = {finding.level for finding in findings}
    return next((code for level, code in codes.items() if level in levels), ExitCode.GOOD)


def _findings(broker_config: Path, restart_wait_s: float | None, *, restarts_agent: bool) -> "list[Finding]":
    """Return the findings of all checks; with `restart_wait_s`, those about a restart."""
    from agent.settings.setting_types import AgentSettingsError
    from agent.settings_file import read_settings_file
    from doctor.diagnosis import diagnose
    from doctor.findings import Finding, Level
    from doctor.gathering import gather
    from kafka_log.errors import BrokerPropertiesError
    from plugin.errors import in_words
    from plugin.wall_clock import wall_ms

    try:
        broker, settings = read_settings_file(broker_config)
    except (AgentSettingsError, BrokerPropertiesError, OSError) as error:
        return [Finding("settings", Level.ERROR, in_words(error), "correct what it names; nothing else was looked at")]
    if restart_wait_s is not None:
        return _before_restart(broker, settings, restart_wait_s, restarts_agent)
    with shown_progress("asking the cluster, other agents and the store"):
        facts = gather(broker, settings, wall_ms)
    return [Finding("settings", Level.OK, f"{broker_config} can be read"), *diagnose(facts)]


def _before_restart(
    broker: "BrokerProperties", settings: "AgentSettings", wait_s: float, restarts_agent: bool
) -> "list[Finding]":
    """Ask until all is well or the time is over, and return the last findings."""
    from doctor import restart_questions
    from doctor.before_restart import judge_restart
    from local_cluster.polling import WaitTimeoutError, wait_until

    found: list[Finding] = []

    def is_well() -> bool:
        found[:] = judge_restart(restart_questions.gather_restart_facts(broker, settings, restarts_agent))
        return exit_code(found) is ExitCode.GOOD

    with shown_progress("asking brokers and agents"), contextlib.suppress(WaitTimeoutError):
        if not is_well() and wait_s:
            wait_until(is_well, "all is well", wait_s, interval_s=_ASK_AGAIN_S)
    return found


def _print(findings: "list[Finding]") -> None:
    """Print what was found, the worst first; then what is well; then how much there is of each."""
    from rich.text import Text

    from doctor.findings import Level

    console = plain_console()
    for level in (Level.ERROR, Level.WARNING, Level.UNKNOWN, Level.INFORMATION):
        for head, found, changes in _merged([one for one in findings if one.level is level]):
            console.print(Text(_indented(f"{level}: ", head, console.width), style=_COLOURS[level]), soft_wrap=True)
            for mark, text in (("  ", found), *(("  → ", change) for change in changes)):
                console.print(_indented(mark, text, console.width), soft_wrap=True)  # no path or key is broken
    for one in findings:
        if one.level is Level.OK:
            told = _indented("ok: ", f"{one.check}: {one.found}", console.width)
            console.print(Text(told, style=_COLOURS[Level.OK]), soft_wrap=True)
    console.print(_indented("", _summary(findings), console.width), soft_wrap=True)


def _merged(findings: "list[Finding]") -> "Iterator[tuple[str, str, list[str]]]":
    """Yield of findings of one level a head, what was found and what to change: once for checks that could not be made
    for one cause."""
    from doctor.findings import Level

    left = list(findings)
    while left:
        alike, cause = left[:1], left[0].found
        if left[0].level is Level.UNKNOWN:
            cause = min((one.found for one in left if cause.endswith(one.found)), key=len)
            alike = [one for one in left if one.found.endswith(cause)]
        names = ", ".join(one.check for one in alike)
        head = f"{len(alike)} checks could not be made: {names}" if len(alike) > 1 else names
        yield head, cause, list(dict.fromkeys(one.change for one in alike if one.change))
        left = [one for one in left if one not in alike]


def _indented(mark: str, text: str, width: int) -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _summary(findings: "list[Finding]") -> str:
    from doctor.findings import Level

    counted = []
    for level in reversed(Level):
        if names := [one.check for one in findings if one.level is level]:
            is_bad = level in (Level.ERROR, Level.WARNING)
            told = f"{'s' * (len(names) > 1)} ({', '.join(names)})" if is_bad else ""
            counted.append(f"{len(names)} {level}{told}")
    return ", ".join(counted)
