"""How numbers, times, states and hostile text are shown; every expected value written by hand."""

import math
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cohort.runs.models import AttemptState, RunState
from cohort.templatetags import cohort as show
from tests.web.run_page import freeze

NB = "\u00a0"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (1234567, "1,234,567"), (-43, "−43"), (None, "–"), (0.0, "0"), (0.86, "0.860"), (1.0, "1.00"),
        (-0.7749, "−0.775"), (0.9996, "1.00"), (9.996, "10.0"), (41.23, "41.2"), (999.6, "1,000"), (12345.6, "12,346"),
        (0.00123, "0.00123"), (1e-6, "1e−6"), (-2.5e-7, "−2.5e−7"), (math.nan, "not a number"), (-math.inf, "−∞"),
    ],
)  # fmt: skip
def test_num(value: Any, shown: str) -> None:
    assert show.num(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.1, "0.1"), (1.0, "1"), (1e-6, "1e−6"), (3e-4, "0.0003"), (16384, "16,384"), (-0.25, "−0.25"), (None, "–")],
)
def test_exact(value: Any, shown: str) -> None:
    assert show.exact(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.31, "+0.310"), (-43, "−43"), (0, "0"), (0.0, "0"), (7, "+7"), (None, "–")]
)
def test_signed(value: Any, shown: str) -> None:
    assert show.signed(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.777, f"77.7{NB}%"), (1, f"100.0{NB}%"), (0, f"0.0{NB}%"), (-0.5, f"−50.0{NB}%"), (None, "–")],
)
def test_percent(value: Any, shown: str) -> None:
    assert show.percent(value) == shown


def test_fixed_never_shows_a_negative_zero() -> None:
    assert show.fixed(-0.001) == "0.00"
    assert show.fixed(-1.005, 1) == "−1.0"
    assert show.fixed(1234.5) == "1,234.50"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, f"0{NB}s"), (0.014, f"14{NB}ms"), (36, f"36{NB}s"), (190, f"3{NB}min 10{NB}s"), (3600, f"1{NB}h"),
        (7500, f"2{NB}h 5{NB}min"), (273600, f"3{NB}d 4{NB}h"), (timedelta(minutes=15), f"15{NB}min"), (None, "–"),
    ],
)  # fmt: skip
def test_duration(seconds: Any, shown: str) -> None:
    assert show.duration(seconds) == shown


@pytest.mark.parametrize(
    ("back", "shown"),
    [(3.5, f"3{NB}s ago"), (330, f"5{NB}min ago"), (7300, f"2{NB}h ago"), (200000, f"2{NB}d ago"), (-5, "now")],
)
def test_ago(back: float, shown: str) -> None:
    now = timezone.now()
    with freeze(now):
        assert show.ago(now - timedelta(seconds=back)) == shown


def test_ago_of_nothing_is_never() -> None:
    assert show.ago(None) == "never"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, f"0{NB}B"), (999, f"999{NB}B"), (1000, f"1.00{NB}kB"), (3200064, f"3.20{NB}MB"), (999_950, f"1.00{NB}MB")],
)
def test_bytes(size: int, shown: str) -> None:
    assert show.bytes_(size) == shown


def test_digest_keeps_the_whole_value_at_hand() -> None:
    assert show.digest("0123456789abcdef") == '<span class="mono" title="0123456789abcdef">01234567…</span>'
    assert show.digest("") == "–"


@pytest.mark.parametrize("character", ["\u202e", "\u200b", "\x1b", "\u2066", "\ufeff", "\x00", "\u2028", "\u3164"])
def test_unseen_characters_are_seen(character: str) -> None:
    shown = show.visible(f"a{character}b")
    assert character not in shown
    assert f"\\u{ord(character):04x}</span>b" in shown


def test_visible_escapes_and_keeps_what_is_harmless() -> None:
    assert show.visible("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert show.visible("é 漢 😀\n\t−") == "é 漢 😀\n\t−"
    assert show.visible(None) == ""


def test_visible_text_holds_no_markup() -> None:
    assert show.visible_text("a\u202eb<") == "a\\u202eb<"


def test_visible_of_a_lone_surrogate_can_be_sent() -> None:
    show.visible("\ud800").encode()


@pytest.mark.parametrize("state", sorted({*RunState.values, *AttemptState.values}))
def test_every_state_has_a_badge_with_its_word_and_a_sign(state: str) -> None:
    badge = show.state_badge(state)
    assert state.capitalize() in badge
    assert 'aria-hidden="true"' in badge


def test_squares_are_read_out_as_a_count() -> None:
    assert show.squares([True, False, None, True]) == (
        '<span class="squares" role="img" aria-label="2 of 4 right, 1 masked or not judged"><i class="right"></i>'
        '<i class="wrong"></i><i class="masked"></i><i class="right"></i></span>'
    )


def test_progress_is_empty_while_the_total_is_unknown() -> None:
    assert 'max="1" value="0"' in show.progress(3, 0)
    assert 'max="120" value="84"' in show.progress(84, 120)


def test_compact_json() -> None:
    assert show.compact_json({"a": [1, "é"]}) == '{"a": [1, "é"]}'
    assert show.compact_json("text") == "text"
