"""What pages of rewards draw and compare: histograms, the difference of two versions, source checked while typed."""

from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.reward_versions import difference, source_lines
from cohort.catalog.services import verifier_version_create
from cohort.lab.charts import histogram_drawn, interval_drawn
from cohort.templatetags.lab import call_time

ClientFor = Callable[[User], Client]
CHECK = "/p/ours/rewards/check/"
SOURCE = "def verify(sample):\n    return 1.0\n"


@pytest.fixture
def client(client_for: ClientFor, ours: Project, oscar: User) -> Client:
    return client_for(oscar)


def test_bars_are_as_high_as_their_counts() -> None:
    drawn = histogram_drawn([0.0, 0.5, 1.0], [3, 4])
    assert drawn is not None
    assert [tick.text for tick in drawn.up] == ["0", "2", "4"]
    assert [tick.text for tick in drawn.across] == ["0", "0.250", "0.500", "0.750", "1.00"]
    low, high = drawn.bars
    assert (low.height / high.height, high.y) == (0.75, 8)
    assert low.y + low.height == high.y + high.height == drawn.base
    equal = histogram_drawn([1.0, 1.0], [7])
    assert equal is not None
    assert (len(equal.bars), len(equal.across), equal.up[-1].text) == (1, 1, "10")
    assert histogram_drawn([], []) is None


def test_an_interval_stands_where_its_bounds_are() -> None:
    drawn = interval_drawn(0.25, (0.1, 0.5))
    assert drawn is not None
    assert (drawn.low, drawn.width, drawn.at) == (12.0, 48.0, 30.0)
    assert interval_drawn(None, None) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 µs"), (3.2e-6, "3 µs"), (0.0004, "400 µs"), (0.0021, "2.1 ms"), (1.5, "1.5 s"), (190, "3 min 10 s")],
)
def test_a_call_s_time_is_told_from_microseconds_on(seconds: float, words: str) -> None:
    assert call_time(seconds).replace("\xa0", " ") == words


def test_lines_that_changed_stand_with_their_numbers_and_neighbours() -> None:
    lines = source_lines("\n".join("abcdefgh"), "\n".join("abcdEfghi"))
    assert [(line.sign, line.before, line.after, line.text) for line in lines] == [
        ("…", None, None, ""),
        *((" ", number, number, text) for number, text in ((2, "b"), (3, "c"), (4, "d"))),
        ("−", 5, None, "e"),
        ("+", None, 5, "E"),
        *((" ", number, number, text) for number, text in ((6, "f"), (7, "g"), (8, "h"))),
        ("+", None, 9, "i"),
    ]


def test_versions_are_compared_component_by_component(
    client_for: ClientFor, ours: Project, oscar: User, bob: User
) -> None:
    python = {"name": "own", "kind": "python", "weight": 1.0, "params": {"source": SOURCE}}
    changed = python | {"weight": 0.5, "params": {"source": SOURCE + "# more\n", "memory_mb": 64}}
    specs = (
        {"components": [python]},
        {"components": [{"name": "form", "kind": "r1_format"}, changed], "on_error": "zero"},
    )
    first, second = (verifier_version_create(project=ours, actor=oscar, name="own", spec=spec) for spec in specs)
    found = difference(first, second)
    assert [(field.name, field.before, field.after) for field in found.head] == [("on_error", "mask", "zero")]
    components = {component.name: component for component in found.components}
    assert components["form"].change == "added"
    own = components["own"]
    assert [(field.name, field.before, field.after, field.has_before) for field in own.settings] == [
        ("weight", 1.0, 0.5, True),
        ("memory_mb", None, 64, False),
    ]
    assert [line.text for line in own.sources[0][1] if line.sign == "+"] == ["# more"]
    assert difference(second, second).none
    page = client_for(bob).get(f"/p/ours/rewards/{first.verifier_id}/compare/?from=1&to=2").content.decode()
    assert "# more" in page


# ---------------------------------------------------------------- source as one types


def check(client: Client, source: str, **more: str) -> str:
    sent = {"row": "0", "component-0-kind": "python", "component-0-shown_kind": "python"}
    sent |= {"component-0-p_source": source, **{f"component-0-p_{name}": text for name, text in more.items()}}
    return client.post(CHECK, sent).content.decode()


@pytest.mark.parametrize(
    ("source", "line", "names"),
    [
        ("def verify(sample)\n    return 1", "1", "syntax error"),
        ("x = 1\ndef verify(sample):\n    return (1", "3", "never closed"),
        ("import os\ndef verify(sample):\n    return 1", "1", "os"),
        ("def check(sample):\n    return 1", "2", "verify"),
        ("def verify():\n    return 1", "1", "verify"),
        ("async def verify(sample):\n    return 1", "1", "async"),
        ("", "1", "empty"),
        ("(" * 5000, "1", ""),
        ("#" * 70_001, "1", "bytes"),
    ],
    ids=["syntax", "parenthesis", "import", "name", "arguments", "async", "empty", "deep", "long"],
)
def test_what_is_wrong_is_said_with_its_line(client: Client, source: str, line: str, names: str) -> None:
    page = check(client, source)
    assert f'data-lines="{line} ' in page
    assert names in page


def test_packages_that_are_chosen_may_be_imported(client: Client) -> None:
    source = f"import numpy\n{SOURCE}"
    assert 'data-lines="1 ' in check(client, source)
    assert "It parses" in check(client, source, packages="numpy")


def test_source_is_shown_escaped(client: Client) -> None:
    page = check(client, "<script>alert(1)</script>")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("row", ["", "x", "9" * 40, "-1", "²"])
def test_a_row_that_no_page_sends_is_harmless(client: Client, row: str) -> None:
    for address in (CHECK, "/p/ours/rewards/component/"):
        assert client.post(address, {"row": row}).status_code == 200
