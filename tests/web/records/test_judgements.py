"""People's judgements against the verifier: the figures by hand-worked cases, and judgements made after the seal as
news of which the next version of the record holds the figures, checked from the card alone."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.evidence.canonical import canonical
from cohort.evidence.judgements import Judgement, read_judgements, review_figures
from cohort.evidence.verify import verify_card
from cohort.records.models import Record
from cohort.records.news import News
from cohort.records.services import NothingNew, record_seal
from cohort.review.models import Sample
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from cohort.runs.services import run_retry
from tests.factories import sealed_run
from tests.factories.small_cards import Log, Sealed, card, check, data_files, faults, lines
from tests.web.pages import html
from tests.web.records.attempts import failed_after_two_steps
from tests.web.records.records import accepted, entry, files_of, platform_keys, saved
from tests.web.records.records import lines as lines_of


def judged(
    verdict: str, passed: bool | None, *, step: int = 1, sample: int = 0, by: int = 1, **classes: Any
) -> Judgement:
    return Judgement(step, 0, sample, by, verdict, passed, classes)


def cells(right: int, paid: int, unpaid: int, wrong: int, *, step: int = 1) -> list[Judgement]:
    """So many samples of each cell, all of one step."""
    counts = ((True, "right", right), (True, "wrong", paid), (False, "right", unpaid), (False, "wrong", wrong))
    pairs = [(passed, verdict) for passed, verdict, many in counts for _ in range(many)]
    return [judged(verdict, passed, step=step, sample=at) for at, (passed, verdict) in enumerate(pairs)]


def test_rates_and_kappa_worked_by_hand() -> None:
    """8 both right, 2 rewarded though wrong, 1 unrewarded though right, 9 both wrong. Agreement 17/20; by chance
    (10/20 · 9/20 + 10/20 · 11/20) = 0.5, so kappa = (0.85 − 0.5) / 0.5 = 0.7. Of 10 passed 2 are wrong, of 10 that did
    not pass 1 is right. Intervals: Newcombe 1998, method 3."""
    verifier = review_figures(cells(8, 2, 1, 9))["verifier"]
    assert verifier["kappa"]["value"] == pytest.approx(0.7)
    for name, count, n, low, high in (
        ("agreement", 17, 20, 0.6396, 0.9476),
        ("false_positives", 2, 10, 0.0567, 0.5098),
        ("false_negatives", 1, 10, 0.0179, 0.4042),
        ("passed", 10, 20, 0.2993, 0.7007),
        ("right", 9, 20, 0.2582, 0.6579),
    ):
        assert (verifier[name]["count"], verifier[name]["n"], verifier[name]["share"]) == (count, n, count / n)
        assert (verifier[name]["low"], verifier[name]["high"]) == pytest.approx((low, high), abs=5e-4), name


def test_a_rate_of_nothing_and_a_kappa_without_variation_are_null() -> None:
    only_passed = review_figures(cells(3, 0, 0, 0))["verifier"]
    assert (only_passed["false_negatives"], only_passed["kappa"]) == (None, None)
    assert only_passed["false_positives"]["count"] == 0
    assert review_figures([])["verifier"] is None


def test_the_majority_of_reviewers_counts_and_what_is_undecided_is_compared_with_nothing() -> None:
    rows = [judged("wrong", True, by=1), judged("wrong", True, by=2), judged("right", True, by=3)]
    rows += [judged("right", True, sample=1, by=1), judged("wrong", True, sample=1, by=2)]
    rows += [judged("right", None, sample=2)]
    figures = review_figures(rows)
    assert (figures["reviewers"], figures["judgements"], figures["samples"], figures["disagreeing"]) == (3, 6, 3, 2)
    assert figures["judged"] == {"right": 1, "wrong": 1, "unsure": 1}
    assert figures["verifier"]["agreement"]["n"] == 1
    assert figures["verifier"]["paid_though_wrong"] == 1


def test_steps_fill_a_bin_until_it_has_ten_and_the_rest_joins_the_last() -> None:
    rows = [row for step, many in ((1, 6), (2, 5), (7, 10), (8, 3)) for row in cells(many, 0, 0, 0, step=step)]
    bins = review_figures(rows)["by_step"]
    assert [(part["first"], part["last"], part["agreement"]["n"]) for part in bins] == [(1, 2, 11), (7, 8, 13)]


def test_many_judgements_make_twelve_bins_at_most() -> None:
    rows = [row for step in range(1, 401) for row in cells(1, 0, 0, 0, step=step)]
    bins = review_figures(rows)["by_step"]
    assert len(bins) <= 12
    assert sum(part["agreement"]["n"] for part in bins) == 400


def test_a_sample_counts_in_each_of_its_classes() -> None:
    rows = [
        judged("wrong", True, sample=0, finish_reason=["length"], label=["reward hack", "unsafe"]),
        judged("right", True, sample=1, finish_reason=["eos"], label=[]),
    ]
    rows_of_classes = [
        (row["kind"], row["name"], row["false_positives"]["count"], row["false_positives"]["n"])
        for row in review_figures(rows)["by_class"]
    ]
    assert rows_of_classes == [
        ("finish_reason", "eos", 0, 1),
        ("finish_reason", "length", 1, 1),
        ("label", "reward hack", 1, 1),
        ("label", "unsafe", 1, 1),
    ]


GOOD = judged("wrong", True, finish_reason=["eos"]).line()


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1}, {"sample": True}, {"verdict": ""}, {"verdict": "fine"}, {"passed": 1}, {"classes": {"odd": []}},
        {"classes": {"label": "x"}}, {"classes": {"label": ["x" * 501]}},
    ],
)  # fmt: skip
def test_a_line_that_is_no_judgement_is_refused(changes: dict[str, Any]) -> None:
    assert read_judgements([GOOD]) == [Judgement.from_line(GOOD)]
    with pytest.raises((TypeError, ValueError)):
        read_judgements([{**GOOD, **changes}])


def test_lines_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        read_judgements([GOOD, GOOD])
    with pytest.raises(ValueError, match="different verdicts of the verifier"):
        read_judgements([GOOD, {**GOOD, "reviewer": 2, "passed": False}])


# ---------------------------------------------------------------------- in a card


def with_judgements(rows: list[Judgement], figures: dict[str, Any] | None) -> Sealed:
    def change(document: dict[str, Any]) -> None:
        document["sections"]["oversight"]["human_review"]["value"] = figures

    files = data_files()
    if rows:
        files["judgements.jsonl"] = ("downstream", lines(row.line() for row in rows))
    return Sealed(files, change=change)


ROWS = cells(8, 2, 1, 9)


def test_the_check_computes_every_rate_again_from_the_judgements() -> None:
    report = check(card(Log(), with_judgements(ROWS, review_figures(ROWS))))
    (line,) = [check.detail for check in report.checks if check.name == "human review"]
    assert report.accepted
    assert "20 judgements of 20 completions" in line
    public = check(card(Log(), with_judgements(ROWS, review_figures(ROWS)), audience="public"))
    assert {check.status for check in public.checks if check.name == "human review"} == {"withheld"}


FIGURES = review_figures(ROWS)
PATHS = [("verifier", name, part) for name, part in product(("agreement", "false_positives"), ("share", "low", "high"))]


@pytest.mark.parametrize(
    "path", [*PATHS, ("verifier", "kappa", "value"), ("by_step", 0, "false_negatives", "share"), ("samples",)]
)
def test_an_altered_rate_is_noticed(path: tuple[str | int, ...]) -> None:
    altered: Any = json.loads(canonical(FIGURES))
    inside = altered
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] += 0.01
    assert set(faults(check(card(Log(), with_judgements(ROWS, altered))))) == {"human review"}


def test_figures_without_judgements_and_a_changed_judgement_are_noticed() -> None:
    assert set(faults(check(card(Log(), with_judgements([], FIGURES))))) == {"human review"}
    earlier = {name: value for name, value in FIGURES.items() if name != "by_step"}
    assert check(card(Log(), with_judgements([], earlier))).accepted, "a card of a release that kept no judgements"
    changed = [judged("right", True), *ROWS[1:-1]]
    assert set(faults(check(card(Log(), with_judgements(changed, FIGURES))))) == {"human review"}


# ---------------------------------------------------------------------- news after the seal


@pytest.fixture
def run(launch: Callable[..., Run]) -> Run:
    return sealed_run.finished(launch())


def judge(run: Run, actor: User, *verdicts: str, note: str = "") -> None:
    """The first samples of the run, of which every second is rewarded."""
    samples = Sample.objects.filter(group__run=run).order_by("group__step", "group__index", "index")
    for sample, verdict in zip(samples, verdicts, strict=False):
        sample_judge(sample=sample, actor=actor, verdict=verdict, note=note)


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
def test_what_is_judged_after_the_seal_is_news_and_the_next_version_holds_it(
    sealed: Record, rita: User, alice: User, client_for: Callable[[User], Client], tmp_path: Path
) -> None:
    run, reviewer = sealed.run, client_for(rita)
    address = f"/p/ours/runs/{run.pk}/record/"
    assert not News(sealed)
    judge(run, rita, "wrong", "wrong", "wrong", "right", note="the answer is 17, says rita")
    judge(run, alice, "wrong", "wrong")
    news = News(sealed)
    assert [change.path for change in news.changes] == ["oversight.human_review"]
    assert news.judgements is not None
    assert news.judgements.since == 6
    page = html(reviewer.get(address))
    assert "6 judgements since" in page
    # of the samples with a reward, the second and the fourth, people call one wrong: Wilson of 1 of 2
    assert "false positives 0 of 0 → 1 of 2, 50.0 % [9.5 %, 90.5 %]" in page
    assert "Seal version 2" in page
    second = record_seal(run=run, reason="judged", actor=rita)
    value = entry(second, "oversight.human_review").value
    assert (value["verifier"]["false_positives"]["count"], value["verifier"]["kappa"]["value"]) == (1, 0.5)
    assert not News(second)
    with pytest.raises(NothingNew):
        record_seal(run=run, reason="again")
    report = verify_card(saved(second.card(), tmp_path), platform_keys())
    assert report.accepted
    assert any("6 judgements of 4 completions" in check.detail for check in report.checks)
    for audience in ("public", "downstream", "authority"):
        files = files_of(second.card(audience))
        assert accepted(second.card(audience), tmp_path)
        assert b"rita" not in files["record.json"] + files.get("judgements.jsonl", b""), audience
        assert not any(b"the answer is 17, says rita" in content for content in files.values())
        assert ("judgements.jsonl" in files) is (audience != "public")
    files = files_of(second.card("downstream"))
    assert [line["reviewer"] for line in lines_of(files["judgements.jsonl"])] == [1, 2, 1, 2, 1, 1]
    for copy in ("CARD.md", "card.html"):
        text = files[copy].decode().replace("\\", "")
        assert "false positives 1 of 2, 50.0 % [9.5 %, 90.5 %]" in text
        assert "People against the verifier, by step" in text


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
def test_a_changed_mind_is_news_and_one_changed_back_is_none(sealed: Record, rita: User) -> None:
    judge(sealed.run, rita, "wrong")
    second = record_seal(run=sealed.run, reason="judged")
    judge(sealed.run, rita, "right")
    assert News(second)
    judge(sealed.run, rita, "wrong")
    assert not News(second)


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
def test_judgements_before_the_seal_are_in_the_first_version(run: Run, rita: User, tmp_path: Path) -> None:
    judge(run, rita, "wrong", "right", "unsure")
    first = record_seal(run=run)
    assert entry(first, "oversight.human_review").value["judged"] == {"right": 1, "wrong": 1, "unsure": 1}
    assert not News(first)
    assert accepted(first.card(), tmp_path)


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
def test_a_run_that_goes_on_has_no_news_of_its_last_end(launch: Callable[..., Run], rita: User, alice: User) -> None:
    run = failed_after_two_steps(launch())
    first = record_seal(run=run)
    judge(run, rita, "wrong")
    assert News(first).judgements
    run_retry(run=Run.objects.get(pk=run.pk), actor=alice)
    assert not News(Record.objects.get(pk=first.pk)).judgements
