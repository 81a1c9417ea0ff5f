"""`remote-wal deploy`: what an operator installs beside agents, without a checkout, and what Spark's executors need.

The wheel has the folder `deploy` of the checkout, but for what only a checkout can use.
"""

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.connection import Json
from cli.exit_code import ExitCode
from cli.option_groups import command_group
from cli.tables import fail, tell_json

app = command_group("Write units, alerts, the board, policies, a Helm chart, an Ansible role and Terraform.")

PARTS: Final = (
    "ansible", "aws", "grafana", "helm", "image", "prometheus", "spark", "strimzi", "systemd", "terraform",
)  # fmt: skip

_NOT_INSTALLED: Final = ("perf", "tests")
"""Packages of a checkout that are not in the wheel, nor in the zip for Spark."""

Part = Annotated[str, typer.Argument(metavar="[PART]", help=f"{', '.join(PARTS)}, or a file of these. Default: all.")]


@app.command()
def write(
    directory: Annotated[Path, typer.Argument(file_okay=False, help="Made if it is not there.")],
    part: Part = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace files that differ.")] = False,
    json: Json = False,
) -> None:
    """Write the files into a directory. Files there that differ are replaced only with --replace.

    Exits with 4, and writes nothing, if there are such files.
    """
    home, files = _chosen(part, json=json)
    others = [name for name in files if _differs(home / name, directory / name)]
    if others and not replace:
        fail(f"{directory} has other files: {', '.join(others)}. --replace replaces them", ExitCode.REFUSED, json=json)
    for name in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(home / name, directory / name)
    if json:
        tell_json({"directory": str(directory), "written": files})
    else:
        typer.echo(f"{len(files)} files are in {directory}.")


@app.command("spark-zip")
def spark_zip(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The zip; spark_submit.py is written beside it.")],
    json: Json = False,
) -> None:
    """Write our Python code as a zip for spark-submit's --py-files, and the script that runs our commands there."""
    import remote_wal

    root, submit = remote_wal.ROOT, file.with_name("spark_submit.py")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as into:
        into.write(str(remote_wal.__file__), f"{remote_wal.__name__}/__init__.py")
        for package in sorted(path.parent for path in root.glob("*/__init__.py")):
            if package.name not in (*_NOT_INSTALLED, remote_wal.__name__):
                sources = (path for path in package.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
                for source in sorted(sources):
                    into.write(source, source.relative_to(root))
    shutil.copyfile(root / "cli" / submit.name, submit)
    if json:
        tell_json({"written": [str(file), str(submit)]})
    else:
        typer.echo(f"spark-submit --py-files {file} ... {submit} report ...")


def _chosen(part: str, *, json: bool) -> tuple[Path, list[str]]:
    """Return where they lie, and the names of the files of this part, or of all."""
    home = Path(__file__).parents[2] / "deploy"  # below remote_wal in the wheel, beside `cli` in a checkout
    known = sorted(_files(home))
    files = [name for name in known if not part or name == part or name.startswith(f"{part.rstrip('/')}/")]
    if not files:
        fail(f"there is no {part} in {', '.join(PARTS)}", ExitCode.USAGE, json=json)
    return home, files


def _files(home: Path) -> Iterator[str]:
    for part in PARTS:
        for path in (home / part).rglob("*"):
            if path.is_file() and path.parent.name != "__pycache__":
                yield path.relative_to(home).as_posix()


def _differs(source: Path, written: Path) -> bool:
    return written.exists() and (not written.is_file() or written.read_bytes() != source.read_bytes())
