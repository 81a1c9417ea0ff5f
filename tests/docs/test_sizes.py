"""What is read at once is small enough for it: modules, functions, classes, and what functions are given.

Counted are a class's methods without its properties, and what it sets of itself; a value's fields are what it is for.
Arguments are a command's options where Typer reads them, which it takes one by one.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE_LINES, FUNCTION_LINES = 400, 50
METHODS, ATTRIBUTES, ARGUMENTS = 20, 12, 8
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _oversized(path: Path, source: str) -> Iterator[str]:
    lines = len(source.splitlines())
    if lines > MODULE_LINES:
        yield f"{path}: {lines} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            yield from _oversized_function(path, node)
        elif isinstance(node, ast.ClassDef):
            yield from _oversized_class(path, node)


def _oversized_function(path: Path, function: Function) -> Iterator[str]:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if lines > FUNCTION_LINES:
        yield f"{path} {function.name}: {lines} lines"
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    arguments = [one for one in given if one.arg not in ("self", "cls")]
    is_command = any(one.annotation is not None and "typer." in ast.unparse(one.annotation) for one in arguments)
    if len(arguments) > ARGUMENTS and not is_command:
        yield f"{path} {function.name}: {len(arguments)} arguments"


def _oversized_class(path: Path, of: ast.ClassDef) -> Iterator[str]:
    functions = [node for node in of.body if isinstance(node, Function)]
    methods = [one for one in functions if not any("property" in ast.unparse(by) for by in one.decorator_list)]
    if len(methods) > METHODS:
        yield f"{path} {of.name}: {len(methods)} methods"
    attributes = {
        node.attr
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    if len(attributes) > ATTRIBUTES:
        yield f"{path} {of.name}: {len(attributes)} attributes"


def _product() -> Iterator[Path]:
    for room in sorted(ROOT.iterdir()):
        if (room / "__init__.py").is_file() and room.name != "tests":
            yield from sorted(room.rglob("*.py"))


def test_nothing_of_the_product_is_larger_than_one_can_hold_in_mind() -> None:
    files = list(_product())
    assert len(files) > 300
    found = [told for path in files for told in _oversized(path.relative_to(ROOT), path.read_text())]
    assert not found


def test_what_is_too_large_is_found() -> None:
    attributes = "".join(f"        self.a{number} = {number}\n" for number in range(ATTRIBUTES + 1))
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(METHODS))
    arguments = ", ".join(f"a{number}" for number in range(ARGUMENTS + 1))
    source = (
        f"class Large:\n    def __init__(self):\n{attributes}{methods}def many({arguments}):\n" + "    pass\n" * 400
    )
    assert list(_oversized(Path("large.py"), source)) == [
        f"large.py: {len(source.splitlines())} lines",
        "large.py Large: 21 methods",
        "large.py Large: 13 attributes",
        "large.py many: 401 lines",
        "large.py many: 9 arguments",
    ]
