"""The local sampler: its log-probabilities are the trainer's, whether a prompt is held once or for every row,
and whether a token goes through the model's modules or through the flat list of operations (replay)."""

import weakref
from pathlib import Path

import pytest
import torch

from grpo_core.config.run import LoraConfig
from grpo_core.errors import ModelError
from grpo_core.model.attention import use_ours
from grpo_core.model.load import LoadedModel, ModelSource
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.model.lora import adapters_off, add_adapters
from grpo_core.rollout import local, stepper
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.replay import LEAST_TOKENS, Replay, replayable
from grpo_core.rollout.shared_cache import FIRST_ROOM, SharedCache, partial, partial_by_products, shareable

from .families import families

torch.set_num_threads(1)
FAMILIES = families("sampler", "shared")
QUICK = ("grouped heads", "gpt2")
PRODUCTS = {"llama": 4, "grouped heads": 4, "one head for all": 4, "gpt2": 0, "norms on queries": 4}
"""Of a layer once those of one input are joined; gpt2 keeps its weights the other way round."""
WINDOWED, UNTRACED = families("sampler", "windowed"), families("sampler", "untraced")
PROMPTS = [[10, 20, 30], [40], [50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150], [10, 20, 30], [7, 8]]


def make(build, *, ends=range(20), dtype=torch.float32, pad=0):
    torch.manual_seed(3)
    model = build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4)  # far from even distributions, and attention that is not the mean
    use_ours(model)
    return LoadedModel(model.to(dtype), None, frozenset(ends), pad, ModelSource(Path("/"), "made"), torch.device("cpu"))


def sample(policy, *, prompts=PROMPTS, shared=None, samples=4, max_rows=64, wave_tokens=100_000, key=(5,), **decoding):
    rollout = LocalRollout(policy, max_rows=max_rows, max_tokens=wave_tokens)
    if shared is not None:
        rollout._shared = shared
    return rollout.generate(prompts, samples=samples, decoding=Decoding(**{"max_tokens": 40, **decoding}), key=key)


def flat(groups):
    return [completion for group in groups for completion in group]


def tokens(groups):
    return [completion.tokens for completion in flat(groups)]


def assert_same(drawn, expected):
    for completion, other in zip(flat(drawn), flat(expected), strict=True):
        assert (completion.tokens, completion.finish) == (other.tokens, other.finish)
        assert list(completion.logprobs) == pytest.approx(list(other.logprobs), abs=1e-5)
        assert completion.entropy == pytest.approx(other.entropy, abs=1e-5)


def assert_the_trainers(policy, groups, *, prompts=PROMPTS, temperature=1.0, within=1e-5):
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            again = completion_logprobs(policy.model, [prompt], [completion.tokens], temperature=temperature)
            assert list(completion.logprobs) == pytest.approx(again.tolist(), abs=within)


# ---------------------------------------------------------------------- a prompt held once


@pytest.mark.parametrize("decoding", [{}, {"temperature": 0.7, "top_k": 20}, {"temperature": 0.0}, {"top_p": 0.8}])
@pytest.mark.parametrize("family", list(FAMILIES)[:4])
def test_a_prompt_held_once_gives_what_a_prompt_held_for_every_row_gives(family, decoding):
    policy = make(FAMILIES[family])
    assert shareable(policy.model)
    shared = sample(policy, **decoding)
    assert_same(shared, sample(policy, shared=False, **decoding))
    assert decoding.get("temperature") == 0 or len({len(ids) for ids in tokens(shared)}) > 5  # ragged ends
    if decoding.get("temperature", 1.0) > 0:
        assert_the_trainers(policy, shared, temperature=decoding.get("temperature", 1.0))


@pytest.mark.parametrize("family", WINDOWED)
def test_models_with_sliding_windows_keep_a_cache_of_their_own(family):
    policy = make(WINDOWED[family])
    assert not LocalRollout(policy, max_rows=8).shared
    assert_the_trainers(policy, sample(policy))


def test_a_model_without_our_attention_is_not_shared():
    policy = make(FAMILIES["llama"])
    policy.model.set_attn_implementation("eager")
    assert not shareable(policy.model)
    assert_same(sample(policy), sample(make(FAMILIES["llama"])))


def test_rows_outgrow_their_room(monkeypatch):
    policy, most = make(FAMILIES["grouped heads"], ends=[]), 2 * FIRST_ROOM + 10
    monkeypatch.setattr(local, "LEAST_TOKENS", 10**9)  # tracing takes longer than these tokens
    drawn = sample(policy, prompts=[[3, 4, 5]], samples=2, max_tokens=most)
    assert {len(completion) for completion in tokens(drawn)} == {most}
    assert_the_trainers(policy, drawn, prompts=[[3, 4, 5]], within=2e-5)


@pytest.mark.parametrize("limits", [{"max_rows": 1}, {"max_rows": 3}, {"wave_tokens": 1}, {"wave_tokens": 130}])
@pytest.mark.parametrize("shared", [True, False])
def test_a_sample_does_not_depend_on_its_company(limits, shared):
    policy = make(FAMILIES["grouped heads"])
    assert_same(sample(policy, shared=shared, **limits), sample(policy))


def test_a_sample_hangs_on_the_key_its_place_and_its_number():
    policy = make(FAMILIES["grouped heads"])
    together = sample(policy)
    rollout = LocalRollout(policy, max_rows=8)
    for index, prompt in enumerate(PROMPTS):
        alone = rollout.generate([prompt], samples=4, decoding=Decoding(max_tokens=40), key=(5,), indices=[index])
        assert_same(alone, [together[index]])
    assert tokens(sample(policy, key=(6,))) != tokens(together)
    assert tokens([together[0]]) != tokens([together[3]])  # the same prompt in two places has two streams
    assert len(set(tokens([together[0]]))) == 4  # and so have the samples of a group


def test_prompts_are_fed_once_and_in_portions(monkeypatch):
    policy, fed = make(FAMILIES["llama"], ends=[]), []
    whole = sample(policy, max_tokens=2)
    policy.model.base_model.register_forward_pre_hook(
        lambda module, given, named: fed.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    assert_same(sample(policy, max_tokens=2), whole)
    assert fed[1:] == [(4, 11), (20, 1)]  # four distinct prompts of at most 11 tokens, then 5 · 4 rows of one
    monkeypatch.setattr(stepper, "PREFILL_TOKENS", 4)
    assert_same(sample(policy, max_tokens=2), whole)
    assert stepper.portions([1, 2, 3, 3, 9, 9], 6) == [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6)]


@pytest.mark.parametrize("shared", [True, False])
def test_a_token_each_needs_no_second_pass(shared):
    policy, passes = make(FAMILIES["grouped heads"]), []
    whole = sample(policy, shared=shared)
    policy.model.base_model.register_forward_hook(lambda *_: passes.append(1))
    assert tokens(sample(policy, shared=shared, max_tokens=1)) == [ids[:1] for ids in tokens(whole)]
    assert len(passes) == 1


@pytest.mark.parametrize("pad", [0, 106])  # 106 is an end token too
@pytest.mark.parametrize("shared", [True, False])
def test_any_end_token_ends_a_completion(pad, shared):
    ends = {1, 106, *range(200, 230)}
    free = flat(sample(make(FAMILIES["llama"], ends=[], pad=pad), samples=24, max_rows=256, shared=shared))
    drawn = flat(sample(make(FAMILIES["llama"], ends=ends, pad=pad), samples=24, max_rows=256, shared=shared))
    kinds = set()
    for completion, whole in zip(drawn, free, strict=True):
        # The same stream without end tokens says where it should have ended: at the first of any of them.
        first = next((t for t, token in enumerate(whole.tokens) if token in ends), None)
        kept = whole.tokens if first is None else whole.tokens[: first + 1]
        assert (completion.tokens, completion.finish) == (kept, "length" if first is None else "eos")
        assert len(completion.logprobs) == len(kept)
        kinds.add("none" if first is None else "last" if first == 39 else "at once" if first == 0 else "later")
    assert kinds >= {"none", "at once", "later"}


def test_an_end_token_in_the_last_place_is_an_end():
    short = {"prompts": [[5, 6]], "samples": 1, "max_tokens": 1}
    (free,) = flat(sample(make(FAMILIES["llama"], ends=[]), **short))
    (drawn,) = flat(sample(make(FAMILIES["llama"], ends=free.tokens), **short))
    assert (free.tokens, free.finish, drawn.finish) == (drawn.tokens, "length", "eos")


def test_bf16_weights():
    """bf16 has 8 bits: log-probs of the same tokens may be off by some hundredths, no more."""
    policy = make(FAMILIES["grouped heads"], dtype=torch.bfloat16)
    for prompt, group in zip(PROMPTS, sample(policy), strict=True):
        again = completion_logprobs(policy.model, [prompt] * 4, [completion.tokens for completion in group])
        drawn = torch.tensor([value for completion in group for value in completion.logprobs])
        assert (drawn - again).abs().mean() < 0.1


def test_the_check_can_stop_the_sampler():
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 5:
            raise InterruptedError

    rollout = LocalRollout(make(FAMILIES["llama"], ends=[]), max_rows=8, check=check)
    with pytest.raises(InterruptedError):
        rollout.generate([[1, 2]], samples=2, decoding=Decoding(max_tokens=100), key=(0,))
    assert len(calls) == 5


# ---------------------------------------------------------------------- what the shared cache holds


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


def test_a_prompt_takes_its_memory_once_and_rows_while_they_run():
    prompt = 2 * (2 * 3 * 9 * 4) * 4  # keys and values · (prompts · heads · positions · size) · bytes
    row = 2 * (3 * FIRST_ROOM * 4) * 4
    for rows in (2, 64):
        assert held(rows, 1).bytes() == prompt + rows * row
    cache = held(8, FIRST_ROOM)
    cache.keep(torch.arange(2))
    cache.update(torch.ones(2, 3, 1, 4), torch.ones(2, 3, 1, 4), 0)  # full: new room, for two rows only
    assert cache.bytes() == prompt + 2 * 2 * row


def test_a_cache_is_freed_with_its_last_reference():
    cache = held(2, 1)
    freed = weakref.ref(cache)
    del cache
    assert freed() is None  # at once, not when the garbage collector runs


@pytest.mark.parametrize("way", [partial, partial_by_products])
@pytest.mark.parametrize("masked", [False, True])
def test_partial_attention_is_the_formula(way, masked):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    mask = torch.zeros(2, 1, 1, 6)
    if masked:
        mask[1, ..., 4:] = -torch.inf
    scores = torch.einsum("bhqd,bhkd->bhqk", query.double(), key.double()) * 0.3 + mask
    output, found_lse = way(query, key, value, mask if masked else None, 0.3)
    assert torch.allclose(output.double(), torch.softmax(scores, -1) @ value.double(), atol=1e-6)
    assert torch.allclose(found_lse.double(), torch.logsumexp(scores, -1), atol=1e-6)


# ---------------------------------------------------------------------- a token as a flat list of operations


@pytest.fixture
def always(monkeypatch):
    """Completions of these tests are shorter than those it is made for."""
    monkeypatch.setattr(local, "LEAST_TOKENS", 1)


def replayed(rollout, *, prompts=PROMPTS, traced=True, **decoding):
    drawn = rollout.generate(prompts, samples=4, decoding=Decoding(**{"max_tokens": 40, **decoding}), key=(5,))
    assert (rollout._replay is not None) == traced
    return drawn


def by_modules(policy, **decoding):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "LEAST_TOKENS", 10**9)
        return replayed(LocalRollout(policy, max_rows=64), traced=False, **decoding)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "family",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_replay_gives_what_the_modules_give_and_follows_the_weights(family):
    policy = make(FAMILIES[family])
    rollout = LocalRollout(policy, max_rows=64)
    before = replayed(rollout)
    assert_same(before, by_modules(policy))
    assert_same(replayed(rollout, temperature=0.0), by_modules(policy, temperature=0.0))
    assert_same(replayed(rollout, prompts=[[3, 4]]), by_modules(policy, prompts=[[3, 4]]))
    joined = rollout._replay._joined
    assert len(joined) == PRODUCTS[family] * policy.model.config.num_hidden_layers
    if family == "grouped heads":
        assert [product.sizes for product in joined[:4]] == [[32, 16, 16], [32], [48, 48], [32]]
        assert [product.bias() is None for product in joined[:4]] == [False, True, True, True]
    torch.manual_seed(9)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    after = replayed(rollout)
    assert_same(after, by_modules(policy))
    assert tokens(before) != tokens(after)


@pytest.mark.usefixtures("always")
def test_adapters_are_in_the_replay_and_off_they_are_not():
    policy = make(FAMILIES["grouped heads"])
    add_adapters(policy, LoraConfig(rank=4, alpha=8), seed=1)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.uniform_(-0.3, 0.3)
    rollout = LocalRollout(policy, max_rows=64)
    on = replayed(rollout)
    assert_same(on, by_modules(policy))
    with adapters_off(policy.model):
        assert not replayable(policy)
        off = replayed(rollout)
        assert_same(off, by_modules(policy))
    assert tokens(on) != tokens(off)


@pytest.mark.usefixtures("always")
def test_no_weight_is_held_between_calls_nor_after_a_stop():
    stops = []

    def weights():
        return [getattr(rollout._replay._list, product.name) for product in rollout._replay._joined]

    def check():
        if stops:
            assert all(weight is not None for weight in weights())
            raise InterruptedError

    rollout = LocalRollout(make(FAMILIES["llama"]), max_rows=64, check=check)
    replayed(rollout)
    assert weights()
    assert all(weight is None for weight in weights())
    stops.append(True)
    with pytest.raises(InterruptedError):
        replayed(rollout)
    assert all(weight is None for weight in weights())


def test_short_completions_are_not_worth_tracing():
    rollout = LocalRollout(make(FAMILIES["llama"]), max_rows=64)
    for most, traced in ((LEAST_TOKENS - 1, False), (LEAST_TOKENS, True)):
        replayed(rollout, prompts=[[1, 2]], traced=traced, max_tokens=most)


def look(module, inputs, output):
    return output * 2 if output.sum().item() > 0 else output


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("build", "dtype", "warned"),
    [
        (FAMILIES["llama"], torch.bfloat16, False),
        (FAMILIES["llama"], torch.float32, True),  # with a hook that looks at its numbers
        (UNTRACED["experts"], None, True),
        # Capped scores are not for the shared cache, so nobody asks.
        (UNTRACED["capped"], None, False),
    ],
    ids=["bf16", "looks", "experts", "capped"],
)
def test_models_that_cannot_be_traced_go_through_their_modules(build, dtype, warned, caplog):
    policy, messages = make(build, dtype=dtype or torch.float32), []
    if dtype == torch.float32:
        policy.model.model.norm.register_forward_hook(look)
    rollout = LocalRollout(policy, max_rows=64, log=messages.append)
    for _ in range(2):
        assert_same(replayed(rollout, traced=False), by_modules(policy))
    assert len(messages) == warned
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_trace_that_gives_other_numbers_is_refused():
    calls, policy = [], make(FAMILIES["llama"])

    def drift(module, inputs, output):
        calls.append(1)
        return output * (1 + 1e-3 * len(calls))

    policy.model.model.norm.register_forward_hook(drift)
    with pytest.raises(ModelError, match="off by"):
        Replay(policy)
