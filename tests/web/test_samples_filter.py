"""The filter of a run's samples: what it reads, writes and says, and which samples it selects."""

import pytest
from django.core.exceptions import ValidationError
from django.http import QueryDict

from cohort.accounts.models import User
from cohort.review.filters import SampleFilter
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from tests.factories.runs import Maker, add_group, gone_on


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "all samples"),
        ("reward_min=0.5&finish=length", "reward from 0.5; truncated"),
        ("component=format&component_max=0.25", "format to 0.25"),
        ("step_min=10&step_max=20&judgement=against", "step 10 to 20; judged against the verifier"),
        ("advantage_min=1&error=timeout&masked=importance", "|advantage| from 1; with an error: timeout; masked: "
         "sampler and trainer disagree"),
        ("problem=p%261&sort=reward", "problem: p&1"),
        ("tokens_min=0", "tokens from 0"),
    ],
)  # fmt: skip
def test_a_query_reads_as_itself(query: str, words: str) -> None:
    looked_for = SampleFilter.parse(QueryDict(query))
    assert (looked_for.query, looked_for.words) == (query, words)
    assert SampleFilter.parse(QueryDict(looked_for.query)) == looked_for


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ("reward_min=high", "reward_min", "'high' is not a number."),
        ("reward_min=nan", "reward_min", "'nan' is not a number."),
        ("tokens_min=1.5", "tokens_min", "'1.5' is not a whole number from 0 to 2,147,483,647."),
        ("step_min=9&step_max=3", "step_max", "The largest step, 3, is below the smallest, 9."),
        ("finish=soon", "finish", "'soon' is not known; there are eos, stop, length."),
        ("component_min=1", "component", "Choose the component whose value is meant."),
        ("component=a__b'", "component", '"a__b\'" is not the name of a component.'),
        ("sort=colour", "sort", None),
    ],
)
def test_nonsense_is_refused_by_field(query: str, field: str, message: str | None) -> None:
    with pytest.raises(ValidationError) as refused:
        SampleFilter.parse(QueryDict(query))
    assert list(refused.value.message_dict) == [field]
    if message:
        assert refused.value.message_dict[field] == [message]


def test_every_field_selects_what_it_says(maker: Maker, rita: User, alice: User) -> None:
    run: Run = maker.run(state="training")
    attempt = maker.attempt(run)
    first = add_group(attempt, [1.0, 0.0, None], advantages=[0.5, -1.5, 0.0], step=1)
    second = add_group(attempt, [1.0, 1.0], advantages=[0.1, -0.1], step=2, masked={1: "importance"})
    a, b, c, d, e = [*first.samples.order_by("index"), *second.samples.order_by("index")]
    e.finish_reason, e.tokens = "length", 4
    e.save()
    sample_judge(sample=a, actor=rita, verdict="wrong")
    sample_judge(sample=b, actor=rita, verdict="right")
    sample_judge(sample=b, actor=alice, verdict="wrong")
    sample_judge(sample=d, actor=rita, verdict="wrong")
    sample_judge(sample=d, actor=rita, verdict="right")
    expected = {
        "": [a, b, c, d, e],
        "reward_min=0.5": [a, d, e],
        "component=answer&component_max=0": [b],
        "advantage_min=0.5": [a, b],
        "tokens_max=10": [e],
        "finish=length": [e],
        "error=yes": [c],
        "error=timeout": [],
        "masked=importance": [e],
        "masked=reward_error": [c],
        "step_min=2": [d, e],
        "problem=p0&step_max=1": [a, b, c],
        "judgement=right": [d],
        "judgement=wrong": [a],
        "judgement=unsure": [b],
        "judgement=none": [c, e],
        "judgement=disagree": [b],
        "judgement=against": [a],
    }
    for query, samples in expected.items():
        looked_for = SampleFilter.parse(QueryDict(query))
        assert {row.pk for row in looked_for.samples(run)} == {row.pk for row in samples}, query
    orders = {
        "": [b, a, d, e, c],
        "sort=reward": [b, a, d, e, c],
        "sort=-reward": [a, d, e, b, c],
        "sort=tokens": [e, a, b, c, d],
        "sort=-step": [d, e, a, b, c],
        "component=answer&sort=-component": [a, d, e, b, c],
    }
    for query, samples in orders.items():
        ordered = SampleFilter.parse(QueryDict(query)).ordered(run)
        assert [row.pk for row in ordered] == [row.pk for row in samples], query


def test_superseded_samples_are_left_out(maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run, state="lost")
    kept = add_group(attempt, [1.0], step=1)
    add_group(attempt, [1.0], step=2)
    gone_on(maker.attempt(run), 1)
    assert {row.group_id for row in SampleFilter().samples(run)} == {kept.pk}
