# SPDX-License-Identifier: Apache-2.0
"""What can be said of Python files without running them, one finding a line: they parse as Python 3.9 does, have a
licence line, lines, functions and files of bearable length; and what the package shows is typed and documented."""

import ast
import sys
from pathlib import Path
from typing import Iterator, List, Union

FOLDERS = ("client/python", "tests")
COLUMNS, FILE_LINES, FUNCTION_LINES = 120, 800, 100
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """Those that are evaluated when the file is run."""
    for f in functions(tree):
        every = f.args.posonlyargs + f.args.args + f.args.kwonlyargs + [f.args.vararg, f.args.kwarg]
        yield from (a.annotation for a in every if a and a.annotation)
        if f.returns:
            yield f.returns
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            yield node.annotation


def lengths(path: Path, text: str, tree: ast.AST) -> Iterator[str]:
    lines = text.splitlines()
    if len(lines) > FILE_LINES:
        yield f"{path} has {len(lines)} lines, the limit is {FILE_LINES}"
    for n, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            yield f"{path}:{n} has {len(line)} columns, the limit is {COLUMNS}"
    for f in functions(tree):
        n = (f.end_lineno or f.lineno) - f.lineno + 1
        if n > FUNCTION_LINES:
            yield f"{f.name} in {path} has {n} lines, the limit is {FUNCTION_LINES}"


def old_python(path: Path, tree: ast.Module) -> Iterator[str]:
    postponed = any(
        isinstance(n, ast.ImportFrom) and n.module == "__future__" and n.names[0].name == "annotations"
        for n in tree.body
    )
    for a in () if postponed else annotations(tree):
        if any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitOr) for n in ast.walk(a)):
            yield f"{path}:{a.lineno} has X | Y in an annotation, which Python 3.9 cannot evaluate"


def shown(path: Path, tree: ast.Module) -> Iterator[str]:
    """Of the package: public functions and classes are typed and documented."""
    for owner in [tree] + [n for n in tree.body if isinstance(n, ast.ClassDef)]:
        for node in owner.body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or node.name[0] == "_":
                continue
            overload = any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)
            if not ast.get_docstring(node) and not overload:
                yield f"{node.name} in {path} has no docstring"
            if not isinstance(node, ast.ClassDef) and node.returns is None:
                yield f"{node.name} in {path} has no type"


def findings(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if "SPDX-License-Identifier: Apache-2.0" not in "".join(text.splitlines()[:2]):
        yield f"{path} has no licence line"
    try:
        tree = ast.parse(text, str(path), feature_version=(3, 9))
    except SyntaxError as e:
        yield f"{path}:{e.lineno} is no Python 3.9: {e.msg}"
        return
    yield from lengths(path, text, tree)
    yield from old_python(path, tree)
    if path.parts[:4] == ("client", "python", "src", "tarn") and path.name[0] != "_" or path.name == "_client.py":
        yield from shown(path, tree)


def main() -> int:
    paths: List[Path] = sorted(p for folder in FOLDERS for p in Path(folder).rglob("*.py"))
    found = [f for path in paths for f in findings(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
