"""A token of every row as a flat list of operations: the same tokens and numbers as through the model's modules, for
several families and with adapters; it follows the weights, holds nothing between calls, and steps aside in words."""

import logging

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, OlmoeConfig, OlmoeForCausalLM, Qwen3Config, Qwen3ForCausalLM

from grpo_core.config import LoraConfig
from grpo_core.errors import ModelError
from grpo_core.model.lora import adapters_off, add_adapters
from grpo_core.rollout import local
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.replay import LEAST_TOKENS, Replay, replayable
from grpo_core.rollout.shared_cache import shareable

from .test_rollout_shared import FAMILIES, HEADS, PROMPTS, SIZES, assert_same, flat, make

NEWER = {
    "norms on queries": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS, head_dim=16)),
}
ALL = {**FAMILIES, **NEWER}
PRODUCTS = {"llama": 4, "grouped heads": 4, "one head for all": 4, "gpt2": 0, "norms on queries": 4}
"""Of a layer once those of one input are joined; gpt2 keeps its weights the other way round."""


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Completions of these tests are shorter than those it is made for."""
    monkeypatch.setattr(local, "LEAST_TOKENS", 1)


def rollout_of(policy, **named):
    return LocalRollout(policy, max_rows=64, **named)


def by_list(policy, rollout=None, **decoding):
    told = []
    rollout = rollout or rollout_of(policy, tell=told.append)
    found = rollout.generate(PROMPTS, samples=4, decoding=Decoding(**{"max_tokens": 40, **decoding}), key=(5,))
    assert rollout._replay is not None, told
    return found


def by_modules(policy, **decoding):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "LEAST_TOKENS", 10**9)
        rollout = rollout_of(policy)
        found = rollout.generate(PROMPTS, samples=4, decoding=Decoding(**{"max_tokens": 40, **decoding}), key=(5,))
        assert rollout._replay is None
    return found


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("decoding", [{}, {"temperature": 0.0}])
def test_it_gives_what_the_modules_give(family, decoding):
    policy = make(ALL[family])
    found = by_list(policy, **decoding)
    assert_same(found, by_modules(policy, **decoding))
    lengths = {len(one.tokens) for one in flat(found)}
    assert decoding.get("temperature") == 0 or len(lengths) > 5  # ragged ends: down to few rows


@pytest.mark.parametrize("family", ALL)
def test_products_of_one_input_are_one(family):
    policy = make(ALL[family])
    joined = Replay(policy)._joined
    assert len(joined) == PRODUCTS[family] * policy.model.config.num_hidden_layers
    if family == "grouped heads":
        queries, keys, values = 32, 16, 16
        assert [one.sizes for one in joined[:4]] == [[queries, keys, values], [32], [48, 48], [32]]
        assert [one.bias() is None for one in joined[:4]] == [False, True, True, True]


@pytest.mark.parametrize("family", ALL)
def test_it_follows_the_weights(family):
    policy = make(ALL[family])
    rollout = rollout_of(policy)
    before = by_list(policy, rollout)
    torch.manual_seed(9)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    after = by_list(policy, rollout)
    assert_same(after, by_modules(policy))
    assert [one.tokens for one in flat(before)] != [one.tokens for one in flat(after)]


def test_adapters_are_in_it_and_off_they_are_not():
    policy = make(FAMILIES["grouped heads"])
    add_adapters(policy, LoraConfig(rank=4, alpha=8), seed=1)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.uniform_(-0.3, 0.3)
    rollout = rollout_of(policy)
    with_them = by_list(policy, rollout)
    assert_same(with_them, by_modules(policy))
    with adapters_off(policy.model):
        assert not replayable(policy)
        without = rollout.generate(PROMPTS, samples=4, decoding=Decoding(max_tokens=40), key=(5,))
        assert_same(without, by_modules(policy))
    assert [one.tokens for one in flat(with_them)] != [one.tokens for one in flat(without)]


def test_a_single_row():
    policy = make(FAMILIES["llama"])
    rollout = rollout_of(policy)
    found = rollout.generate([[3, 4]], samples=1, decoding=Decoding(max_tokens=30), key=(1,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "LEAST_TOKENS", 10**9)
        assert_same(found, rollout_of(policy).generate([[3, 4]], samples=1, decoding=Decoding(max_tokens=30), key=(1,)))


def held(rollout):
    return [getattr(rollout._replay._list, one.name) for one in rollout._replay._joined]


def test_nothing_is_held_between_calls():
    policy = make(FAMILIES["llama"])
    rollout = rollout_of(policy)
    by_list(policy, rollout)
    assert held(rollout)
    assert all(weight is None for weight in held(rollout))


def test_nor_after_it_was_stopped():
    stops = []

    def check():
        if stops:
            assert all(weight is not None for weight in held(rollout))
            raise InterruptedError

    policy = make(FAMILIES["llama"])
    rollout = rollout_of(policy, check=check)
    by_list(policy, rollout)
    stops.append(True)
    with pytest.raises(InterruptedError):
        by_list(policy, rollout)
    assert all(weight is None for weight in held(rollout))


def test_short_completions_are_not_worth_tracing(monkeypatch):
    monkeypatch.setattr(local, "LEAST_TOKENS", LEAST_TOKENS)
    rollout = rollout_of(make(FAMILIES["llama"]))
    for most, traced in ((LEAST_TOKENS - 1, False), (LEAST_TOKENS, True)):
        rollout.generate([[1, 2]], samples=1, decoding=Decoding(max_tokens=most), key=(1,))
        assert (rollout._replay is not None) == traced


def test_not_for_bf16():
    policy = make(FAMILIES["llama"], dtype=torch.bfloat16)
    assert not replayable(policy)
    rollout = rollout_of(policy)
    rollout.generate([[1, 2]], samples=1, decoding=Decoding(max_tokens=5), key=(1,))
    assert rollout._replay is None


def test_a_model_that_looks_at_its_numbers_goes_through_its_modules():
    def look(module, inputs, output):
        return output * 2 if output.sum().item() > 0 else output

    policy = make(FAMILIES["llama"])
    policy.model.model.norm.register_forward_hook(look)
    told = []
    rollout = rollout_of(policy, tell=told.append)
    found = [rollout.generate(PROMPTS, samples=4, decoding=Decoding(max_tokens=40), key=(5,)) for _ in range(2)]
    assert rollout._replay is None
    assert len(told) == 1
    assert told[0].startswith("every token goes through the model's modules, which is slower: LlamaForCausalLM cannot")
    for one in found:
        assert_same(one, by_modules(policy))


def test_a_trace_that_gives_other_numbers_is_refused():
    calls = []

    def drift(module, inputs, output):
        calls.append(1)
        return output * (1 + 1e-3 * len(calls))

    policy = make(FAMILIES["llama"])
    policy.model.model.norm.register_forward_hook(drift)
    with pytest.raises(ModelError, match="hidden states are off by"):
        Replay(policy)


def test_experts_and_capped_scores(caplog, monkeypatch):
    """Experts hang on the numbers, which one line says; capped scores are not for the shared cache, so nobody asks."""
    capped = make(lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, **HEADS, head_dim=16, sliding_window=8)))
    assert not shareable(capped.model)
    rollout = rollout_of(capped)
    rollout.generate([[1, 2]], samples=1, decoding=Decoding(max_tokens=5), key=(1,))
    assert rollout._replay is None
    experts = make(lambda: OlmoeForCausalLM(OlmoeConfig(**SIZES, **HEADS, num_experts=4, num_experts_per_tok=2)))
    told = []
    monkeypatch.setattr(logging.getLogger("torch"), "propagate", True)
    rollout = rollout_of(experts, tell=told.append)
    found = rollout.generate(PROMPTS, samples=4, decoding=Decoding(max_tokens=40), key=(5,))
    assert rollout._replay is None
    assert [line.partition(" (")[0] for line in told] == [
        "every token goes through the model's modules, which is slower: OlmoeForCausalLM cannot be traced"
    ]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert_same(found, by_modules(experts))
