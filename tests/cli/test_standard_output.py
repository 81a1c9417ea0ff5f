"""Standard output that is full, absent, or whose reader is gone, under every command."""

import os
import subprocess
import sys

import pytest

# One process that forks for each command, as importing them takes longest.
EACH_COMMAND = """
import os, sys
import retention_job.cost.scenarios, rich.console, structlog, typer.rich_utils  # each child would import them
from typer.main import get_command
from cli import main, start

def commands(command, words):
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))

kind, answers, command = sys.argv[1], {}, get_command(main.build_app())
main.build_app = lambda: command
asked = [(*words, "--help") for words in commands(command, ())]
asked += [line.split() for line in (
    "scenario", "scenario today", "scenario today --json", "--version",
    "no-such-command --json", "config check --json --broker-config /none",
)]
for words in asked:
    told, tells = os.pipe()
    if not os.fork():
        os.dup2(tells, 2)
        if kind == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
            sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
        elif kind == "absent":
            os.close(1)
            sys.stdout = sys.__stdout__ = None
        else:
            reader, writer = os.pipe()
            os.dup2(writer, 1)
            os.close(reader)
            sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
        sys.argv = ["remote-wal", *words]
        try:
            start.main()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code or 0)
        os._exit(99)
    os.close(tells)
    said = open(told).read()
    code = os.waitstatus_to_exitcode(os.wait()[1])
    if code != 3 or said.count("\\n") != 1 or not said.startswith("remote-wal: standard output: "):
        answers[" ".join(words)] = code, said
print(len(asked), answers, file=sys.stderr)
"""


@pytest.mark.parametrize("kind", ["full", "absent", "reader gone"])
def test_a_command_whose_answer_cannot_be_written_says_so_once(kind: str) -> None:
    words = [sys.executable, "-c", EACH_COMMAND, kind]
    answer = subprocess.run(words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=False)
    count, _, others = answer.stderr.strip().partition(" ")
    assert others == "{}"
    assert int(count) > 50


WORK = """
import structlog
from cli.log_lines import show_log
from cli.progress import shown_progress
from cli.standard_output import checked_output
with checked_output():
    show_log(verbose=True)
    with shown_progress("begun") as tell:
        for step in range(3):
            tell(f"step {step}")
            structlog.get_logger().warning("seen", step=step)
    print("{}")
"""


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2> >(true)"])
def test_a_command_whose_progress_cannot_be_written_does_its_work(redirection: str) -> None:
    words = ["bash", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, WORK]
    answer = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    assert (answer.returncode, answer.stdout) == (0, b"{}\n")


LONG = """
from cli.standard_output import checked_output
with checked_output():
    import sys
    for each in range(1000):
        print(f"{each} {'x' * 999}", file=sys.{0})
    print("{1}", flush=True)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_pipe_that_is_full_and_does_not_block_ends_no_command(stream: str) -> None:
    """Any process that shares a pipe or a terminal may have made it non-blocking for all."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    code = LONG.replace("{0}", stream).replace("{1}", "all")
    other = "stderr" if stream == "stdout" else "stdout"
    pipes = {stream: writer, other: subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as command:  # type: ignore[call-overload]
        os.close(writer)
        if stream == "stderr":
            assert command.communicate()[0] == b"all\n"
        else:
            with open(reader, closefd=False) as answer:
                assert [line.split()[0] for line in answer] == [*map(str, range(1000)), "all"]
            assert command.communicate()[1] == b""
    os.close(reader)
    assert command.returncode == 0


def test_an_agent_without_standard_output_gets_no_socket_in_its_place() -> None:
    code = "import os; from cli.standard_output import fill_descriptors; fill_descriptors(); print(os.open('.', 0))"
    answer = subprocess.run(
        [sys.executable, "-c", f"import os; os.close(0); os.close(2); {code}"],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert int(answer.stdout) > 2
