"""What records say of re-scores: the second reward, its steps and the agreement by a hand-worked case, in every copy of
a card; a re-score that finishes after the seal as news; and the offline check, which computes the agreement again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.catalog.models import VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.records.cards import issue, markdown, pdf
from cohort.records.models import Record
from cohort.records.news import News
from cohort.records.sections.rescored import rescored as rescore_entries
from cohort.records.services import NothingNew, record_seal
from cohort.runs.models import Attempt, Run
from grpo_core.stats.agreement import agreement_figures
from tests.factories import rescores as factory
from tests.factories import sealed_run
from tests.factories.documents import entry as answer
from tests.factories.documents import reading
from tests.factories.runs import HOSTILE, Maker
from tests.factories.small_cards import Log, Sealed, card, check, faults
from tests.web.pages import html
from tests.web.records.records import accepted, entry, files_of
from tests.web.records.test_card_copies import pdf_text


def second(run: Run, name: str = "last number") -> VerifierVersion:
    return verifier_version_create(project=run.project, actor=run.created_by, name=name, spec=factory.NUMBER)


@pytest.mark.django_db
def test_the_entry_of_a_hand_worked_rescore(maker: Maker, alice: User) -> None:
    """tests/factories/rescores.py: right by both 2, by the first alone 2, by the second alone 1, by neither 3. They
    agree on 5 of 8; Wilson of 5 of 8 is 30.6 % to 86.3 %; by chance 4/8 · 3/8 + 4/8 · 5/8 = 0.5, so κ = 0.25."""
    run = factory.ended_run(maker)
    rescore = factory.rescored(run, factory.second(maker), alice)
    (made,) = rescore_entries(run)
    assert made["confusion"] == {
        "right": {"right": 2, "wrong": 2, "neither": 0},
        "wrong": {"right": 1, "wrong": 3, "neither": 0},
        "neither": {"right": 0, "wrong": 0, "neither": 0},
    }
    assert (made["reward"], made["version"], made["sha256"]) == ("second", 1, rescore.version.digest)
    assert (made["steps"], made["samples"], made["deleted"], made["superseded"]) == ({"first": 1, "last": 3}, 8, 0, 0)
    assert (made["agreement"]["count"], made["agreement"]["n"]) == (5, 8)
    assert (made["agreement"]["low"], made["agreement"]["high"]) == pytest.approx((0.306, 0.863), abs=5e-4)
    assert made["kappa"]["value"] == pytest.approx(0.25)


@pytest.mark.django_db
def test_samples_that_were_superseded_since_are_counted(maker: Maker, alice: User) -> None:
    run = factory.ended_run(maker)
    factory.rescored(run, factory.second(maker), alice)
    Attempt.objects.filter(run=run).update(valid_through=1)
    assert rescore_entries(run)[0]["superseded"] == 4, "the two groups of two of steps 2 and 3"


# ---------------------------------------------------------------------- news after the seal


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
def test_a_rescore_after_the_seal_is_news_and_the_next_version_lists_it(
    sealed: Record, rita: User, client_for: Callable[[User], Client], tmp_path: Path
) -> None:
    run = sealed.run
    assert entry(sealed, "oversight.rescores").text == "not scored again"
    rescore = factory.rescored(run, second(run, f"numbers {HOSTILE}"), rita)
    assert len(News(sealed).rescores) == 1
    page = html(client_for(rita).get(f"/p/ours/runs/{run.pk}/record/"))
    assert "1 re-score finished since" in page
    assert f"{rescore.done} samples scored again; both rewards agree on" in page
    assert "<script>alert" not in page
    version = record_seal(run=run, reason="scored again", actor=rita)
    made = entry(version, "oversight.rescores")
    assert [(row["rescore"], row["sha256"]) for row in made.value] == [(rescore.pk, rescore.version.digest)]
    assert rescore.version.digest[:12] in made.text
    assert not News(version)
    with pytest.raises(NothingNew):
        record_seal(run=run, reason="again")
    for audience in ("public", "downstream", "authority"):
        assert accepted(version.card(audience), tmp_path)
        files = files_of(version.card(audience))
        for copy in ("CARD.md", "card.html"):
            assert (b"Second reward against the first" in files[copy]) is (audience != "public")
            assert b" <script>alert" not in files[copy]


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
def test_a_rescore_before_the_seal_is_in_the_first_version(launch: Callable[..., Run], rita: User) -> None:
    run = sealed_run.finished(launch())
    factory.rescored(run, second(run), rita)
    first = record_seal(run=run)
    assert [row["reward"] for row in entry(first, "oversight.rescores").value] == ["last number"]
    assert not News(first)


# ---------------------------------------------------------------------- in a card


CONFUSION = {
    "right": {"right": 2, "wrong": 2, "neither": 1},
    "wrong": {"right": 1, "wrong": 3, "neither": 0},
    "neither": {"right": 0, "wrong": 0, "neither": 4},
}
RECORDED: dict[str, Any] = {
    "rescore": 4,
    "reward": "numbers | <script>alert(1)</script>\u202e",
    "version": 2,
    "sha256": "a" * 64,
    "requested_at": "2026-11-22T10:00:00Z",
    "steps": {"first": 1, "last": 40},
    "samples": 13,
    "deleted": 0,
    "superseded": 0,
    "confusion": CONFUSION,
    "changes": {"same": 5, "lower": 2, "higher": 1, "unscored": 5},
    "errors": {},
    **agreement_figures([[2, 2, 1], [1, 3, 0], [0, 0, 4]]),
}


@pytest.mark.parametrize("copy", [markdown.card_markdown, issue.card_html, pdf.card_pdf])
def test_every_copy_has_the_agreement_of_both_rewards(copy: Callable[[Any], bytes]) -> None:
    content = copy(reading(oversight__rescores=answer("scored again", [RECORDED])))
    text = pdf_text(content) if copy is pdf.card_pdf else content.decode().replace("\\", "")
    text = " ".join(text.replace("\u00a0", " ").replace("\u200b", "").split())
    assert "Second reward against the first" in text
    assert "Verdicts of the first and of the second reward" in text
    assert "5 of 8, 62.5 % [30.6 %, 86.3 %]" in text
    assert "steps 1 to 40" in text
    assert b"<script>alert" not in content


def with_rescores(*entries: Any) -> Sealed:
    def change(document: dict[str, Any]) -> None:
        document["sections"]["oversight"]["rescores"]["value"] = list(entries)

    return Sealed(change=change)


def test_the_check_computes_the_agreement_again() -> None:
    report = check(card(Log(), with_rescores(RECORDED, RECORDED)))
    assert report.accepted
    (line,) = [each.detail for each in report.checks if each.name == "re-scores"]
    assert "2 re-scores of 26 samples" in line


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("agreement", "low"), 0.4), (("agreement", "count"), 6), (("kappa", "value"), 0.26), (("kappa",), None),
        (("confusion", "right", "right"), 3), (("samples",), 12), (("changes", "same"), 4), (("confusion",), {}),
        (("confusion", "right", "right"), -2), (("confusion", "right", "right"), True), (("changes", "same"), "5"),
    ],
)  # fmt: skip
def test_an_altered_count_or_figure_is_noticed(path: tuple[str, ...], value: Any) -> None:
    altered = json.loads(json.dumps(RECORDED))
    inside = altered
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    assert set(faults(check(card(Log(), with_rescores(altered))))) == {"re-scores"}


@pytest.mark.parametrize("value", ["x", 3, None, []])
def test_an_entry_that_is_no_rescore_is_noticed(value: Any) -> None:
    assert set(faults(check(card(Log(), with_rescores(value))))) == {"re-scores"}
