"""However rows lie in a batch, numbers and gradients are those of each row alone, from the model's own logits;
entropies against closed forms; which layout a model can take; and what the update holds in memory."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo_core.errors import ModelError
from grpo_core.model import layout_choice
from grpo_core.model.attention import ours, use_ours
from grpo_core.model.layers import recompute_layers
from grpo_core.model.layout import plan_micro_batches, plan_rows
from grpo_core.model.layout_choice import check_layout, resolve_layout
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import completion_logprobs, completion_loss, completion_terms
from grpo_core.model.sharing import Sharing
from grpo_core.training.base import products
from tests.tables import cases

from .families import families

torch.set_num_threads(1)

LAYOUTS = ("right", "left", "packed", "shared")
# Four prompts, of one token too; completions of one token, of which nothing is fed; rows of a group apart.
PROMPTS = [[10, 20, 30], [40], [10, 20, 30], [50, 60, 70, 80, 90, 11, 12, 13], [5, 6], [40], [10, 20, 30]]
COMPLETIONS = [[1, 2, 3, 4], [5], [9] * 7, [6, 7, 8, 9, 10, 11], [7, 7], [1, 2], [3]]
LENGTHS = [len(completion) for completion in COMPLETIONS]
TOKENS = sum(LENGTHS)
VOCABULARY = 97
FAMILIES, UNSHARED = families("layouts", "shared"), families("layouts", "unshared")
ALL = {**FAMILIES, **UNSHARED}


def make(family, attention="ours"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = family().eval()
    if attention == "ours":
        use_ours(model)
    else:
        model.set_attn_implementation(attention)
    return model


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def run(model, layout, **options):
    """Log-probabilities, entropies and the gradient of a sum that weighs every one of them differently."""
    model.zero_grad()
    terms = completion_terms(model, PROMPTS, COMPLETIONS, layout=layout, entropy=True, temperature=0.7, **options)
    assert terms.logprobs_N.dtype == terms.entropy_N.dtype == torch.float32
    ((terms.logprobs_N + 0.3 * terms.entropy_N) * torch.arange(1.0, TOKENS + 1)).sum().backward()
    return terms.logprobs_N.detach(), terms.entropy_N.detach(), gradient(model)


def alone(model):
    """The same from transformers' logits row by row, and PyTorch's log-softmax in float64."""
    logprobs, entropies = [], []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        logits_TV = model(torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        table_TV = torch.log_softmax(logits_TV.double() / 0.7, dim=-1)
        entropies.append(-(table_TV.exp() * table_TV).sum(-1))
        logprobs.append(table_TV[torch.arange(len(completion)), completion])
    logprobs_N, entropies_N = torch.cat(logprobs), torch.cat(entropies)
    ((logprobs_N + 0.3 * entropies_N) * torch.arange(1.0, TOKENS + 1)).sum().backward()
    return logprobs_N.detach(), entropies_N.detach(), gradient(model)


def same(got, expected, relative=5e-6):
    for mine, theirs in zip(got, expected, strict=True):
        largest = theirs.abs().max().item()
        assert torch.allclose(mine.double(), theirs.double(), rtol=0, atol=max(1e-5, relative * largest))


KINDS = [
    *((family, "eager") for family in UNSHARED),  # Gemma 2 caps its attention scores, which sdpa cannot
    *((family, "sdpa") for family in ("llama", "mistral, windows", "gpt 2, positions learned")),
]


@pytest.mark.parametrize(
    ("family", "attention", "layout"),
    [
        *((family, "ours", layout) for family in FAMILIES for layout in LAYOUTS),
        *((*kind, layout) for kind in KINDS for layout in LAYOUTS[:3]),
    ],
)
def test_every_layout_gives_each_rows_own_numbers_and_gradients(family, attention, layout):
    *numbers, slopes = alone(make(ALL[family], "eager" if attention == "ours" else attention))
    assert numbers[0].max() - numbers[0].min() > 2  # far from even, or a mistake would not show
    *terms, gradients = run(make(ALL[family], attention), layout)
    same(terms, numbers, relative=5e-6 if layout == "shared" else 0)
    same([gradients], [slopes], relative=2e-5)
    same([*terms, gradients], run(make(ALL[family], attention), "right"))


@pytest.mark.parametrize("family", FAMILIES)
def test_shared_as_devices_other_than_the_cpu_do_it(family, monkeypatch):
    expected = run(make(FAMILIES[family]), "right")
    monkeypatch.setattr(Sharing, "_pieces", Sharing._padded)
    same(run(make(FAMILIES[family]), "shared"), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_completion_knows_its_prompt_and_no_other_row(layout):
    model = make(FAMILIES["qwen 2, grouped heads"])

    def rows(prompts=PROMPTS, completions=COMPLETIONS, pad=0):
        with torch.no_grad():
            return completion_logprobs(model, prompts, completions, layout=layout, pad_id=pad).split(LENGTHS)

    def moved(after):
        return [(a - b).abs().max().item() for a, b in zip(after, before, strict=True)]

    before = rows()
    assert max(moved(rows(pad=96))) <= 1e-6  # nor of what fills the batch up
    other = moved(rows(completions=[*COMPLETIONS[:2], [9] * 2 + [8] + [9] * 4, *COMPLETIONS[3:]]))
    assert other[2] > 1e-2
    assert max(other[:2] + other[3:]) <= 1e-6
    other = moved(rows([[11, 20, 30] if prompt == [10, 20, 30] else prompt for prompt in PROMPTS]))
    assert min(other[0], other[2], other[6]) > 1e-3
    assert max(other[1], *other[3:6]) <= 1e-6


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
        logprobs_N, _, slopes = run(model, "shared")
    assert 1e-4 < (logprobs_N - exact[0]).abs().max() < 0.4
    assert torch.cosine_similarity(slopes, exact[2], dim=0) > 0.99


# ---------------------------------------------------------------------- which layout a model can take


def test_auto_is_shared_where_that_gives_the_same():
    for family, chosen in (("qwen 2, grouped heads", "shared"), ("mistral, windows", "right")):
        model = make(ALL[family])
        policy = LoadedModel(model, None, frozenset({0}), 0, None, torch.device("cpu"))
        assert ours(model)
        assert resolve_layout(policy, "auto") == chosen
        assert resolve_layout(policy, "packed") == "packed"
        if chosen == "shared":
            assert policy.unshared is None
        else:
            assert "sliding_window" in policy.unshared
            with pytest.raises(ModelError, match=r"engine\.layout"):
                resolve_layout(policy, "shared")


def test_attention_that_cannot_be_taken_over_is_not_shared():
    with pytest.raises(ModelError, match="taken over"):
        check_layout(make(FAMILIES["qwen 2, grouped heads"], "eager"), "shared")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layout_is_refused_where_rows_would_run_into_one_another(dtype):
    (family,) = families("layouts", "refused").values()
    model = make(family, "eager").to(dtype)
    with pytest.raises(ModelError, match=r"Lfm2ForCausalLM.*engine\.layout"):
        check_layout(model, "packed")
    check_layout(model, "right")


@pytest.mark.parametrize(
    ("dtype", "off", "refused"),
    [
        (torch.bfloat16, 0.125, False),  # the last place of a logit of 16 and more; processors round apart
        (torch.bfloat16, 1.0, True),
        (torch.bfloat16, math.nan, True),
        (torch.float32, 0.125, True),
    ],
)
def test_a_last_place_of_bf16_is_no_reason(monkeypatch, dtype, off, refused):
    def elsewhere(*given, layout, **named):
        found_N = completion_logprobs(*given, layout="right", **named)
        if layout != "right":
            found_N[0] += off
        return found_N

    monkeypatch.setattr(layout_choice, "completion_logprobs", elsewhere)
    with pytest.raises(ModelError, match="off by") if refused else nullcontext():
        check_layout(make(FAMILIES["llama"], "eager").to(dtype), "left")


@pytest.mark.parametrize("family", ["llama", *UNSHARED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_every_kind_passes_the_check(family, dtype):
    model = make(ALL[family], "eager").to(dtype)
    for layout in LAYOUTS[:3]:
        check_layout(model, layout)


# ---------------------------------------------------------------------- planning


@pytest.mark.parametrize(
    ("prompts", "lengths", "budget", "layout", "batches"),
    cases("trainer/micro_batches", "prompts", "lengths", "budget", "layout", "batches"),
)
def test_micro_batches_keep_the_budget_and_lose_no_row(prompts, lengths, budget, layout, batches):
    if prompts is None:
        assert plan_micro_batches(lengths, budget, layout) == batches
    else:
        texts = [[length] * length for length in prompts]
        assert plan_rows(texts, [[0] * length for length in lengths], budget, layout) == batches


# ---------------------------------------------------------------------- entropy, by hand


class Bigram(nn.Module):
    """A model whose logits after a token are that token's row of a table."""

    def __init__(self, table_VV):
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table_VV))
        self.output = nn.Linear(len(table_VV), len(table_VV), bias=False)
        self.output.weight.data = torch.eye(len(table_VV))
        self.config = SimpleNamespace()

    def get_output_embeddings(self):
        return self.output

    @property
    def base_model(self):
        def look_up(input_ids, **_):
            return SimpleNamespace(last_hidden_state=self.table[input_ids])

        look_up.parameters = self.parameters
        return look_up


LN3 = math.log(3)
QUARTER = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))  # of 3 to 1


def test_entropy_of_known_distributions():
    table = [[0.0, 0.0, 0.0, 0.0], [2 * LN3, 0.0, -1e30, -1e30], [50.0, -50.0, -50.0, -50.0], [0.0, 0.0, -1e30, -1e30]]
    model = Bigram(table)
    terms = completion_terms(model, [[0]], [[1, 2, 3, 0]], temperature=2.0, entropy=True)
    assert terms.entropy_N.tolist() == pytest.approx([math.log(4), QUARTER, 0.0, math.log(2)], abs=1e-6)
    assert terms.logprobs_N[[0, 3]].tolist() == pytest.approx([-math.log(4), -math.log(2)])
    terms.entropy_N.sum().backward()
    assert torch.isfinite(model.table.grad).all()
    assert completion_terms(model, [[0]], [[1]]).entropy_N is None  # not computed unasked


def test_entropy_survives_impossible_tokens():
    class Barred(Bigram):
        def get_output_embeddings(self):
            def output(hidden_ND):
                return hidden_ND + torch.tensor([0.0, 0.0, -math.inf])

            output.weight = self.output.weight
            return output

    model = Barred([[LN3, 0.0, 7.0]] * 3)
    terms = completion_terms(model, [[0]], [[1]], entropy=True)
    assert terms.entropy_N.item() == pytest.approx(QUARTER, abs=1e-6)
    terms.entropy_N.sum().backward()
    # dH/dz = −p (log p + H): with p = 3/4 and 1/4 that is ∓ 3/16 · ln 3, and 0 for the impossible one.
    assert model.table.grad[0].tolist() == pytest.approx([-3 / 16 * LN3, 3 / 16 * LN3, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "factor"), [({}, 1.0), ({"logit_scale": 0.25}, 0.25), ({"logits_scaling": 8.0}, 0.125)]
)
def test_the_output_layers_bias_and_the_familys_factor(settings, factor):
    """Logits z are f · (hidden + bias) here; d log p / dz = 1[own] − p and dH/dz = −p (log p + H), times f / T."""
    row, bias, temperature = [3.0, -8.0, 11.0, 0.0], [5.0, 0.0, -10.0, 2.0], 2.0
    weights = [math.exp(factor * (h + b) / temperature) for h, b in zip(row, bias, strict=True)]
    p = [w / sum(weights) for w in weights]
    entropy = -sum(q * math.log(q) for q in p)
    slopes = {
        "logprobs_N": [factor * ((token == 3) - q) / temperature for token, q in enumerate(p)],
        "entropy_N": [-factor * q * (math.log(q) + entropy) / temperature for q in p],
    }
    for name, value in (("logprobs_N", math.log(p[3])), ("entropy_N", entropy)):
        model = Bigram([row] * 4)
        model.output.bias = nn.Parameter(torch.tensor(bias))
        model.config = SimpleNamespace(**settings)
        values = getattr(completion_terms(model, [[2]], [[3]], temperature=temperature, entropy=True), name)
        assert values.item() == pytest.approx(value, abs=1e-6)
        values.sum().backward()
        for grad in (model.output.bias.grad, model.table.grad[2]):
            assert grad.tolist() == pytest.approx(slopes[name], abs=1e-6)


# ---------------------------------------------------------------------- portions and memory


class Largest(TorchDispatchMode):
    """The most elements that any tensor had which was made within it."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return made


@pytest.mark.parametrize("by_token", [True, False])
def test_logits_of_all_tokens_are_never_alive(by_token):
    """Eight times the rows: 200 tokens of 97 logits, in portions of two. The widest that is left are the layers'."""
    model = make(FAMILIES["qwen 2, grouped heads"])
    fed = 14 + 8 * (TOKENS - len(COMPLETIONS))
    assert 2 * fed * 48 < 8 * TOKENS * VOCABULARY
    options = {"by_token": by_token, "layout": "shared", "logits_at_once": 2 * VOCABULARY}
    with Largest() as largest:
        completion_loss(model, PROMPTS * 8, COMPLETIONS * 8, lambda t, _: t.logprobs_N.sum(), **options).backward()
    assert fed * 48 <= largest.numel < 2 * fed * 48


@pytest.mark.parametrize("layout", ["right", "shared"])
@pytest.mark.parametrize("portion", [4 * VOCABULARY, None])
def test_portions_and_a_gradient_formed_early_change_nothing(layout, portion):
    weights_N = torch.linspace(-1, 1, TOKENS)

    def loss_of(terms, here):
        ratio_n = torch.exp(terms.logprobs_N - terms.logprobs_N.detach() + 0.1)
        return ((ratio_n + terms.logprobs_N**2 - 0.5 * terms.entropy_N) * weights_N[here]).sum()

    def found(by_token, at_once):
        model = make(FAMILIES["qwen 2, grouped heads"])
        options = {"layout": layout, "temperature": 0.7, "entropy": True, "logits_at_once": at_once}
        loss = completion_loss(model, PROMPTS, COMPLETIONS, loss_of, by_token=by_token, **options)
        (2 * loss).backward()
        return loss.detach(), gradient(model)

    expected = found(False, None)
    for by_token in (True, False):
        same(found(by_token, portion), expected)
