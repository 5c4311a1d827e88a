"""The cache that holds a prompt once: same tokens and numbers as with a prompt's keys repeated for every row, for
several families; what it holds, how rows leave, and which models it is not for."""

from pathlib import Path

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from grpo_core.model.attention import use_ours
from grpo_core.model.load import LoadedModel, ModelSource
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.rollout import feeding
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.holes import fill_holes
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.shared_cache import FIRST_ROOM, SharedCache, partial, partial_by_products, shareable

torch.set_num_threads(1)
SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=4)),
    "grouped heads": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, **HEADS)),
    "one head for all": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=1)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=512)),
}
WINDOWED = {
    "every layer": lambda: MistralForCausalLM(MistralConfig(**SIZES, **HEADS, sliding_window=8)),
    "some layers": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, **HEADS, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    ),
}
PROMPTS = [[10, 20, 30], [40], [50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150], [10, 20, 30], [7, 8]]
ENDS = range(20)


def make(build, ends=ENDS, dtype=torch.float32):
    torch.manual_seed(3)
    model = build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4)  # far from even distributions, and attention that is not the mean
    use_ours(model)
    source = ModelSource(Path("/"), "made")
    return LoadedModel(model.to(dtype), None, frozenset(ends), 0, source, torch.device("cpu"))


def sample(policy, prompts=PROMPTS, *, shared=None, samples=4, max_rows=64, max_tokens=100_000, key=(5,), **decoding):
    rollout = LocalRollout(policy, max_rows=max_rows, max_tokens=max_tokens)
    if shared is not None:
        rollout._shared = shared
    return rollout.generate(prompts, samples=samples, decoding=Decoding(**{"max_tokens": 40, **decoding}), key=key)


def flat(groups):
    return [completion for group in groups for completion in group]


def assert_same(found, expected, *, within=1e-5):
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert one.tokens == other.tokens
        assert one.finish == other.finish
        assert list(one.logprobs) == pytest.approx(list(other.logprobs), abs=within)
        assert one.entropy == pytest.approx(other.entropy, abs=within)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("decoding", [{}, {"temperature": 0.7, "top_k": 20}, {"temperature": 0.0}, {"top_p": 0.8}])
def test_a_prompt_held_once_gives_what_a_prompt_held_for_every_row_gives(family, decoding):
    policy = make(FAMILIES[family])
    assert shareable(policy.model)
    shared, repeated = sample(policy, **decoding), sample(policy, shared=False, **decoding)
    assert_same(shared, repeated)
    lengths = {len(one.tokens) for one in flat(shared)}
    assert decoding.get("temperature") == 0 or len(lengths) > 5  # ragged ends: rows and prompts left all along


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logprobs_are_those_of_the_trainer(family):
    policy = make(FAMILIES[family])
    for prompt, group in zip(PROMPTS, sample(policy), strict=True):
        for one in group:
            again = completion_logprobs(policy.model, [prompt], [one.tokens])
            assert list(one.logprobs) == pytest.approx(again.tolist(), abs=1e-5)


def test_rows_go_on_past_every_growth_of_their_room():
    policy = make(FAMILIES["grouped heads"], ends=[])
    most = 2 * FIRST_ROOM + 10
    found = sample(policy, samples=2, max_tokens=10**6)
    assert {len(one.tokens) for one in flat(found)} == {40}
    rollout = LocalRollout(policy, max_rows=8)
    group = rollout.generate([[3, 4, 5]], samples=2, decoding=Decoding(max_tokens=most), key=(1,))[0]
    for one in group:
        assert len(one.tokens) == most
        again = completion_logprobs(policy.model, [[3, 4, 5]], [one.tokens])
        assert list(one.logprobs) == pytest.approx(again.tolist(), abs=2e-5)


@pytest.mark.parametrize("family", WINDOWED)
def test_models_with_sliding_windows_keep_a_cache_of_their_own(family):
    policy = make(WINDOWED[family])
    assert not shareable(policy.model)
    assert not LocalRollout(policy, max_rows=8).shared
    for prompt, group in zip(PROMPTS, sample(policy), strict=True):
        for one in group:
            again = completion_logprobs(policy.model, [prompt], [one.tokens])
            assert list(one.logprobs) == pytest.approx(again.tolist(), abs=1e-5)


def test_a_model_without_our_attention_is_not_shared():
    policy = make(FAMILIES["llama"])
    policy.model.set_attn_implementation("eager")
    assert not shareable(policy.model)
    assert_same(sample(policy), sample(make(FAMILIES["llama"])))


@pytest.mark.parametrize("limits", [{"max_rows": 1}, {"max_rows": 3}, {"max_tokens": 1}, {"max_tokens": 130}])
def test_a_sample_does_not_depend_on_its_company(limits):
    policy = make(FAMILIES["grouped heads"])
    assert_same(sample(policy, **limits), sample(policy))


def test_alone_and_in_company_with_its_place():
    policy = make(FAMILIES["grouped heads"])
    together = sample(policy)
    rollout = LocalRollout(policy, max_rows=8)
    for place, prompt in enumerate(PROMPTS):
        alone = rollout.generate([prompt], samples=4, decoding=Decoding(max_tokens=40), key=(5,), places=[place])
        assert_same(alone, [together[place]])


@pytest.mark.parametrize("shared", [True, False])
def test_one_token_each_needs_no_second_pass(shared):
    policy = make(FAMILIES["grouped heads"])
    whole = sample(policy, shared=shared)
    rollout, passes = LocalRollout(policy, max_rows=64), []
    rollout._shared = shared
    policy.model.base_model.register_forward_hook(lambda *_: passes.append(1))
    found = rollout.generate(PROMPTS, samples=4, decoding=Decoding(max_tokens=1), key=(5,))
    assert len(passes) == 1
    assert [c.tokens for c in flat(found)] == [c.tokens[:1] for c in flat(whole)]


def test_bf16_weights():
    """bf16 has 8 bits: log-probs of the same tokens may be off by some hundredths, no more."""
    policy = make(FAMILIES["grouped heads"], dtype=torch.bfloat16)
    for prompt, group in zip(PROMPTS, sample(policy), strict=True):
        again = completion_logprobs(policy.model, [prompt] * 4, [one.tokens for one in group])
        drawn = torch.tensor([value for one in group for value in one.logprobs])
        assert (drawn - again).abs().mean() < 0.1


def test_prompts_are_run_in_portions(monkeypatch):
    policy = make(FAMILIES["llama"])
    whole = sample(policy)
    monkeypatch.setattr(feeding, "PREFILL_TOKENS", 4)
    assert_same(sample(policy), whole)
    assert feeding.portions([1, 2, 3, 3, 9, 9], 6) == [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6)]


# ---------------------------------------------------------------------- what is held


def held(rows, tokens):
    """A cache of two prompts (lengths 5 and 9) after `tokens` tokens of each row."""
    cache = SharedCache(1, [5, 9], most=1000, kind=torch.float32, device=torch.device("cpu"))
    cache.filling = slice(0, 2)
    cache.update(torch.ones(2, 3, 9, 4), torch.ones(2, 3, 9, 4), 0)
    cache.filling = None
    cache.share(torch.arange(rows) % 2)
    for _ in range(tokens):
        cache.update(torch.ones(rows, 3, 1, 4), torch.ones(rows, 3, 1, 4), 0)
    return cache


def test_a_prompt_takes_its_memory_once_whatever_the_number_of_rows():
    prompt = 2 * (2 * 3 * 9 * 4) * 4  # keys and values · (prompts · heads · positions · size) · bytes
    row = 2 * (3 * FIRST_ROOM * 4) * 4
    for rows in (2, 8, 64):
        assert held(rows, 1).bytes() == prompt + rows * row


def test_memory_follows_the_rows_that_still_run():
    cache = held(8, FIRST_ROOM)
    cache.keep(torch.arange(2))
    cache.update(torch.ones(2, 3, 1, 4), torch.ones(2, 3, 1, 4), 0)  # full: new room, for two rows only
    assert cache.bytes() == 2 * (2 * 3 * 9 * 4) * 4 + 2 * 2 * (3 * 2 * FIRST_ROOM * 4) * 4


def test_holes_are_filled_from_the_end():
    wanted = torch.tensor([True, False, True, False, False, True, True])
    assert fill_holes(wanted).tolist() == [0, 5, 2, 6]
    assert fill_holes(torch.tensor([True, True])).tolist() == [0, 1]
    assert fill_holes(torch.tensor([False, False, True])).tolist() == [2]


# ---------------------------------------------------------------------- its attention


@pytest.mark.parametrize("masked", [False, True])
def test_both_ways_of_partial_attention_equal_the_formula(masked):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    mask = torch.zeros(2, 1, 1, 6)
    if masked:
        mask[1, ..., 4:] = -torch.inf
    scores = torch.einsum("bhqd,bhkd->bhqk", query.double(), key.double()) * 0.3 + mask
    out, lse = torch.softmax(scores, -1) @ value.double(), torch.logsumexp(scores, -1)
    for way in (partial, partial_by_products):
        found, found_lse = way(query, key, value, mask if masked else None, 0.3)
        assert torch.allclose(found.double(), out, atol=1e-6)
        assert torch.allclose(found_lse.double(), lse, atol=1e-6)
