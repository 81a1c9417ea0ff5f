"""A group's options stand where the command takes it, as if they were the command's own."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from cli.option_groups import grouped


@dataclass(frozen=True)
class Place:
    host: Annotated[str, typer.Option(help="Where it is.")]
    port: int = 9092
    tag: Annotated[list[str] | None, typer.Option("--tag", help="May be given several times.")] = None


def app(seen: list[tuple[str, Place, bool]]) -> typer.Typer:
    made = typer.Typer()

    @made.command()
    @grouped
    def reach(
        name: Annotated[str, typer.Argument()],
        place: Place,
        quietly: Annotated[bool, typer.Option("--quietly")] = False,
    ) -> None:
        """Reach a place."""
        seen.append((name, place, quietly))

    return made


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["it", "--host", "a"], ("it", Place("a"), False)),
        (["it", "--host", "a", "--port", "1", "--tag", "x", "--tag", "y", "--quietly"],
         ("it", Place("a", 1, ["x", "y"]), True)),
    ],
)  # fmt: skip
def test_a_command_gets_its_groups_as_values(arguments: list[str], expected: tuple[str, Place, bool]) -> None:
    seen: list[tuple[str, Place, bool]] = []
    assert CliRunner().invoke(app(seen), arguments).exit_code == 0
    assert seen == [expected]


def test_a_field_without_a_default_is_a_required_option_and_help_names_all_in_order() -> None:
    missing = CliRunner().invoke(app([]), ["it"])
    assert missing.exit_code == 2
    assert "--host" in missing.output
    told = CliRunner().invoke(app([]), ["--help"]).output
    places = [told.index(text) for text in ("Reach a place", "--host", "--port", "--tag", "--quietly")]
    assert places == sorted(places)
