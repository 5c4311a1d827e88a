"""What pages of rewards draw and compare: histograms, the difference of two versions, source checked while typed."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.reward_versions import difference, source_lines
from cohort.catalog.services import verifier_version_create
from cohort.lab.charts import histogram_drawn, interval_drawn
from cohort.templatetags.lab import call_time

ClientFor = Callable[[User], Client]
BEFORE = "a\nb\nc\nd\ne\nf\ng\nh\n"
AFTER = "a\nb\nc\nd\nE\nf\ng\nh\ni\n"


def spec(**component: object) -> dict[str, object]:
    return {"components": [{"name": "own", "kind": "python", **component}]}


# ---------------------------------------------------------------- drawings


def test_bars_are_as_high_as_their_counts() -> None:
    drawn = histogram_drawn([0.0, 0.5, 1.0], [3, 4])
    assert drawn is not None
    assert [tick.text for tick in drawn.up] == ["0", "2", "4"]
    assert [tick.text for tick in drawn.across] == ["0", "0.250", "0.500", "0.750", "1.00"]
    low, high = drawn.bars
    assert (low.height / high.height, high.y) == (0.75, 8)
    assert low.y + low.height == high.y + high.height == drawn.base


def test_equal_rewards_are_one_bar_and_none_is_nothing() -> None:
    drawn = histogram_drawn([1.0, 1.0], [7])
    assert drawn is not None
    assert len(drawn.bars) == len(drawn.across) == 1
    assert drawn.up[-1].text == "10"
    assert histogram_drawn([], []) is None


def test_an_interval_stands_where_its_bounds_are() -> None:
    drawn = interval_drawn(0.25, (0.1, 0.5))
    assert drawn is not None
    assert (drawn.low, drawn.width, drawn.at) == (12.0, 48.0, 30.0)
    assert interval_drawn(None, None) is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 µs"), (3.2e-6, "3 µs"), (0.0004, "400 µs"), (0.0021, "2.1 ms"), (1.5, "1.5 s"), (190, "3 min 10 s")],
)
def test_a_call_s_time_is_told_from_microseconds_on(seconds: float, said: str) -> None:
    assert call_time(seconds).replace("\xa0", " ") == said


# ---------------------------------------------------------------- two versions


def test_lines_that_changed_stand_with_their_numbers_and_neighbours() -> None:
    told = [(line.sign, line.before, line.after, line.text) for line in source_lines(BEFORE, AFTER)]
    assert told == [
        ("…", None, None, ""),
        (" ", 2, 2, "b"),
        (" ", 3, 3, "c"),
        (" ", 4, 4, "d"),
        ("−", 5, None, "e"),
        ("+", None, 5, "E"),
        (" ", 6, 6, "f"),
        (" ", 7, 7, "g"),
        (" ", 8, 8, "h"),
        ("+", None, 9, "i"),
    ]


def test_versions_are_compared_component_by_component(
    client_for: ClientFor, ours: Project, oscar: User, bob: User
) -> None:
    make = lambda told: verifier_version_create(project=ours, actor=oscar, name="own", spec=told)  # noqa: E731
    source = "def verify(sample):\n    return 1.0\n"
    first = make(spec(weight=1.0, params={"source": source}))
    second = make(
        {
            "components": [
                {"name": "form", "kind": "r1_format"},
                {
                    "name": "own",
                    "kind": "python",
                    "weight": 0.5,
                    "params": {"source": source + "# more\n", "memory_mb": 64},
                },
            ],
            "on_error": "zero",
        }
    )
    found = difference(first, second)
    assert [(one.name, one.before, one.after) for one in found.head] == [("on_error", "mask", "zero")]
    changed = {one.name: one for one in found.components}
    assert changed["form"].change == "added"
    own = changed["own"]
    assert [(one.name, one.before, one.after, one.has_before) for one in own.settings] == [
        ("weight", 1.0, 0.5, True),
        ("memory_mb", None, 64, False),
    ]
    assert [line.text for line in own.sources[0][1] if line.sign == "+"] == ["# more"]
    assert difference(second, second).none
    page = client_for(bob).get(f"/p/ours/rewards/{first.verifier_id}/compare/?from=1&to=2").content.decode()
    assert "# more" in page
    assert re.search(r'<span class="sr-only">added</span>', page)


# ---------------------------------------------------------------- source as one types


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("def verify(sample)\n    return 1", "1", "syntax error"),
        ("x = 1\ndef verify(sample):\n    return (1", "3", "was never closed"),
        ("import os\ndef verify(sample):\n    return 1", "1", "os"),
        ("def check(sample):\n    return 1", "2", "verify"),
        ("def verify():\n    return 1", "1", "verify"),
        ("async def verify(sample):\n    return 1", "1", "async"),
        ("", "1", "empty"),
        ("(" * 5000, "1", ""),
        ("#" * 70_001, "1", "bytes"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    client_for: ClientFor, ours: Project, oscar: User, source: str, line: str, said: str
) -> None:
    sent = {
        "row": "0",
        "component-0-kind": "python",
        "component-0-shown_kind": "python",
        "component-0-p_source": source,
    }
    page = client_for(oscar).post("/p/ours/rewards/check/", sent).content.decode()
    assert f"line {line}" in page
    assert f'data-lines="{line} ' in page
    assert said in page


def test_packages_that_are_chosen_may_be_imported(client_for: ClientFor, ours: Project, oscar: User) -> None:
    source = "import numpy\ndef verify(sample):\n    return 1"
    sent = {
        "row": "0",
        "component-0-kind": "python",
        "component-0-shown_kind": "python",
        "component-0-p_source": source,
    }
    client = client_for(oscar)
    assert "numpy" in client.post("/p/ours/rewards/check/", sent).content.decode()
    allowed = client.post("/p/ours/rewards/check/", sent | {"component-0-p_packages": "numpy"}).content.decode()
    assert "It parses" in allowed


def test_source_is_shown_escaped(client_for: ClientFor, ours: Project, oscar: User) -> None:
    sent = {"row": "0", "component-0-kind": "python", "component-0-shown_kind": "python"}
    page = client_for(oscar).post(
        "/p/ours/rewards/check/", sent | {"component-0-p_source": "<script>alert(1)</script>"}
    )
    assert b"<script>" not in page.content
    assert b"&lt;script&gt;" in page.content


@pytest.mark.parametrize("row", ["", "x", "9" * 40, "-1", "²"])
def test_a_row_that_no_page_sends_is_harmless(client_for: ClientFor, ours: Project, oscar: User, row: str) -> None:
    assert client_for(oscar).post("/p/ours/rewards/check/", {"row": row}).status_code == 200
    assert client_for(oscar).post("/p/ours/rewards/component/", {"row": row}).status_code == 200
