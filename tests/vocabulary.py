"""Refuses names in product code that docs/vocabulary.md says are not used: `python -m tests.vocabulary`."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("grpo_core", "worker", "platform")


def banned() -> set[str]:
    page = (ROOT / "docs/vocabulary.md").read_text(encoding="utf-8")
    listed = re.search(r"^## Names that are not used.*?```\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert listed, "docs/vocabulary.md lists the names in a block of its last section"
    return set(listed[1].split())


def bound(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each variable, attribute, argument, function and class that the source binds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def main() -> int:
    names, refused = banned(), 0
    for file in sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")):
        for line, name in bound(file.read_text(encoding="utf-8")):
            if name.lstrip("_") in names:
                refused += 1
                print(f"{file.relative_to(ROOT)}:{line}: {name} is not used as a name (docs/vocabulary.md)")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
