"""Pairs of a group's samples that people compare without their rewards, and how often they prefer the rewarded one."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, combinations, zip_longest
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.review.models import Group, PairVote, Sample
from cohort.runs.transitions import run_logged
from grpo_core.stats.quantiles import Interval, wilson


@dataclass(frozen=True)
class Pair:
    left: Sample
    right: Sample
    number: int
    """Among the pairs of the group, counted from 1."""
    of: int


def pairs_of(group: Group) -> list[tuple[Sample, Sample]]:
    """Pairs with different texts, of each text the first sample. First what the reward cannot tell apart, in turn with
    what it can, so that a few votes say something of both."""
    texts: dict[str, Sample] = {}
    for sample in group.samples.filter(redacted_at=None).order_by("index"):
        texts.setdefault(sample.completion, sample)
    pairs = list(combinations(texts.values(), 2))
    same = [pair for pair in pairs if pair[0].reward == pair[1].reward]
    other = [pair for pair in pairs if pair[0].reward != pair[1].reward]
    return [pair for pair in chain.from_iterable(zip_longest(same, other)) if pair is not None]


def pair_next(*, group: Group, actor: User) -> Pair | None:
    """The next pair that the person has not compared; which of the two is on the left is drawn for each person. None
    when they have compared all, or there is none."""
    pairs = pairs_of(group)
    votes = PairVote.objects.filter(left__group=group, by=actor).values_list("left", "right")
    compared = {frozenset(vote) for vote in votes}
    for number, (first, second) in enumerate(pairs, start=1):
        if frozenset((first.pk, second.pk)) not in compared:
            turned = random.Random(f"{first.pk} {second.pk} {actor.pk}").random() < 0.5
            left, right = (second, first) if turned else (first, second)
            return Pair(left, right, number, len(pairs))
    return None


@transaction.atomic
def pair_vote(*, group: Group, actor: User, left: int, right: int, choice: str) -> PairVote:
    """Add the person's vote on two samples of the group, by their index; the same vote again adds nothing.

    Raises ValidationError keyed by `choice` or `left`.
    """
    if choice not in PairVote.Choice.values:
        raise ValidationError({"choice": f"{choice!r} is no vote; there are {', '.join(PairVote.Choice.values)}."})
    Group.objects.select_for_update(no_key=True).get(pk=group.pk)
    samples = {sample.index: sample for sample in group.samples.filter(index__in=[left, right], redacted_at=None)}
    if len(samples) != 2:
        raise ValidationError({"left": "Compare two samples of the group whose texts are still there."})
    pair = {"left": samples[left], "right": samples[right]}
    newest = PairVote.objects.filter(**pair, by=actor).order_by("-pk").first()
    if newest is not None and newest.choice == choice:
        return newest
    made = PairVote.objects.create(**pair, choice=choice, by=actor)
    run_logged(
        run=group.run,
        actor=audit.who(actor),
        kind="pair_compared",
        after={"choice": choice},
        data={"step": group.step, "group": group.index, "left": left, "right": right},
    )
    return made


@dataclass(frozen=True)
class Preference:
    """Of people's newest votes on pairs whose rewards differ."""

    higher: int
    """Votes for the sample with the higher reward."""
    lower: int
    equal: int

    @property
    def decided(self) -> int:
        return self.higher + self.lower

    @property
    def share(self) -> float:
        return self.higher / self.decided

    @property
    def interval(self) -> Interval:
        """Wilson's, 95 %, of `share`."""
        return wilson(self.higher, self.decided)


def preference(groups: "Iterable[int] | QuerySet[Any]") -> Preference:
    """Over votes on pairs of these groups, by id or as the query of their ids. One query."""
    newest: dict[tuple[int, frozenset[int]], PairVote] = {}
    for vote in PairVote.objects.filter(left__group__in=groups).select_related("left", "right").order_by("pk"):
        newest[vote.by_id, frozenset((vote.left_id, vote.right_id))] = vote
    higher = lower = equal = 0
    for vote in newest.values():
        left, right = vote.left.reward, vote.right.reward
        if left is None or right is None or left == right:
            continue
        if vote.choice == PairVote.Choice.EQUAL:
            equal += 1
        elif (vote.choice == PairVote.Choice.LEFT) == (left > right):
            higher += 1
        else:
            lower += 1
    return Preference(higher, lower, equal)
