"""Which rows are sampled side by side."""

import pytest

from grpo_core.rollout.waves import Limits, Row, plan_waves


def shapes(prompts, *, samples, rows=1000, tokens=10**9, completion=10, shared=True):
    waves = plan_waves(prompts, samples=samples, limits=Limits(rows, tokens, completion, shared))
    seen = sorted((row.prompt, row.sample) for wave in waves for row in wave)
    assert seen == [(prompt, sample) for prompt in range(len(prompts)) for sample in range(samples)]
    return [[row.prompt for row in wave] for wave in waves]


def text(length, first=0):
    return [first] * length


def test_like_lengths_and_equal_prompts_together():
    assert shapes([text(5), text(2), text(9), text(2)], samples=1) == [[1, 3, 0, 2]]
    assert plan_waves([text(1)], samples=2, limits=Limits(8, 100, 10, True)) == [[Row(0, 0), Row(0, 1)]]
    assert plan_waves([], samples=2, limits=Limits(8, 100, 10, True)) == []


def test_rows_are_limited_and_waves_are_even():
    assert [len(wave) for wave in shapes([text(3, n) for n in range(9)], samples=1, rows=8)] == [5, 4]
    assert [len(wave) for wave in shapes([text(3, n) for n in range(6)], samples=4, rows=10)] == [8, 8, 8]


def test_a_group_is_parted_only_when_it_must_be():
    assert shapes([text(3), text(4)], samples=3, rows=4) == [[0, 0, 0], [1, 1, 1]]
    assert shapes([text(3)], samples=5, rows=2) == [[0, 0], [0, 0], [0]]


def test_tokens_are_limited():
    # Shared: 20 for the prompt once, 10 for each row.
    assert shapes([text(20)], samples=6, tokens=50) == [[0, 0, 0], [0, 0, 0]]
    assert shapes([text(20)], samples=6, tokens=80) == [[0] * 6]
    assert shapes([text(20)], samples=6, tokens=60, shared=False) == [[0, 0], [0, 0], [0, 0]]
    # Two prompts of 10 and 20 lie padded to 20 each: 40 + 4 · 10.
    assert shapes([text(10), text(20)], samples=2, tokens=79) == [[0, 0], [1, 1]]
    assert shapes([text(10), text(20)], samples=2, tokens=80) == [[0, 0, 1, 1]]
    # The same prompt twice is held once.
    assert shapes([text(20), text(20)], samples=2, tokens=60) == [[0, 0, 1, 1]]


@pytest.mark.parametrize("shared", [True, False])
def test_one_row_always_goes(shared):
    assert shapes([text(50), text(60)], samples=2, tokens=5, shared=shared) == [[0], [0], [1], [1]]
