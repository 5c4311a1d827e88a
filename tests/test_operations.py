"""docs/operations.md names every variable (tests/e2e/test_embedded_demo.py: and all that lies in a home)."""

import re

from tests.variables import PAGE, page_with, table


def test_the_table_of_variables_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with(table()), "run: python -m tests.variables"


def test_every_variable_says_what_it_is_for() -> None:
    rows = re.findall(r"^\| `(COHORT_\w+)` \|.*\| (.*) \|$", table(), re.MULTILINE)
    assert len(rows) > 15
    assert [name for name, what in rows if not what] == []


def test_every_variable_in_the_text_is_one_of_the_table() -> None:
    known = set(re.findall(r"`(COHORT_\w+)`", table()))
    assert sorted(set(re.findall(r"COHORT_[A-Z_]+\b", PAGE.read_text(encoding="utf-8"))) - known) == []
