"""An option that would have no effect is refused, in every command, before anything is asked."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.core import TyperCommand
from typer.main import get_command
from typer.testing import CliRunner

from cli.main import build_app
from cli.option_needs import EXCLUDES, NEEDS
from tests.cli.test_misspelt_words import commands

TOLD_ELSEWHERE = {
    "estimate --prometheus", "gateway plan --front", "gateway plan --security-protocol", "recover --if-empty",
    "reassign drain --dry-run", "reassign join --dry-run", "reassign balance --dry-run", "reassign execute --dry-run",
    "gateway plan --agents-port", "reassign execute --plan", "pause --local", "resume --local", "report --full",
}  # fmt: skip
"""Options whose help names another one that they do not need."""
COMMANDS: dict[str, Any] = {" ".join(words): command for words, command in commands(get_command(build_app()))}


@pytest.fixture(autouse=True)
def _runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise AssertionError("it was run")

    monkeypatch.setattr(TyperCommand, "invoke", run)


def _options(command: Any) -> dict[str, Any]:
    given = [one for one in command.params if one.param_type_name == "option"]
    return {option: one for one in given for option in (*one.opts, *one.secondary_opts)}


def _line(name: str, *options: str) -> list[str]:
    """Return a command line with these options; for an option without a value, one that it takes is added."""
    line, known = name.split(), _options(COMMANDS[name])
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "argument":
            line += ["1"] if parameter.required else []
        elif parameter.required and not set(parameter.opts) & {one.partition("=")[0] for one in options}:
            option = max(parameter.opts, key=len)
            line += [option, *([] if parameter.is_flag else [_value(parameter)])]
    for one in options:
        option, _, value = one.partition("=")
        line += [option, *([] if known[option].is_flag else [value or _value(known[option])])]
    return line


def _value(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    words = [*get_args(kind), *(getattr(kind, "__members__", {}).values())]
    if words and all(isinstance(one, str) for one in words):
        return str(words[0])
    if kind is Path or Path in get_args(kind):
        return __file__ if parameter.type_descriptor.parameter_info.file_okay else str(Path(__file__).parent)
    return "5"


@pytest.mark.parametrize(
    ("name", "option", "needed"),
    [(name, option, needed) for name, of in NEEDS.items() for option, needed in of.items()],
)
def test_an_option_without_the_one_that_it_needs_is_refused(name: str, option: str, needed: tuple[str, ...]) -> None:
    done = CliRunner().invoke(build_app(), _line(name, option))
    assert done.exit_code == 2
    assert re.search(rf"{option}: has an effect only with {' or '.join(needed)}", done.output), done.output
    assert {one.partition("=")[0] for one in (option, *needed)} <= _options(COMMANDS[name]).keys()


@pytest.mark.parametrize(
    ("name", "option", "idle"),
    [(name, option, idle) for name, of in EXCLUDES.items() for option, all_ in of.items() for idle in all_],
)
def test_an_option_that_another_one_leaves_without_effect_is_refused(name: str, option: str, idle: str) -> None:
    needed = [
        one for needs in (NEEDS.get(name, {}).get(idle, ()), NEEDS.get(name, {}).get(option, ())) for one in needs
    ]
    done = CliRunner().invoke(build_app(), _line(name, option, idle, *needed[:1]))
    assert done.exit_code == 2
    assert "has no effect with" in done.output, done.output


@pytest.mark.parametrize(("name", "command"), [one for one in COMMANDS.items() if one[0] != "kafka"])
def test_no_option_is_given_twice_and_no_number_is_nan_or_pythons_own(name: str, command: Any) -> None:
    """The last one would count in silence: `--dry-run --heal` heals; and any comparison with NaN is false."""
    for option, parameter in _options(command).items():
        is_plain_flag = parameter.is_flag and not parameter.secondary_opts
        if not parameter.multiple and not is_plain_flag and option.startswith("--"):
            again = option if not parameter.secondary_opts else parameter.secondary_opts[0]
            done = CliRunner().invoke(build_app(), _line(name, option, again))
            assert (done.exit_code, "is given more than once" in done.output) == (2, True), done.output
        if parameter.type_descriptor.annotation is float or float in get_args(parameter.type_descriptor.annotation):
            needed = [one for needs in (NEEDS.get(name, {}).get(option, ()),) for one in needs]
            for odd in ("nan", "inf"):
                done = CliRunner().invoke(build_app(), _line(name, f"{option}={odd}", *needed[:1]))
                assert done.exit_code == 2, (option, done.output)
        if {int, float} & {(kind := parameter.type_descriptor.annotation), *get_args(kind)}:
            done = CliRunner().invoke(build_app(), _line(name, f"{option}=1_0"))
            is_told = re.search(r"is no number|must be", done.output)
            assert (done.exit_code, bool(is_told)) == (2, True), (option, done.output)


def test_a_wrong_value_is_told_with_what_is_allowed_and_in_no_librarys_words() -> None:
    for wrong, told in {
        "--minutes=ten": "must be a number", "--minutes=0": "must be at least 0.05", "--acks=2": "'2' is not one of",
    }.items():  # fmt: skip
        done = CliRunner().invoke(build_app(), ["estimate", "--bootstrap-server=nowhere:1", wrong])
        assert (done.exit_code, f"'{wrong.partition('=')[0]}': {told}" in done.output) == (2, True), done.output


def test_an_option_whose_help_names_another_one_needs_it() -> None:
    """A new option that says with which other one it counts has its line in the table."""
    missing = set()
    for name, command in COMMANDS.items():
        known = _options(command)
        for option, parameter in known.items():
            others = {one for one in re.findall(r"--[a-z-]+", parameter.help or "") if one in known}
            listed = {*NEEDS.get(name, {}), *EXCLUDES.get(name, {})}
            if others - {*parameter.opts, *parameter.secondary_opts} and not {*parameter.opts, option} & listed:
                missing.add(f"{name} {max(parameter.opts, key=len)}")
    assert missing <= TOLD_ELSEWHERE
