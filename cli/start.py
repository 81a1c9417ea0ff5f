"""The start of `remote-wal`: an agent starts without importing the other commands' modules.

A broker does not replicate while its agent starts, and importing all commands takes longer than starting the relay.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cli.standard_output import fill_descriptors

_OPTIONS = ("--broker-config", "--log-format")


def main() -> None:
    """The entry point of `remote-wal`, with the exit codes of `cli.exit_code`."""
    fill_descriptors()
    options = agent_options(sys.argv[1:])
    if options is None:
        from cli.main import main as any_command

        any_command()
    else:
        _run_agent(*options)


def agent_options(arguments: Sequence[str]) -> tuple[Path, str] | None:
    """Return the two options of `agent`, a broker's file and the log's format, if the arguments have no others.

    None for everything else, including mistakes, which the whole command line reports.
    """
    if arguments[:1] != ["agent"]:
        return None
    words = [word for argument in arguments[1:] for word in argument.split("=", 1)]
    told = dict(zip(words[::2], words[1::2], strict=False))
    file = Path(told.get("--broker-config", ""))
    if len(words) != 2 * len(told) or not told.keys() <= set(_OPTIONS):
        return None
    log_format = told.get("--log-format", "json")
    is_good = log_format in ("json", "console") and file.is_file() and os.access(file, os.R_OK)
    return (file, log_format) if is_good else None


def _run_agent(broker_config: Path, log_format: str) -> None:
    # structlog would import it for tracebacks in colours, which takes a fifth of an agent's start.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    from cli.agent_start import start_agent

    try:
        start_agent(broker_config, log_format)
    except Exception as error:
        from cli.main import end_by

        end_by(error, json=False)


if __name__ == "__main__":
    main()
