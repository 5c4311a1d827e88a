"""The table of variables in docs/operations.md, made from the settings' own docstrings.

`python -m tests.variables` writes it anew; tests/test_operations.py holds it current.
"""

from pathlib import Path

from pydantic import SecretStr
from pydantic_settings import BaseSettings

from cohort.base.environment import Environment as PlatformEnvironment
from worker.environment import Environment as WorkerEnvironment

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations.md"
START, END = "<!-- variables: made by python -m tests.variables -->\n", "<!-- end of variables -->\n"


def table() -> str:
    """Markdown of both parts' variables."""
    parts = (
        ("The platform (web server, platform worker, `cohort manage`)", PlatformEnvironment),
        ("A worker", WorkerEnvironment),
    )
    return "\n".join(_part(title, settings) for title, settings in parts)


def page_with(rendered: str) -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{rendered}\n{END}{after}"


def _part(title: str, settings: type[BaseSettings]) -> str:
    lines = [f"### {title}", "", "| variable | default | |", "| --- | --- | --- |"]
    for name, field in settings.model_fields.items():
        default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
        shown = f"`{default}`" if default not in (None, "") else ""
        what = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `COHORT_{name.upper()}` | {shown} | {what} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page_with(table()), encoding="utf-8")
