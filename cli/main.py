"""The command `remote-wal`. Each sub-command is a module of one of the packages below `cli`.

The module has either `app`, a typer group of commands, or a function `<name>`, one command.
It imports what is heavy inside its functions: all modules are imported for each `--help`.
"""

import importlib
import os
import sys
from typing import Annotated, Any, Final, NoReturn, cast

import typer

from cli.exit_code import ExitCode
from cli.extras import missing_extra
from cli.log_lines import show_log
from cli.option_groups import command_group
from cli.standard_output import StandardOutputError, checked_output
from cli.tables import tell_failure, tell_json

COMMANDS: Final = {
    "demo": "cli.local",
    "cluster": "cli.local",
    "kafka": "cli.local",
    "agent": "cli.fleet",
    "gateway": "cli.fleet",
    "topics": "cli.fleet",
    "status": "cli.fleet",
    "describe": "cli.fleet",
    "pause": "cli.fleet",
    "resume": "cli.fleet",
    "orphans": "cli.recovery",
    "held": "cli.recovery",
    "lease": "cli.recovery",
    "decommission": "cli.recovery",
    "metadata": "cli.recovery",
    "config": "cli.fleet",
    "deploy": "cli.fleet",
    "doctor": "cli.fleet",
    "verify": "cli.recovery",
    "recover": "cli.recovery",
    "takeover": "cli.takeover",
    "reassign": "cli.recovery",
    "report": "cli.costs",
    "scenario": "cli.costs",
    "estimate": "cli.costs",
}
"""The commands in the order of the help, and the package of each."""

OWN_PACKAGES: Final = frozenset(
    {
        "jvm",
        "kafka_log",
        "plugin",
        "kafka_cluster",
        "metadata_topic",
        "rlm",
        "replication",
        "gateway",
        "retention_job",
        "recovery",
        "agent",
        "doctor",
        "local_cluster",
        "demo",
        "perf",
        "cli",
    }
)
"""The packages whose errors are written for people: one line of text is enough."""

_USAGE_ERROR: Final = typer.BadParameter.__bases__[0]
"""Any wrong command line; typer gives the type no public name."""
_OF_WORDS: Final = frozenset(
    {
        "AgentSettingsError", "BrokerPropertiesError", "ClientPropertyError", "ConfigProviderError", "PlanError",
        "PriceError", "ScenarioError",
    }
)  # fmt: skip
"""Errors that mean that a word of the command line, or of a file that it names, is wrong; by name, because importing
their modules takes long."""
TRACEBACK_VARIABLE: Final = "REMOTE_WAL_TRACEBACK"


def build_app() -> typer.Typer:
    """Return the command-line application with all its commands."""
    app = command_group("Replicate unmodified Apache Kafka across zones through object storage.", name="remote-wal")
    app.callback()(_global_options)
    for name, package in COMMANDS.items():
        module = importlib.import_module(f"{package}.{name}")
        group = getattr(module, "app", None)
        if isinstance(group, typer.Typer):
            app.add_typer(group, name=name)
        else:
            app.command(name, context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))
    return app


def main() -> None:
    """Run the command line. Exits as `cli.exit_code` says."""
    wants_json = "--json" in sys.argv[1:]
    with checked_output():
        _run(wants_json=wants_json)


def _run(*, wants_json: bool) -> NoReturn:
    try:
        # With JSON a wrong command is reported as JSON, too; else typer reports it and ends the program itself.
        sys.exit(build_app()(standalone_mode=not wants_json))
    except typer.Abort:
        sys.exit(ExitCode.INTERRUPTED)
    except StandardOutputError:
        raise
    except Exception as error:
        end_by(error, json=wants_json)


def end_by(error: Exception, *, json: bool) -> NoReturn:
    """End the program with the exit code and message for an error. An unexpected error is shown with its traceback."""
    told: Exception = missing_extra(error) or error
    is_thought_of = is_own_error(told) or isinstance(told, OSError | _USAGE_ERROR)  # such as a disk that is full
    code = ExitCode.USAGE if type(told).__name__ in _OF_WORDS or isinstance(told, _USAGE_ERROR) else ExitCode.UNKNOWN
    if is_thought_of and not os.environ.get(TRACEBACK_VARIABLE):
        tell_failure(cast(Any, told).format_message() if isinstance(told, _USAGE_ERROR) else told, code, json=json)
    else:
        if json:
            tell_json({"error": type(told).__name__}, code)
        sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(code)


def is_own_error(error: BaseException) -> bool:
    """Return whether the error's type is defined in one of this project's packages."""
    return type(error).__module__.partition(".")[0] in OWN_PACKAGES


def _show_version(wanted: bool) -> None:
    if wanted:
        from agent.release import version_lines

        typer.echo("\n".join(version_lines()))
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show version, commit and formats, and end."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Show what is logged, by Kafka's clients too, on standard error."),
    ] = False,
) -> None:
    """Replicate unmodified Apache Kafka across zones through object storage."""
    show_log(verbose=verbose)


if __name__ == "__main__":
    main()
