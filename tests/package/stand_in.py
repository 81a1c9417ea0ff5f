"""What stands in for a command that runs until it is ended, and programs that are deployed as modules."""

from pathlib import Path
from types import ModuleType

FOR_EVER = "while kill -0 $PPID 2>/dev/null; do sleep 0.01; done"
"""Shell that waits for a signal, but no longer than what started it lives."""


def program(file: Path) -> ModuleType:
    """The program as a module, without byte code beside it: that would be deployed."""
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    exec(compile(file.read_text(), file, "exec"), module.__dict__)
    return module
