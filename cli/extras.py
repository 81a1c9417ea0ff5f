"""What a broker's host does without: the package's extras, and which command needs them."""

from importlib.util import find_spec
from typing import Final

EXTRAS: Final = {
    "report": frozenset({"jinja2", "markupsafe", "matplotlib", "pandas", "pyarrow", "pyspark"}),
    "demo": frozenset({"moto", "pyspark"}),
    "traces": frozenset({"opentelemetry"}),
}
"""For each extra of the package the modules that come with it."""


class MissingExtraError(Exception):
    """The package was installed without what the command needs."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed: this needs remote-wal[{extra}]")


def need_extra(extra: str) -> None:
    """Tell now, not after the command has done half of its work. Raises MissingExtraError."""
    for module in sorted(EXTRAS[extra]):
        if find_spec(module) is None:
            raise MissingExtraError(module, extra)


def missing_extra(error: BaseException) -> MissingExtraError | None:
    """What to install when the error is that a module of an extra is not there."""
    module = (getattr(error, "name", None) or "") if isinstance(error, ModuleNotFoundError) else ""
    top = module.partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules), None)
    return None if extra is None else MissingExtraError(top, extra)
