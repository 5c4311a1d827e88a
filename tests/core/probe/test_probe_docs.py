"""docs/probe.md names every class, with its rule, and its worked table is true."""

import re
from pathlib import Path

import pytest

from grpo_core.probe.catalogue import CLASSES
from grpo_core.probe.verdict import holds, interval

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "probe.md").read_text(encoding="utf-8")


def test_the_page_lists_every_class() -> None:
    listed = dict(
        re.findall(r"^\| `([a-z_0-9]+)` \|.*?\|(?: (any|some|many|told) \|)?$", PAGE.split("## Classes")[1], re.M)
    )
    expected = {one.name: one.rule if one.family == "false_positive" else "" for one in CLASSES if one.about != "hacks"}
    assert listed == expected
    assert f"{len(expected)} and the grader hacks" in PAGE


WORKED = re.findall(r"^\| `(\w+)` \| (\d+) \| ([\d,]+) \| ([\d.]+) to ([\d.]+) % \| (yes|no) \|$", PAGE, re.M)


@pytest.mark.parametrize("row", WORKED)
def test_the_worked_table(row: tuple[str, ...]) -> None:
    rule, paid, n, low, high, held = row
    total = int(n.replace(",", ""))
    found = interval(int(paid), total)
    assert found is not None
    assert (f"{100 * found[0]:.1f}", f"{100 * found[1]:.1f}") == (low, high)
    assert holds(rule, int(paid), total) is (held == "yes")


def test_there_is_a_worked_table() -> None:
    assert len(WORKED) == 7
