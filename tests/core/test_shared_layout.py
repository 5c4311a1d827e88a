"""The shared layout gives what rows padded on the right give, each prompt once; and what the update holds in memory."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from grpo_core.errors import ModelError
from grpo_core.model import sharing
from grpo_core.model.attention import ours, use_ours
from grpo_core.model.layers import recompute_layers
from grpo_core.model.layout import plan_rows
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import completion_loss, completion_terms
from grpo_core.model.precision import products
from grpo_core.model.settle import check_layout, settled

torch.set_num_threads(1)

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.4}  # wide: far from even
FAMILIES = {
    "llama, no grouped heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, **{**HEADS, "num_key_value_heads": 4})),
    "qwen 2, grouped heads": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, **HEADS)),
    "qwen 3, norms inside": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS, head_dim=8)),
    "mistral, no window": lambda: MistralForCausalLM(MistralConfig(**SIZES, **HEADS, sliding_window=None)),
}
WINDOWED = lambda: MistralForCausalLM(MistralConfig(**SIZES, **HEADS, sliding_window=4))  # noqa: E731
# Four prompts, of one token too; completions of one token, of which nothing is fed; rows of a group not side by side.
PROMPTS = [[10, 20, 30], [40], [10, 20, 30], [50, 60, 70, 80, 90, 11, 12, 13], [5, 6], [40], [10, 20, 30]]
COMPLETIONS = [[1, 2, 3, 4], [5], [9] * 7, [6, 7, 8, 9, 10, 11], [7, 7], [1, 2], [3]]
TOKENS = sum(map(len, COMPLETIONS))


def make(family):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = family().eval()
    use_ours(model)
    return model


def loaded(model):
    return LoadedModel(model, None, frozenset({0}), 0, None, torch.device("cpu"))


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def run(model, layout, **options):
    """Log-probabilities, entropies and the gradient of a sum that weighs every one of them differently."""
    model.zero_grad()
    terms = completion_terms(model, PROMPTS, COMPLETIONS, layout=layout, entropy=True, temperature=0.7, **options)
    ((terms.logprobs_N + 0.3 * terms.entropy_N) * torch.arange(1.0, TOKENS + 1)).sum().backward()
    return terms.logprobs_N.detach(), terms.entropy_N.detach(), gradient(model)


def same(found, expected, relative=5e-6):
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=max(1e-5, relative * theirs.abs().max().item()))


@pytest.mark.parametrize("way", ["pieces", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_gives_the_numbers_and_gradients_of_right(family, way, monkeypatch):
    model = make(FAMILIES[family])
    expected = run(model, "right")
    assert expected[0].min() < -4
    if way == "padded":  # what devices other than the CPU do
        monkeypatch.setattr(sharing._Pieces, "apply", sharing._padded)
    same(run(model, "shared"), expected)


def test_a_completion_knows_its_prompt_and_no_other_completion():
    model = make(FAMILIES["qwen 2, grouped heads"])
    sizes = [len(c) for c in COMPLETIONS]

    def rows(prompts, completions):
        with torch.no_grad():
            terms = completion_terms(model, prompts, completions, layout="shared")
        return terms.logprobs_N.split(sizes)

    before = rows(PROMPTS, COMPLETIONS)
    other_completion = [*COMPLETIONS[:2], [9] * 2 + [8] + [9] * 4, *COMPLETIONS[3:]]
    after = rows(PROMPTS, other_completion)
    moved = [(a - b).abs().max().item() for a, b in zip(after, before, strict=True)]
    assert moved[2] > 1e-2
    assert max(moved[:2] + moved[3:]) <= 1e-6
    after = rows([[11, 20, 30] if p == [10, 20, 30] else p for p in PROMPTS], COMPLETIONS)
    moved = [(a - b).abs().max().item() for a, b in zip(after, before, strict=True)]
    assert min(moved[0], moved[2], moved[6]) > 1e-3
    assert max(moved[1], *moved[3:6]) <= 1e-6


def test_only_real_tokens_go_through_the_layers_and_prompts_once():
    model = make(FAMILIES["qwen 2, grouped heads"])
    seen = []
    model.model.layers[0].mlp.register_forward_hook(lambda _, args, __: seen.append(tuple(args[0].shape[:2])))
    with torch.no_grad():
        completion_terms(model, PROMPTS, COMPLETIONS, layout="shared")
    prompts = 3 + 1 + 8 + 2
    assert seen == [(1, prompts + TOKENS - len(COMPLETIONS))]


@pytest.mark.parametrize("layout", ["right", "shared"])
def test_recomputed_layers_give_the_same(layout):
    model = make(FAMILIES["qwen 2, grouped heads"])
    expected = run(model, layout)
    calls = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    recompute_layers(model)
    same(run(model, layout), expected)
    assert len(calls) == 2  # once for the pass, once for the gradient
    with torch.no_grad():
        completion_terms(model, PROMPTS, COMPLETIONS, layout=layout)
    assert len(calls) == 3


@pytest.mark.parametrize("recomputed", [False, True])
def test_bfloat16_products_are_near(recomputed):
    model = make(FAMILIES["qwen 3, norms inside"])
    exact = run(model, "right")
    if recomputed:
        recompute_layers(model)
    with products("bfloat16", torch.device("cpu")):
        logprobs_N, entropy_N, slopes = run(model, "shared")
    assert logprobs_N.dtype == entropy_N.dtype == slopes.dtype == torch.float32
    assert 1e-4 < (logprobs_N - exact[0]).abs().max() < 0.4
    assert torch.cosine_similarity(slopes, exact[2], dim=0) > 0.99


# ---------------------------------------------------------------------- which layout


def test_auto_is_shared_where_that_gives_the_same():
    policy = loaded(make(FAMILIES["qwen 2, grouped heads"]))
    assert settled(policy, "auto") == "shared"
    assert policy.unshared is None
    assert settled(policy, "packed") == "packed"


def test_a_window_is_not_shared():
    policy = loaded(make(WINDOWED))
    assert ours(policy.model)
    assert settled(policy, "auto") == "right"
    assert policy.unshared is not None
    assert "sliding_window" in policy.unshared
    with pytest.raises(
        ModelError, match=r"MistralForCausalLM cannot take engine\.layout shared.*engine\.layout: right"
    ):
        settled(policy, "shared")


def test_attention_that_cannot_be_taken_over_is_not_shared():
    model = make(FAMILIES["qwen 2, grouped heads"])
    model.set_attn_implementation("eager")
    with pytest.raises(ModelError, match="none that can be taken over"):
        check_layout(model, "shared")


# ---------------------------------------------------------------------- planning


def test_groups_stay_together_and_prompts_count_once():
    a, b, c = [1] * 10, [2] * 5, [3] * 4
    prompts, completions = [a, a, b, b, b, c], [[0] * n for n in (8, 6, 5, 4, 3, 1)]
    # a: 10+8+6 = 24, b: 5+5+4+3 = 17, c: 5.
    assert plan_rows(prompts, completions, 46, "shared") == [[0, 1, 2, 3, 4, 5]]
    assert plan_rows(prompts, completions, 45, "shared") == [[0, 1, 2, 3, 4], [5]]
    assert plan_rows(prompts, completions, 29, "shared") == [[0, 1, 5], [2, 3, 4]]
    # Too large a group is cut, with its prompt in each part: a into 18 and 16; b into 14 and 8.
    assert plan_rows(prompts, completions, 16, "shared") == [[0], [1], [2, 3], [4, 5]]
    assert plan_rows([], [], 16, "shared") == []


# ---------------------------------------------------------------------- memory


class Largest(TorchDispatchMode):
    """The most elements that any tensor had which was made within it."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self.numel = max(self.numel, leaf.numel())
        return made


@pytest.mark.parametrize("by_token", [True, False])
def test_logits_of_all_tokens_are_never_alive(by_token):
    """Eight times the rows: 200 tokens of 97 logits, in portions of two. The widest that is left are the layers'."""
    model = make(FAMILIES["qwen 2, grouped heads"])
    fed = 14 + 8 * (TOKENS - len(COMPLETIONS))
    assert 2 * fed * 48 < 8 * TOKENS * 97
    with Largest() as largest:
        completion_loss(
            model,
            PROMPTS * 8,
            COMPLETIONS * 8,
            lambda terms, here: terms.logprobs_N.sum(),
            by_token=by_token,
            layout="shared",
            logits_at_once=194,
        ).backward()
    assert fed * 48 <= largest.numel < 2 * fed * 48


@pytest.mark.parametrize("layout", ["right", "shared"])
@pytest.mark.parametrize("by_token", [True, False])
def test_the_gradient_is_that_of_the_models_own_logits(by_token, layout):
    """Against transformers' logits row by row in float64, and PyTorch's log-softmax."""
    model = make(FAMILIES["qwen 2, grouped heads"])
    weights_N = torch.linspace(-1, 1, TOKENS)

    def loss_of(terms, here):
        return (weights_N[here] * (terms.logprobs_N + 0.5 * terms.entropy_N)).sum()

    options = {"layout": layout, "temperature": 0.7, "entropy": True, "logits_at_once": 97 * 4}
    loss = completion_loss(model, PROMPTS, COMPLETIONS, loss_of, by_token=by_token, **options)
    loss.backward()
    found = gradient(model).double()

    plain, exact, place = make(FAMILIES["qwen 2, grouped heads"]).double(), 0.0, 0
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        logits_TV = plain(torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        table_TV = torch.log_softmax(logits_TV / 0.7, dim=-1)
        entropy_T = -(table_TV.exp() * table_TV).sum(-1)
        logprobs_T = table_TV[torch.arange(len(completion)), completion]
        exact = exact + (weights_N[place : place + len(completion)] * (logprobs_T + 0.5 * entropy_T)).sum()
        place += len(completion)
    exact.backward()
    assert loss.item() == pytest.approx(exact.item(), abs=1e-4)
    expected = gradient(plain)
    assert torch.allclose(found, expected, rtol=0, atol=2e-5 * expected.abs().max().item())


@pytest.mark.parametrize("portion", [97 * 5, None])
def test_the_gradient_formed_early_is_that_of_autograd(portion):
    weights_N = torch.linspace(-1, 1, TOKENS)

    def loss_of(terms, here):
        ratio_n = torch.exp(terms.logprobs_N - terms.logprobs_N.detach() + 0.1)
        return ((ratio_n + terms.logprobs_N**2 - 0.5 * terms.entropy_N) * weights_N[here]).sum()

    def found(by_token):
        model = make(FAMILIES["qwen 2, grouped heads"])
        options = {"layout": "right", "temperature": 0.7, "entropy": True, "logits_at_once": portion}
        loss = completion_loss(model, PROMPTS, COMPLETIONS, loss_of, by_token=by_token, **options)
        (2 * loss).backward()
        return loss.detach(), gradient(model)

    same(found(True), found(False))
