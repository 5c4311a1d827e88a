"""People judge samples: what is kept, and what it says of the verifier."""

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection
from django.test import Client

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.review.judgements import review_figures
from cohort.review.models import Annotation, Group
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from tests.web.clients import admin, reviewer, viewer
from tests.web.group_page import card, one
from tests.web.run_rows import HOSTILE, HOSTILE_SHOWN, Maker, add_group

__all__ = ["admin", "reviewer", "viewer"]  # fixtures


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training", sampling={"group_size": 4, "prompts_per_step": 3})


@pytest.fixture
def group(maker: Maker, run: Run) -> Group:
    return add_group(maker.attempt(run), [1.0, 1.0, 0.0, 0.0], step=1)


def test_a_reviewer_judges_and_a_viewer_reads(viewer: Client, reviewer: Client, rita: User, group: Group) -> None:
    address = f"/p/ours/runs/{group.run_id}/groups/{group.pk}/samples/0/judge/"
    assert reviewer.post(address, {"verdict": "wrong", "note": f"no {HOSTILE}"}).status_code == 302
    shown = card(one(viewer, group), 1)
    assert ("rita: wrong" in shown, HOSTILE_SHOWN in shown, "<form" in shown) == (True, True, False)
    assert 'aria-pressed="true">Wrong' in card(one(reviewer, group), 1)


def test_the_newest_of_a_person_counts_and_nothing_is_overwritten(alice: User, group: Group) -> None:
    sample = group.samples.get(index=0)
    sample_judge(sample=sample, actor=alice, verdict="right")
    sample_judge(sample=sample, actor=alice, verdict="right")  # the same again adds nothing
    sample_judge(sample=sample, actor=alice, verdict="wrong", note="cut short")
    assert list(Annotation.objects.order_by("pk").values_list("verdict", flat=True)) == ["right", "wrong"]
    assert review_figures(group.run, success="answer")["judged"] == {"right": 0, "wrong": 1, "unsure": 0}
    assert AuditEntry.objects.filter(kind="sample_judged", actor="user:alice").count() == 2


@pytest.mark.parametrize(
    "statement", ["UPDATE review_annotation SET verdict = 'right'", "DELETE FROM review_annotation"]
)
def test_postgresql_refuses_to_change_a_judgement(alice: User, group: Group, statement: str) -> None:
    sample_judge(sample=group.samples.get(index=0), actor=alice, verdict="wrong")
    with pytest.raises(DatabaseError, match="only added to"), connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.parametrize(("verdict", "note"), [("perhaps", ""), ("right", "x" * 2001)], ids=["verdict", "note"])
def test_a_judgement_that_cannot_be_is_refused(alice: User, group: Group, verdict: str, note: str) -> None:
    with pytest.raises(ValidationError):
        sample_judge(sample=group.samples.get(index=0), actor=alice, verdict=verdict, note=note)
    assert not Annotation.objects.exists()


def test_a_fault_keeps_the_note(admin: Client, group: Group) -> None:
    address = f"/p/ours/runs/{group.run_id}/groups/{group.pk}/samples/0/judge/"
    answer = admin.post(address, {"verdict": "perhaps", "note": "kept"}, headers={"HX-Request": "true"})
    assert answer.status_code == 422
    assert 'value="kept"' in answer.content.decode()


def test_figures_against_the_verifier_worked_by_hand(alice: User, rita: User, maker: Maker, run: Run) -> None:
    """20 samples: 8 both right, 2 paid though wrong, 1 unpaid though right, 9 both wrong. Agreement 17/20; by chance
    (10/20 · 9/20 + 10/20 · 11/20) = 0.5, so kappa = (0.85 − 0.5) / 0.5 = 0.7."""
    group = add_group(maker.attempt(run), [1.0] * 10 + [0.0] * 10, step=1)
    verdicts = ["right"] * 8 + ["wrong"] * 2 + ["right"] + ["wrong"] * 9
    for sample, verdict in zip(group.samples.order_by("index"), verdicts, strict=True):
        sample_judge(sample=sample, actor=alice, verdict=verdict)
    found = review_figures(run, success="answer")
    assert (found["reviewers"], found["samples"], found["disagreeing"]) == (1, 20, 0)
    verifier = found["verifier"]
    cells = [verifier[name] for name in ("both_right", "paid_though_wrong", "unpaid_though_right", "both_wrong")]
    assert cells == [8, 2, 1, 9]
    assert verifier["kappa"] == pytest.approx(0.7)
    assert verifier["agreement"]["share"] == 0.85
    # Wilson 95 % of 17 of 20 (Newcombe 1998, method 3): 0.640 to 0.948
    assert (verifier["agreement"]["low"], verifier["agreement"]["high"]) == pytest.approx((0.6396, 0.9476), abs=5e-4)
    sample_judge(sample=group.samples.get(index=0), actor=rita, verdict="wrong")
    found = review_figures(run, success="answer")
    assert (found["reviewers"], found["disagreeing"], found["judged"]["unsure"]) == (2, 1, 1)


def test_none_judged_gives_no_figures(run: Run) -> None:
    found = review_figures(run, success="answer")
    assert (found["reviewers"], found["samples"], found["disagreeing"], found["verifier"]) == (0, 0, 0, None)
    assert set(found["judged"].values()) == {0}
