"""The package's extras, which a broker's host does without, and the commands that need them."""

from importlib.util import find_spec
from typing import Final

EXTRAS: Final = {
    "report": frozenset({"jinja2", "markupsafe", "matplotlib", "pandas", "pyarrow", "pyspark"}),
    "demo": frozenset({"pyspark"}),
}
"""The modules of each extra of the package."""


class MissingExtraError(Exception):
    """An optional part of the package that the command needs is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed: this needs remote-wal[{extra}]")


def need_extra(extra: str) -> None:
    """Check that an extra is installed, before the command begins its work. Raises MissingExtraError."""
    for module in sorted(EXTRAS[extra]):
        if find_spec(module) is None:
            raise MissingExtraError(module, extra)


def missing_extra(error: BaseException) -> MissingExtraError | None:
    """Return the error that names the missing extra if `error` is that one of its modules is missing; else None."""
    module = (getattr(error, "name", None) or "") if isinstance(error, ModuleNotFoundError) else ""
    top = module.partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules), None)
    return None if extra is None else MissingExtraError(top, extra)
