"""How numbers, times, states and hostile text are shown; every expected value written by hand."""

from datetime import timedelta

import pytest
from django.utils import timezone

from cohort.runs.models import AttemptState, RunState
from cohort.templatetags import cohort as show
from tests.tables import cases
from tests.web.run_page import freeze


@pytest.mark.parametrize(("name", "value", "shown"), cases("pages/filters", "filter", "value", "shown"))
def test_a_filter_shows_a_value(name: str, value: float | None, shown: str) -> None:
    now = timezone.now()
    with freeze(now):
        given = now - timedelta(seconds=value) if name == "ago" and value is not None else value
        found = getattr(show, name)(given)
    assert found.replace("\u00a0", " ") == shown


def test_a_duration_may_be_a_timedelta_and_places_be_chosen() -> None:
    assert show.duration(timedelta(minutes=15)) == "15\u00a0min"
    assert show.fixed(-1.005, 1) == "−1.0"


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
    assert show.visible_text("a\u202eb<") == "a\\u202eb<"
    show.visible("\ud800").encode()  # a lone surrogate can be sent


@pytest.mark.parametrize("state", sorted({*RunState.values, *AttemptState.values}))
def test_every_state_has_a_badge_with_its_word_and_a_sign(state: str) -> None:
    badge = show.state_badge(state)
    assert state.capitalize() in badge
    assert 'aria-hidden="true"' in badge


def test_small_marks() -> None:
    assert show.squares([True, False, None, True]) == (
        '<span class="squares" role="img" aria-label="2 of 4 right, 1 masked or not judged"><i class="right"></i>'
        '<i class="wrong"></i><i class="masked"></i><i class="right"></i></span>'
    )
    assert 'max="1" value="0"' in show.progress(3, 0), "empty while the total is unknown"
    assert 'max="120" value="84"' in show.progress(84, 120)
    assert show.compact_json({"a": [1, "é"]}) == '{"a": [1, "é"]}'
    assert show.compact_json("text") == "text"
