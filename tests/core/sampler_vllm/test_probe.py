"""The proof that weights arrived: what it lets pass and what it stops at. vLLM's numbers are made by hand here."""

import math

import pytest
import torch

from grpo_core.errors import NotFinite, RolloutError
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.rollout.vllm.probe import Probe
from tests.core.sampler_vllm.small import move
from tests.core.tiny import load, tiny_folder


@pytest.fixture
def policy(tmp_path):
    return load(tiny_folder(tmp_path / "base"))


def probe(tolerance=0.05):
    return Probe(vocabulary=258, positions=100, tolerance=tolerance, seed=3)


@torch.no_grad()
def scored(texts, policy, off=0.0):
    """As vLLM would say it, `off` nats beside the policy's."""
    found = [completion_logprobs(policy.model, [text[:1]], [text[1:]]) for text in texts]
    return [(row + off).tolist() for row in found]


def test_texts_are_of_the_whole_vocabulary_and_fit():
    texts = probe().texts
    assert [len(text) for text in texts] == [32] * 4
    assert min(map(min, texts)) < 26
    assert 232 < max(map(max, texts)) < 258
    assert texts == probe().texts, "the seed alone decides"
    assert {len(text) for text in Probe(vocabulary=9, positions=6, tolerance=1.0, seed=0).texts} == {5}


def test_equal_numbers_pass_and_the_difference_is_returned(policy):
    one = probe()
    assert one.check(scored(one.texts, policy), policy, step=0) < 1e-5
    assert one.check(scored(one.texts, policy, off=0.01), policy, step=1) == pytest.approx(0.01, abs=1e-5)
    move(policy, 1e-4)
    one.forget()  # another engine is judged anew
    assert one.check(scored(one.texts, policy, off=0.01), policy, step=0) == pytest.approx(0.01, abs=1e-5)


@pytest.mark.parametrize("off", [0.06, -0.06, math.nan])
def test_beyond_the_tolerance_the_run_stops(policy, off):
    one = probe()
    with pytest.raises(RolloutError, match=r"after step 7 have not arrived.*(0\.06|nan)"):
        one.check(scored(one.texts, policy, off=off), policy, step=7)


def test_old_weights_within_the_tolerance_are_seen(policy, tmp_path):
    """The tolerance alone would let pass what a step of a low rate moves, or embeddings that arrive without what lies
    between them."""
    other, one = load(tiny_folder(tmp_path / "other")), probe(tolerance=10.0)
    old = scored(one.texts, policy)
    one.check(old, policy, step=0)
    move(policy, 1e-4)
    with pytest.raises(RolloutError, match="since step 0"):
        one.check(old, policy, step=1)
    one = probe(tolerance=10.0)
    one.check(scored(one.texts, policy), policy, step=0)
    move(policy, 1e-3)
    with torch.no_grad():
        for (name, new), weight in zip(policy.model.named_parameters(), other.model.parameters(), strict=True):
            if "layers" not in name:
                weight.copy_(new)
    with pytest.raises(RolloutError, match="not all"):
        one.check(scored(one.texts, other), policy, step=1)


def test_new_weights_pass_again_and_again(policy):
    one = probe(tolerance=10.0)
    for step in range(5):
        one.check(scored(one.texts, policy, off=1e-4 * (-1) ** step), policy, step=step)
        move(policy, 1e-3, seed=step)


def test_moves_too_small_to_see_add_up(policy):
    """In bf16 the engines differ by more than a step moves the weights: one that moved no more cannot be judged yet."""
    one = probe(tolerance=1.0)
    old, passed = scored(one.texts, policy, off=0.002), []
    with pytest.raises(RolloutError):  # noqa: PT012  that an engine which never takes new weights is seen, and not at once
        for step in range(40):
            one.check(old, policy, step=step)
            passed.append(step)
            move(policy, 1e-4, seed=step)
    assert len(passed) > 3


def test_a_diverged_policy_is_an_error_of_its_own(policy):
    one = probe()
    told = scored(one.texts, policy)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(NotFinite):
        one.check(told, policy, step=3)
