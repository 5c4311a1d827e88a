"""Pairs of a group that people compare: which pairs, what is stored, what is not shown, and the figure."""

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.review.models import Group, PairVote, Sample
from cohort.review.pairs import pair_next, pair_vote, pairs_of, preference
from tests.factories.runs import Maker, add_group
from tests.web.pages import html

pytestmark = pytest.mark.django_db


@pytest.fixture
def group(maker: Maker) -> Group:
    """Five samples, of which 0 and 4 have the same text; rewards 1, 1, 0.4321, 0.4321, 1."""
    attempt = maker.attempt(maker.run("adder", state="training"))
    group = add_group(attempt, [1.0, 1.0, 0.4321, 0.4321, 1.0], advantages=[1.2345, 1.2345, -1.2345, -1.2345, 1.2345])
    for sample in group.samples.exclude(index=4):
        Sample.objects.filter(pk=sample.pk).update(completion=f"text {sample.index}")
    Sample.objects.filter(group=group, index=4).update(completion="text 0")
    return group


def test_pairs_have_different_texts_and_take_turns(group: Group, alice: User) -> None:
    pairs = [(left.index, right.index) for left, right in pairs_of(group)]
    assert pairs == [(0, 1), (0, 2), (2, 3), (0, 3), (1, 2), (1, 3)]
    for number in range(1, 7):
        pair = pair_next(group=group, actor=alice)
        assert pair is not None
        assert (pair.number, pair.of) == (number, 6)
        assert sorted((pair.left.index, pair.right.index)) == [*pairs[number - 1]]
        pair_vote(group=group, actor=alice, left=pair.left.index, right=pair.right.index, choice="equal")
    assert pair_next(group=group, actor=alice) is None


def test_the_newest_vote_of_a_person_counts_whichever_was_left(group: Group, alice: User, rita: User) -> None:
    """Alice: higher, then lower for one pair; higher, equal. Rita: higher. A pair of equal rewards counts nothing. So 2
    of 3 preferred the higher; Wilson 95 % of 2 of 3 is 0.2077 to 0.9385."""
    for actor, left, right, choice in (
        (alice, 0, 2, "left"),
        (alice, 0, 2, "left"),
        (alice, 2, 0, "left"),
        (alice, 3, 1, "right"),
        (alice, 0, 3, "equal"),
        (alice, 0, 1, "left"),
        (rita, 0, 2, "left"),
    ):
        pair_vote(group=group, actor=actor, left=left, right=right, choice=choice)
    assert PairVote.objects.count() == AuditEntry.objects.filter(kind="pair_compared").count() == 6
    figure = preference([group.pk])
    assert (figure.higher, figure.lower, figure.equal) == (2, 1, 1)
    assert (figure.interval.low, figure.interval.high) == pytest.approx((0.2077, 0.9385), abs=5e-4)
    assert preference([]).decided == 0


@pytest.mark.parametrize(("left", "right", "choice"), [(0, 0, "left"), (0, 9, "left"), (0, 1, "both")])
def test_what_is_no_vote_is_refused(group: Group, alice: User, left: int, right: int, choice: str) -> None:
    with pytest.raises(ValidationError):
        pair_vote(group=group, actor=alice, left=left, right=right, choice=choice)
    assert not PairVote.objects.exists()


def test_the_page_shows_no_reward_and_the_group_the_figure(admin: Client, viewer: Client, group: Group) -> None:
    address = f"/p/ours/runs/{group.run_id}/groups/{group.pk}/"
    page = html(admin.get(f"{address}pairs/"))
    vote = {"left": "0", "right": "2", "choice": "left"}
    part = admin.post(f"{address}pairs/", vote, headers={"HX-Request": "true"})
    for text in (page, html(part), repr(part.headers)):
        assert [secret for secret in ("0.4321", "1.23", "is-right", "is-wrong", "extracted") if secret in text] == []
    assert admin.post(f"{address}pairs/", {**vote, "choice": "equal"}).status_code == 302
    assert admin.post(f"{address}pairs/", vote).status_code == 302
    assert "preferred in 1 of 1" in " ".join(html(viewer.get(address)).split())
