"""However rows lie side by side, the numbers are those of each row alone; and entropies against closed forms."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from grpo_core.errors import ModelError
from grpo_core.model import settle
from grpo_core.model.layout import plan_micro_batches
from grpo_core.model.logprobs import completion_logprobs, completion_terms
from grpo_core.model.settle import check_layout

torch.set_num_threads(1)

LAYOUTS = ("right", "left", "packed")
PROMPTS = [[10, 20, 30], [40], [50, 60, 70, 80, 90, 11, 12, 13], [5, 6]]
COMPLETIONS = [[1, 2, 3, 4], [5], [6, 7, 8, 9, 10, 11], [7, 7]]
SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.4}  # wide: far from even

FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)),
    "mistral with a window of 4": lambda: MistralForCausalLM(MistralConfig(**SIZES, **HEADS, sliding_window=4)),
    "gemma 2 with a window of 4 in every other layer": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, **HEADS, head_dim=8, sliding_window=4, query_pre_attn_scalar=8)
    ),
    "gpt 2, positions learned": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.4)
    ),
}


def make(family, attention="eager"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = FAMILIES[family]().eval()
    model.set_attn_implementation(attention)
    return model


def alone(model, temperature=1.0):
    """Log-probability and entropy of each completion token from the model's own logits, one row at a time."""
    logprobs, entropies = [], []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0].double()
        table_TV = torch.log_softmax(logits_TV / temperature, dim=-1)
        for t, token in enumerate(completion):
            row_V = table_TV[len(prompt) - 1 + t]
            logprobs.append(row_V[token].item())
            entropies.append(-(row_V.exp() * row_V).sum().item())
    return logprobs, entropies


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("family", "attention"),
    [  # Gemma 2 caps its attention scores, which sdpa cannot
        (family, attention) for family in FAMILIES for attention in ("sdpa", "eager")[family.startswith("gemma") :]
    ],
)
def test_every_layout_gives_each_rows_own_numbers(family, attention, layout):
    model = make(family, attention)
    logprobs, entropies = alone(model, temperature=0.7)
    found = completion_terms(model, PROMPTS, COMPLETIONS, temperature=0.7, layout=layout, entropy=True)
    assert found.logprobs_N.dtype == found.entropy_N.dtype == torch.float32
    assert found.logprobs_N.tolist() == pytest.approx(logprobs, abs=1e-5)
    assert found.entropy_N.tolist() == pytest.approx(entropies, abs=1e-5)
    assert max(logprobs) - min(logprobs) > 2  # far from even, or a mistake would not show
    assert completion_logprobs(model, PROMPTS, COMPLETIONS, temperature=0.7, layout=layout).equal(found.logprobs_N)


@pytest.mark.parametrize("layout", ["left", "packed"])
def test_every_layout_gives_the_same_gradient(layout):
    def gradient(kind):
        model = make("llama", "sdpa")
        terms = completion_terms(model, PROMPTS, COMPLETIONS, layout=kind, pad_id=96, entropy=True)
        (terms.logprobs_N * torch.arange(1.0, 14.0)).sum().backward(retain_graph=True)
        terms.entropy_N.sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    right, other = gradient("right"), gradient(layout)
    largest = right.abs().max().item()
    assert largest > 1
    assert torch.allclose(right, other, rtol=0, atol=2e-6 * largest)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_knows_nothing_of_the_others(layout, attention):
    model = make("llama", attention)
    sizes = [len(c) for c in COMPLETIONS]
    before = completion_logprobs(model, PROMPTS, COMPLETIONS, layout=layout).detach().split(sizes)
    for changed in range(4):
        prompts = [[*p[:-1], p[-1] + 1] if row == changed else p for row, p in enumerate(PROMPTS)]
        after = completion_logprobs(model, prompts, COMPLETIONS, layout=layout).detach().split(sizes)
        for row in range(4):
            moved = (after[row] - before[row]).abs().max().item()
            assert (moved > 1e-2) if row == changed else (moved <= 1e-6), (changed, row, moved)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_fills_the_batch_up_does_not_count(layout):
    model = make("llama")
    first, second = (completion_logprobs(model, PROMPTS, COMPLETIONS, layout=layout, pad_id=pad) for pad in (0, 96))
    assert torch.allclose(first, second, rtol=0, atol=1e-6)


def test_rows_of_equal_length_are_the_same_pass_left_and_right():
    model = make("llama")
    rows = ([[1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10]])
    assert completion_logprobs(model, *rows, layout="left").equal(completion_logprobs(model, *rows, layout="right"))


def test_one_short_row_in_every_layout():
    model = make("llama")
    found = [completion_logprobs(model, [[4]], [[9]], layout=layout).item() for layout in LAYOUTS]
    expected = torch.log_softmax(model(torch.tensor([[4]])).logits[0, 0].double(), -1)[9].item()
    assert found == pytest.approx([expected] * 3, abs=1e-5)


# ---------------------------------------------------------------------- planning


def test_packed_rows_fill_micro_batches_to_the_budget():
    lengths = [5, 30, 7, 7, 100, 1, 30]
    # 100 alone though over the budget; 30 + 30 is 60; then 7 + 7 + 5 + 1.
    assert plan_micro_batches(lengths, 60, "packed") == [[4], [1, 6], [2, 3, 0, 5]]
    # Longest first, each where there is still room: 50 + 10, 40 + 20, 30.
    assert plan_micro_batches([10, 20, 30, 40, 50], 60, "packed") == [[4, 0], [3, 1], [2]]
    # Padding would count: 50 and 40 are alone, and of 30, 20, 10 two make 60.
    assert plan_micro_batches([10, 20, 30, 40, 50], 60, "left") == [[4], [3], [2, 1], [0]]
    assert plan_micro_batches([], 60, "packed") == []


# ---------------------------------------------------------------------- models that cannot


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layout_is_refused_where_rows_would_run_into_one_another(dtype):
    config = Lfm2Config(**SIZES, **HEADS, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Lfm2ForCausalLM(config).eval().to(dtype)
    with pytest.raises(ModelError, match=r"Lfm2ForCausalLM.*engine\.layout packed.*use engine\.layout: right"):
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

    monkeypatch.setattr(settle, "completion_logprobs", elsewhere)
    with pytest.raises(ModelError, match="off by") if refused else nullcontext():
        check_layout(make("llama").to(dtype), "left")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_every_kind_passes_the_check(family, dtype):
    model = make(family).to(dtype)
    for layout in LAYOUTS:
        check_layout(model, layout)


# ---------------------------------------------------------------------- entropy, by hand


class Bigram(nn.Module):
    """A model whose logits after a token are that token's row of a table."""

    def __init__(self, table_VV):
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table_VV))
        self.output = nn.Linear(len(table_VV), len(table_VV), bias=False)
        self.output.weight.data = torch.eye(len(table_VV))
        self.config = SimpleNamespace()
        self.base_model = self.look_up

    def get_output_embeddings(self):
        return self.output

    @property
    def look_up(self):
        def run(input_ids, **_):
            return SimpleNamespace(last_hidden_state=self.table[input_ids])

        run.parameters = self.parameters
        return run


LN3 = math.log(3)


def test_entropy_of_known_distributions():
    table = [[0.0, 0.0, 0.0, 0.0], [2 * LN3, 0.0, -1e30, -1e30], [50.0, -50.0, -50.0, -50.0], [0.0, 0.0, -1e30, -1e30]]
    model = Bigram(table)
    terms = completion_terms(model, [[0]], [[1, 2, 3, 0]], temperature=2.0, entropy=True)
    quarter = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))  # of 3 to 1, which 2·ln 3 at temperature 2 is
    assert terms.entropy_N.tolist() == pytest.approx([math.log(4), quarter, 0.0, math.log(2)], abs=1e-6)
    assert terms.logprobs_N[0].item() == pytest.approx(-math.log(4))
    assert terms.logprobs_N[3].item() == pytest.approx(-math.log(2))
    terms.entropy_N.sum().backward()
    assert torch.isfinite(model.table.grad).all()


def test_entropy_survives_impossible_tokens():
    class Barred(Bigram):
        def get_output_embeddings(self):
            def output(hidden_ND):
                return hidden_ND + torch.tensor([0.0, 0.0, -math.inf])

            output.weight = self.output.weight
            return output

    model = Barred([[LN3, 0.0, 7.0]] * 3)
    terms = completion_terms(model, [[0]], [[1]], entropy=True)
    assert terms.entropy_N.item() == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), abs=1e-6)
    terms.entropy_N.sum().backward()
    # dH/dz = −p (log p + H): with p = 3/4 and 1/4 that is ∓ 3/16 · ln 3, and 0 for the impossible one.
    assert model.table.grad[0].tolist() == pytest.approx([-3 / 16 * LN3, 3 / 16 * LN3, 0.0], abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_gradient_of_the_entropy(temperature):
    """dH/dz = −p (log p + H) / T at each place."""
    row = [0.3, -0.8, 1.1, 0.0]
    model = Bigram([row] * 4)
    completion_terms(model, [[2]], [[1]], temperature=temperature, entropy=True).entropy_N.sum().backward()
    weights = [math.exp(z / temperature) for z in row]
    p = [w / sum(weights) for w in weights]
    entropy = -sum(q * math.log(q) for q in p)
    expected = [-q * (math.log(q) + entropy) / temperature for q in p]
    assert model.table.grad[2].tolist() == pytest.approx(expected, abs=1e-6)
    assert max(map(abs, expected)) > 0.05


@pytest.mark.parametrize(
    ("told", "factor"), [({}, 1.0), ({"logit_scale": 0.25}, 0.25), ({"logits_scaling": 8.0}, 0.125)]
)
def test_the_output_layers_bias_and_the_familys_factor(told, factor):
    """Logits are f · (hidden + bias) here, and of a log-probability: d log p / d bias = f · (1[own] − p) / T."""
    row, bias, temperature = [3.0, -8.0, 11.0, 0.0], [5.0, 0.0, -10.0, 2.0], 2.0
    model = Bigram([row] * 4)
    model.output.bias = nn.Parameter(torch.tensor(bias))
    model.config = SimpleNamespace(**told)
    terms = completion_terms(model, [[2]], [[3]], temperature=temperature, entropy=True)
    weights = [math.exp(factor * (h + b) / temperature) for h, b in zip(row, bias, strict=True)]
    p = [w / sum(weights) for w in weights]
    assert terms.logprobs_N.item() == pytest.approx(math.log(p[3]), abs=1e-6)
    assert terms.entropy_N.item() == pytest.approx(-sum(q * math.log(q) for q in p), abs=1e-6)
    terms.logprobs_N.sum().backward()
    expected = [factor * ((place == 3) - q) / temperature for place, q in enumerate(p)]
    assert model.output.bias.grad.tolist() == pytest.approx(expected, abs=1e-6)
    assert model.table.grad[2].tolist() == pytest.approx(expected, abs=1e-6)


def test_portions_change_neither_entropy_nor_its_gradient():
    def run(logits_at_once):
        model = make("llama")
        terms = completion_terms(model, PROMPTS, COMPLETIONS, entropy=True, logits_at_once=logits_at_once)
        ((terms.logprobs_N + 2 * terms.entropy_N) * torch.arange(1.0, 14.0)).sum().backward()
        return terms.entropy_N.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])

    whole, whole_gradient = run(2**23)
    parts, parts_gradient = run(97 * 2)  # two tokens at a time
    assert torch.allclose(whole, parts, rtol=0, atol=1e-6)
    assert torch.allclose(whole_gradient, parts_gradient, rtol=0, atol=2e-6 * whole_gradient.abs().max().item())


def test_entropy_is_not_computed_unasked():
    assert completion_terms(make("llama"), [[1]], [[2]]).entropy_N is None
