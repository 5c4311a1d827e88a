"""The full-text search of a run's completions: what is indexed when, what fits, and that no deleted text is found."""

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.accounts.models import User
from cohort.records.traces.redaction import samples_redact
from cohort.review import words
from cohort.review.filters import SampleFilter
from cohort.review.models import Group, SampleWords, WordsPosition
from cohort.review.word_index import words_index
from cohort.review.words import unindexed_from
from cohort.runs.models import Attempt, Run
from tests.factories.runs import HOSTILE, Maker, add_group, gone_on
from tests.web.run_page import page_of
from tests.web.run_page import words as shown


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training", sampling={"group_size": 2, "prompts_per_step": 3})


@pytest.fixture
def attempt(maker: Maker, run: Run) -> Attempt:
    return maker.attempt(run)


def texts(attempt: Attempt, *completions: str, step: int = 1, index: int = 0) -> Group:
    """A group with these completions."""
    group = add_group(attempt, [1.0] * len(completions), step=step, index=index)
    for sample, completion in zip(group.samples.order_by("index"), completions, strict=True):
        sample.completion = completion
        sample.save()
    return group


def hits(run: Run, text: str, **other: str) -> list[str]:
    """Completions that fit, by step and index."""
    rows = SampleFilter.parse({"text": text, **other}).samples(run)
    return list(rows.order_by("step", "group__index", "index").values_list("completion", flat=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("answer", [0, 1]),
        ("ANSWER is", [0, 1]),
        ("answer -42", [1]),
        ('"answer is 42"', [0]),
        ('"is answer"', []),
        ('answer -"is 43"', [0]),
        ("ans", []),
        ("4", []),
        ("\\boxed{42}", [2]),
        ("boxed 42", [2]),
        ('"-42"', [3]),
        ("3.14", [4]),
        ("14", [4]),
        ("straße", [5]),
        ("STRASSE", [5]),
        ("型", [6]),
        ("模型", [6]),
        ("型模", []),
        ("∑", [7]),
        ("hidden", [8]),
        ("coloured", [9]),
        ("ｗｉｄｅ", [10]),
        ("first line", [11]),
        ('"first line"', [11]),
        ("-answer -42 -boxed", [4, 5, 6, 7, 8, 9, 10, 11]),
    ],
)
def test_what_fits(run: Run, attempt: Attempt, text: str, expected: list[int]) -> None:
    completions = [
        "The answer is 42.",
        "the Answer is 43",
        "so \\boxed{42}",
        "it is -42",
        "pi=3.14",
        "Die Straße",
        "大模型训练",
        "∑ x",
        "h\u200bi\ufe0fd\u3164d\U000e0041en",
        "\x1b[31mcoloured\x1b[0m",
        "wide",
        "first\n  line",
    ]
    texts(attempt, *completions)
    words_index()
    assert hits(run, text) == [completions[number] for number in expected]


@pytest.mark.parametrize("text", ["->", "x" * 201, '""', "-"])
def test_what_cannot_be_searched_for_is_refused(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SampleFilter.parse({"text": text})
    assert [*caught.value.error_dict] == ["text"]


def test_a_search_sees_what_was_indexed_and_says_from_where_it_does_not(run: Run, attempt: Attempt) -> None:
    assert unindexed_from(run) is None
    for step in (1, 2, 3):
        texts(attempt, "needle", step=step)
    assert unindexed_from(run) == 1
    assert hits(run, "needle") == []
    assert words_index() == 3
    assert unindexed_from(run) is None
    texts(attempt, "needle again", step=4)
    assert unindexed_from(run) == 4
    assert len(hits(run, "needle")) == 3
    assert words_index() == 1
    assert words_index() == 0
    assert len(hits(run, "needle")) == 4


def test_a_round_that_was_cut_off_continues(run: Run, attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.review.word_index.GROUPS", 2)
    for step in range(1, 6):
        texts(attempt, "needle", step=step)
    assert words_index(batches=1) == 2
    assert unindexed_from(run) == 3
    assert words_index() == 3
    assert len(hits(run, "needle")) == 5
    assert WordsPosition.objects.get().seq == attempt.acked_seq


def test_only_this_run_and_only_what_is_current(maker: Maker, run: Run, attempt: Attempt) -> None:
    texts(attempt, "needle one", step=1)
    texts(attempt, "needle lost", step=2)
    Attempt.objects.filter(pk=attempt.pk).update(state="lost")
    second = maker.attempt(run)
    gone_on(second, 1)
    texts(second, "needle two", step=2)
    other = maker.run("other", state="training")
    texts(maker.attempt(other), "needle elsewhere")
    words_index()
    assert hits(run, "needle") == ["needle one", "needle two"]
    assert hits(other, "needle") == ["needle elsewhere"]


def test_text_combines_with_the_other_filters_and_orders(run: Run, attempt: Attempt) -> None:
    texts(attempt, "needle a", "hay", step=1)
    texts(attempt, "needle b", "needle c", step=2)
    words_index()
    assert hits(run, "needle", step_min="2") == ["needle b", "needle c"]
    rows = SampleFilter.parse({"text": "needle", "sort": "-step"}).ordered(run)
    assert [row.completion for row in rows] == ["needle b", "needle c", "needle a"]


def test_a_deleted_text_is_not_found_indexed_before_or_after(run: Run, attempt: Attempt, oscar: User) -> None:
    before = texts(attempt, "secret one", "secret two", step=1)
    words_index()
    after = texts(attempt, "secret three", "secret four", step=2)
    for group in (before, after):
        samples_redact(run=run, samples=[group.samples.get(index=0)], actor=oscar, reason="private")
    words_index()
    assert hits(run, "secret") == ["secret two", "secret four"]
    assert hits(run, "one") == hits(run, "three") == []
    assert SampleWords.objects.count() == 2, "of a deleted text not even hashes of its words are left"


def test_hostile_texts_are_indexed_whole(run: Run, attempt: Attempt) -> None:
    line = "a" * 1_000_000
    many = " ".join(f"w{number}" for number in range(60_000))
    texts(attempt, HOSTILE, line, many, "", "\u200b\u202e", "' OR 1=1; {1,2} \\")
    assert words_index() == 6
    assert hits(run, "script") == [HOSTILE]
    assert hits(run, '"<script>alert(1)</script>"') == [HOSTILE]
    assert hits(run, "w0 w59999") == [many]
    assert hits(run, "{1,2}") == ["' OR 1=1; {1,2} \\"]
    assert hits(run, '"a b" -w1') == []


@pytest.mark.parametrize("many", [4, 1000])
def test_of_more_than_one_search_finds_the_earliest_are_shown_and_the_step_is_said(
    run: Run, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Whether so many have the words that they are looked at one by one, or are read from the index."""
    monkeypatch.setattr(words, "MANY", many)
    monkeypatch.setattr(words, "MOST_SAMPLES", 4)
    monkeypatch.setattr(words, "MOST_READ", 4)
    monkeypatch.setattr(words, "_AT_ONCE", 2)
    for step in range(1, 7):
        texts(attempt, f"needle in {step}", "hay in needle", step=step)
    texts(attempt, "nothing", step=7)
    words_index()

    def search(text: str, **other: str) -> tuple[list[str], int | None]:
        samples = SampleFilter.parse({"text": text, "sort": "step", **other})
        matches = samples.text_matches(run)
        assert matches is not None
        return [row.completion for row in samples.ordered(run)], matches.through

    assert search("needle") == (["needle in 1", "hay in needle", "needle in 2", "hay in needle"], 2)
    assert search("needle -hay") == ([f"needle in {step}" for step in range(1, 5)], 4)
    assert search('"needle in"') == (["needle in 1", "needle in 2"], 2)
    assert search('"needle in"', step_min="5") == (["needle in 5", "needle in 6"], None)
    assert search("needle", step_min="6") == (["needle in 6", "hay in needle"], None)


def test_a_search_costs_the_same_however_many_fit(run: Run, attempt: Attempt) -> None:
    texts(attempt, "needle", step=1)
    words_index()
    with CaptureQueriesContext(connection) as few:
        hits(run, '"needle"')
    for step in range(2, 30):
        texts(attempt, "needle", "needle", step=step)
    words_index()
    with CaptureQueriesContext(connection) as many:
        hits(run, '"needle"')
    assert len(few) == len(many)


def test_the_beat_schedules_the_task() -> None:
    from cohort.background import tasks
    from cohort.base.celery_app import app

    assert app.conf.beat_schedule["index_words"]["task"] == tasks.index_words.name


def test_the_page_of_samples_searches_and_says_what_it_could_not_see(
    viewer: Client, run: Run, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts(attempt, "needle", "hay", step=1)
    words_index()
    texts(attempt, "needle later", "hay", step=2)
    text = shown(page_of(viewer, run, "samples/", text="needle"))
    assert "text: needle" in text
    assert "showing 1 of 1 that fit" in text
    assert "The search sees steps before 2" in text
    words_index()
    text = shown(page_of(viewer, run, "samples/", text="needle"))
    assert "showing 2 of 2 that fit" in text
    assert "The search sees" not in text
    monkeypatch.setattr(words, "MOST_SAMPLES", 1)
    stopped = page_of(viewer, run, "samples/", text="needle")
    assert "The search went as far as step 1" in shown(stopped)
    assert '<a href="?step_min=1&amp;text=needle">Search on from there</a>' in stopped
    refused = shown(page_of(viewer, run, "samples/", text="->"))
    assert "Nothing was looked for" in refused
    assert "has no word" in refused
