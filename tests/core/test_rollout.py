"""The sampler: its log-probabilities, shared prompts, ends, random streams, filters."""

import math

import pytest
import torch

from grpo_core.model.logprobs import completion_logprobs
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.draw_tokens import inverse_cdf, keep_likely
from grpo_core.rollout.local import LocalRollout

from .tiny import load, sharpen, tiny_folder

PROMPTS = [[10, 20, 30], [40], [50, 60, 70, 80, 90, 100], [10, 20, 30]]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return sharpen(load(tiny_folder(tmp_path_factory.mktemp("models") / "base")))


def sample(policy, prompts=PROMPTS, *, samples=3, max_rows=64, key=(0,), **decoding):
    rollout = LocalRollout(policy, max_rows=max_rows)
    return rollout.generate(prompts, samples=samples, decoding=Decoding(**{"max_tokens": 24, **decoding}), key=key)


def with_ends(policy, monkeypatch, ids):
    monkeypatch.setattr(policy, "eos_ids", frozenset(ids))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampler_logprobs_equal_recomputed_ones(policy, temperature, monkeypatch):
    with_ends(policy, monkeypatch, range(60))  # many ends: rows leave the batch all along
    groups = sample(policy, temperature=temperature)
    finishes = {completion.finish for group in groups for completion in group}
    lengths = {len(completion.tokens) for group in groups for completion in group}
    assert "eos" in finishes
    assert len(lengths) > 3
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            recomputed = completion_logprobs(policy.model, [prompt], [completion.tokens], temperature=temperature)
            assert list(completion.logprobs) == pytest.approx(recomputed.tolist(), abs=1e-5)


def test_shared_prefill_and_batching_equal_one_by_one(policy):
    together = sample(policy, temperature=0)
    alone = [sample(policy, [prompt], samples=1, max_rows=1, temperature=0)[0][0] for prompt in PROMPTS]
    for group, single in zip(together, alone, strict=True):
        for completion in group:
            assert completion.tokens == single.tokens
            assert list(completion.logprobs) == pytest.approx(list(single.logprobs), abs=1e-5)
    assert len({completion.tokens for completion in alone}) == 3  # the first and last prompt are the same


@pytest.mark.parametrize("max_rows", [1, 2, 5, 12])
def test_the_random_stream_of_a_sample_does_not_depend_on_its_batch(policy, max_rows):
    assert [[c.tokens for c in g] for g in sample(policy, max_rows=max_rows)] == [
        [c.tokens for c in g] for g in sample(policy)
    ]


def test_key_decides_the_draw(policy):
    first, again, other = ([[c.tokens for c in g] for g in sample(policy, key=key)] for key in ((7, 1), (7, 1), (7, 2)))
    assert first == again
    assert first != other
    assert first[0] != first[3]  # the same prompt in two places has two streams
    assert len(set(first[0])) == 3  # and so have the samples of a group


def test_each_prompt_is_prefilled_once(policy, monkeypatch):
    fed = []
    real = policy.model.base_model.forward

    def watched(*arguments, **named):
        fed.append(tuple(named["input_ids"].shape))
        return real(*arguments, **named)

    rollout = LocalRollout(policy, max_rows=64)
    assert rollout.shared
    monkeypatch.setattr(policy.model.base_model, "forward", watched)
    rollout.generate(PROMPTS, samples=5, decoding=Decoding(max_tokens=2), key=(0,))
    assert fed == [(3, 6), (20, 1)]  # three distinct prompts of at most 6 tokens, then 4 × 5 rows of one token


def test_end_tokens(policy, monkeypatch):
    greedy = sample(policy, [[10, 20, 30]], samples=1, temperature=0)[0][0]
    assert greedy.finish == "length"
    assert len(greedy.tokens) == 24
    with_ends(policy, monkeypatch, {greedy.tokens[5], 1})
    cut = sample(policy, [[10, 20, 30]], samples=1, temperature=0)[0][0]
    first = greedy.tokens.index(greedy.tokens[5])
    assert cut.tokens == greedy.tokens[: first + 1]  # the end token is kept, nothing after it is
    assert cut.finish == "eos"
    assert len(cut.logprobs) == len(cut.tokens)
    with_ends(policy, monkeypatch, {greedy.tokens[0]})
    assert sample(policy, [[10, 20, 30]], samples=1, temperature=0)[0][0].tokens == greedy.tokens[:1]


def test_end_token_in_the_last_place_is_an_end(policy, monkeypatch):
    greedy = sample(policy, [[10, 20, 30]], samples=1, temperature=0, max_tokens=1)[0][0]
    assert greedy.finish == "length"
    with_ends(policy, monkeypatch, {greedy.tokens[0]})
    assert sample(policy, [[10, 20, 30]], samples=1, temperature=0, max_tokens=1)[0][0].finish == "eos"


def test_pad_token_may_equal_the_end_token(policy, monkeypatch):
    with_ends(policy, monkeypatch, range(60))
    apart = sample(policy)
    monkeypatch.setattr(policy, "pad_id", 5)  # an end token now, used as left padding
    assert [[c.tokens for c in g] for g in sample(policy)] == [[c.tokens for c in g] for g in apart]


def test_frequencies_follow_the_distribution(policy):
    logits = policy.model(torch.tensor([[10, 20, 30]])).logits[0, -1].detach().double() / 0.8
    probs = torch.softmax(logits, -1)
    drawn = sample(policy, [[10, 20, 30]], samples=4000, max_rows=4000, max_tokens=1, temperature=0.8)[0]
    likely = int(probs.argmax())
    share = sum(completion.tokens == (likely,) for completion in drawn) / 4000
    p = probs[likely].item()
    assert 0.02 < p < 0.98
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / 4000)
    entropy = -(probs * probs.log()).sum().item()
    assert drawn[0].entropy == pytest.approx(entropy, abs=1e-4)


def test_inverse_cdf_takes_the_right_token():
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).repeat(6, 1)
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert inverse_cdf(weights, uniforms).tolist() == [1, 1, 3, 3, 4, 4]


def test_keep_likely():
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    assert keep_likely(probs, top_p=1.0, top_k=0) is probs
    assert keep_likely(probs, top_p=1.0, top_k=2).tolist() == [pytest.approx([0, 0.4, 0, 0.3])]
    assert keep_likely(probs, top_p=0.4, top_k=0).tolist() == [pytest.approx([0, 0.4, 0, 0])]
    assert keep_likely(probs, top_p=0.41, top_k=0).tolist() == [pytest.approx([0, 0.4, 0, 0.3])]
    assert keep_likely(probs, top_p=0.001, top_k=0).tolist() == [pytest.approx([0, 0.4, 0, 0])]
    # After top-k the rest is the whole: 0.4/0.7 is already above 0.5.
    assert keep_likely(probs, top_p=0.5, top_k=2).tolist() == [pytest.approx([0, 0.4, 0, 0])]


def test_filtered_tokens_are_never_drawn(policy):
    logits = policy.model(torch.tensor([[10, 20, 30]])).logits[0, -1]
    allowed = set(logits.topk(3).indices.tolist())
    drawn = sample(policy, [[10, 20, 30]], samples=500, max_rows=500, max_tokens=1, temperature=3.0, top_k=3)[0]
    assert {completion.tokens[0] for completion in drawn} == allowed


def test_check_can_stop_the_sampler(policy):
    class Stopped(Exception):
        pass

    calls = []

    def check():
        calls.append(1)
        if len(calls) == 5:
            raise Stopped

    with pytest.raises(Stopped):
        LocalRollout(policy, max_rows=8, check=check).generate(
            [[1, 2]], samples=2, decoding=Decoding(max_tokens=100), key=(0,)
        )
    assert len(calls) == 5
