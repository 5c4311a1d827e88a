"""The token view: windows, levels, largest pushes and differences, worked by hand; hostile text; its size."""

import math
import re
import time
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.review.models import Sample
from cohort.runs.models import Run
from cohort.web.review.token_signals import SIGNALS, available, is_uniform, largest, position_curve, scale_of
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_group
from tests.factories.token_rows import columns
from tests.factories.tokens import stored_sample

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training")


def address(sample: Sample) -> str:
    return f"/p/ours/runs/{sample.group.run_id}/groups/{sample.group_id}/samples/{sample.index}/"


def page(client: Client, sample: Sample, **query: Any) -> str:
    response = client.get(address(sample), query)
    assert response.status_code == 200
    return response.content.decode()


def tokens(shown: str) -> list[tuple[str, str, str]]:
    """(classes, id, text) of each token in the strip."""
    strip = shown.partition('id="tokens"')[2].partition('id="token-numbers"')[0]
    return re.findall(
        r'<span class="(tok[^"]*)" id="(t\d+)" title="[^"]*">(.*?)</span>(?=<span class="tok|</div>)', strip, re.DOTALL
    )


# ---------------------------------------------------------------- numbers, by hand


def test_signals_are_made_of_the_columns_a_sample_has() -> None:
    arrays = {
        "token_id": [1, 2, 3],
        "piece": ["a", "b", "c"],
        "sampler_logprob": [-1.0, -2.0, -3.0],
        "in_loss": [True, True, False],
        "advantage": [2.0, -1.0, 4.0],
    }
    assert list(available(arrays)) == ["advantage", "push", "sampler", "mask"]
    assert SIGNALS["push"].values_of(arrays) == [2.0, -1.0, 0.0]  # the last is masked
    arrays |= {"ratio": [1.5, 0.5, 1.0], "clipped": [True, False, False], "policy_logprob": [-1.5, -2.0, -2.5]}
    assert SIGNALS["push"].values_of(arrays) == [0.0, -0.5, 0.0]
    assert SIGNALS["difference"].values_of(arrays) == [0.5, 0.0, -0.5]
    assert SIGNALS["difference"].values_of({**arrays, "old_logprob": [-1.0, -1.0, -1.0]}) == [0.0, -1.0, -2.0]
    assert SIGNALS["ratio"].values_of(arrays) == [math.log(1.5), math.log(0.5), 0.0]
    assert SIGNALS["reference"].values_of({**arrays, "reference_logprob": [-1.0, -2.0, -3.0]}) == [-0.5, 0.0, 0.5]


def test_levels_divide_the_common_values_and_outliers_share_the_last() -> None:
    scale = scale_of(SIGNALS["advantage"], [0.0, 1.0, -2.0, 4.0] + [0.5] * 96 + [-400.0])
    levels = {value: scale.level(value) for value in (0.0, 1.0, -2.0, 4.0, -400.0, 0.5)}
    assert levels == {0.0: "up0", 1.0: "up2", -2.0: "down4", 4.0: "up4", -400.0: "down4", 0.5: "up1"}
    assert [swatch.words for swatch in scale.legend()] == [
        *("below −1.50", "to −1.50", "to −1.00", "to −0.500", "0", "to 0.500", "to 1.00", "to 1.50", "above 1.50")
    ]
    surprise = scale_of(SIGNALS["logprob"], [-4.0, -3.0, -2.0, -1.0, 0.0])
    assert [surprise.level(value) for value in (-4.0, -3.0, -2.0, -1.0, 0.0)] == ["up0", "up1", "up2", "up3", "up4"]
    assert surprise.level(-math.inf) == "none"
    assert scale_of(SIGNALS["advantage"], [0.0, 0.0]).level(0.0) == "up0"


def test_the_largest_come_first_and_ties_by_position() -> None:
    marked = largest([0.0, -3.0, 1.0, 3.0, None], ["a", "b", "c", "d", "e"])
    assert [(token.position, token.piece, token.shown) for token in marked] == [
        (2, "b", "−3.00"),
        (4, "d", "+3.00"),
        (3, "c", "+1.00"),
    ]
    assert [token.position for token in largest([1.0, -3.0], ["a", "b"], sign=1)] == [1]
    assert len(largest([1.0] * 50, ["x"] * 50)) == 20
    assert is_uniform([0.5, 0.5, 0.0])
    assert not is_uniform([0.5, 0.6])


def test_a_curve_has_the_mean_and_the_bounds_of_each_stretch() -> None:
    curve = position_curve([float(at % 2) for at in range(480)], 0, 480)
    assert curve is not None
    assert len(curve.parts) == 240
    assert {(part.low, part.mean, part.high) for part in curve.parts} == {(0.0, 0.5, 1.0)}
    assert position_curve([None, None], 0, 2) is None


# ---------------------------------------------------------------- the page


def test_each_token_has_its_level_its_marks_and_its_numbers(viewer: Client, maker: Maker, run: Run) -> None:
    arrays = columns(
        ["The", " answer", "\n", ""], clipped=[False, True, False, False], in_loss=[True, True, False, True]
    )
    shown = page(viewer, stored_sample(maker, run, arrays), signal="advantage", at=1)
    assert [(classes, text) for classes, _, text in tokens(shown)] == [
        ("tok down2", "The"),
        ("tok up4 clip", " answer"),
        ("tok down2 masked", '<i class="mark">↵</i>\n'),
        ("tok up4", '<i class="mark">id 103</i>'),
    ]
    assert "Ratio: 1&#10;" in shown
    assert "1 clipped" in shown
    assert "1 masked" in shown
    assert '<a href="?signal=entropy' not in shown
    table = page(viewer, stored_sample(maker, run, arrays, step=2), view="table")
    assert len(re.findall(r'<tr id="t\d+">', table)) == 4


def test_a_window_holds_2000_tokens_and_every_token_has_one(viewer: Client, maker: Maker, run: Run) -> None:
    sample = stored_sample(maker, run, columns([f"w{at} " for at in range(4500)]))
    for at, first, last in ((1, 1, 2000), (2000, 1, 2000), (2001, 2001, 4000), (4500, 4001, 4500), (99999, 4001, 4500)):
        shown = tokens(page(viewer, sample, at=at))
        assert (shown[0][1], shown[-1][1], len(shown)) == (f"t{first}", f"t{last}", last - first + 1)
    shown = page(viewer, sample, at=1)
    assert 'id="clipped-after" href="?signal=advantage&amp;at=40#t40"' in shown
    assert 'data-beyond="?signal=advantage&amp;at=2040#t2040"' in shown
    assert "clipped-before" not in shown


def test_ten_thousand_tokens_take_half_a_second_and_a_megabyte(viewer: Client, maker: Maker, run: Run) -> None:
    sample = stored_sample(maker, run, columns([f"word{at % 900} " for at in range(10_000)]))
    page(viewer, sample)
    began = time.perf_counter()
    response = viewer.get(address(sample), {"at": 5000, "signal": "ratio"})
    spent = time.perf_counter() - began
    print(f"{spent:.3f} s, {len(response.content):,} bytes")
    assert len(response.content) < 1_000_000


def test_queries_do_not_grow_with_tokens(viewer: Client, maker: Maker, run: Run) -> None:
    short = stored_sample(maker, run, columns(["a", "b"]))
    long = stored_sample(maker, run, columns(["a"] * 500), step=2)
    counts = []
    for sample in (short, long):
        with CaptureQueriesContext(connection) as executed:
            page(viewer, sample)
        counts.append(len(executed))
    assert counts[0] == counts[1]
    assert counts[0] <= 15


def test_hostile_pieces_are_shown_and_do_nothing(viewer: Client, maker: Maker, run: Run) -> None:
    hostile = [HOSTILE, '"><img src=x>', "\u202e\u200b", "'&#10;\x00</div>"]
    hostile.append("x" * 3000)
    sample = stored_sample(maker, run, columns(hostile))
    for query in ({}, {"view": "table"}):
        shown = page(viewer, sample, **query)
        assert HOSTILE_SHOWN in shown
        assert HOSTILE not in shown
        assert "<img src=x" not in shown
        assert not {"\u202e", "\u200b", "\x00"} & set(shown)
        assert "\\u202e" in shown
        assert "x" * 200 + "… (3,000 characters)" in shown
        assert len(shown) < 60_000


def test_a_sample_without_arrays_says_why_and_how_to_keep_them(viewer: Client, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, 0.0], completion="as it was")
    shown = page(viewer, group.samples.get(index=0))
    assert "No token arrays were kept of this sample." in shown
    assert "This run keeps best, worst, random of the samples of each step." in shown
    assert "as it was" in shown
    assert viewer.get(address(group.samples.get(index=0)).replace("samples/0", "samples/7")).status_code == 404
