"""Drawing tokens: what is drawn how often, log-probs and entropies of odd logits, filters, portions; and which rows are
sampled in one wave."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from grpo_core.errors import NotFinite
from grpo_core.rollout import draw_tokens
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.draw_tokens import BLOCK, TokenDrawer, inverse_cdf, inverse_cdf_blocks, keep_likely
from grpo_core.rollout.local import Limits, Uniforms, plan_batches
from tests.tables import cases


class Given(nn.Module):
    """A model whose logits are its hidden states: an output layer of the identity, plain or (`odd`) as a module that
    has to be called."""

    def __init__(self, vocabulary, *, odd=False, dtype=torch.float32):
        super().__init__()
        self.head = nn.Linear(vocabulary, vocabulary, bias=False, dtype=dtype)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(vocabulary))
        if odd:
            self.head.register_forward_hook(lambda module, inputs, output: output)
        self.config = type("Config", (), {})()

    def get_output_embeddings(self):
        return self.head


def draw(logits, uniforms, *, odd=False, seen=None, **decoding):
    drawer = TokenDrawer(Given(logits.shape[1], odd=odd), Decoding(**{"max_tokens": 1, **decoding}))
    with torch.no_grad():
        return drawer.draw(logits, torch.tensor(uniforms, dtype=torch.float64), seen)


def assert_of(drawn, logits, *, temperature=1.0, within):
    """Log-probabilities within, entropies within ten times as much."""
    table = torch.log_softmax(logits.double() / temperature, -1)
    entropy = -(table.exp() * table.clamp(min=-1e300)).sum(-1)
    assert torch.allclose(drawn.logprobs_B.double(), table.gather(1, drawn.tokens_B[:, None])[:, 0], atol=within)
    assert torch.allclose(drawn.entropy_B.double(), entropy, atol=10 * within)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(("vocabulary", "rows"), [(7, 1), (BLOCK, 3), (2 * BLOCK + 3, 5), (BLOCK, 100)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_logprobs_and_entropy(odd, vocabulary, rows, temperature):
    torch.manual_seed(0)
    logits = torch.randn(rows, vocabulary) * 3
    uniforms = torch.rand(rows, dtype=torch.float64)
    drawn = draw(logits, uniforms.tolist(), odd=odd, temperature=temperature)
    cdf = torch.softmax(logits.double() / temperature, -1).cumsum(-1)
    token = torch.searchsorted(cdf, uniforms[:, None], right=True)[:, 0]
    assert drawn.tokens_B.tolist() == token.tolist()
    assert_of(drawn, logits, temperature=temperature, within=1e-6)


@pytest.mark.parametrize("shifts", [[0.0], [500.0], [-300.0], [-400.0, 0.0, 160.0, 900.0, 0.0, 1.0]])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_logits_of_any_size_or_too_unlike_for_one_shift(shifts, temperature):
    torch.manual_seed(1)
    logits = torch.randn(6, 300) * 4 + torch.tensor(shifts)[:, None]
    drawer = TokenDrawer(Given(300), Decoding(max_tokens=1, temperature=temperature))
    for _ in range(7):
        with torch.no_grad():
            drawn = drawer.draw(logits, torch.rand(6, dtype=torch.float64))
        assert_of(drawn, logits, within=1e-5 if len(shifts) == 1 else 1e-4)
        assert temperature or drawn.tokens_B.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logits_far_from_0_are_drawn_from_as_quickly_after_the_first_time(monkeypatch, dtype, temperature):
    torch.manual_seed(6)
    logits = (torch.randn(5, 300) * 4 + 160).to(dtype)
    model = Given(300, dtype=dtype)
    if dtype == torch.float32:
        model.head.bias = nn.Parameter(torch.randn(300))
    with torch.no_grad():
        real = model.head(logits).float()
        drawer = TokenDrawer(model, Decoding(max_tokens=1, temperature=temperature))
        looked = []
        plain = torch.Tensor.amax
        monkeypatch.setattr(torch.Tensor, "amax", lambda *given: (looked.append(1), plain(*given))[1])
        for _ in range(4):
            drawn = drawer.draw(logits, torch.rand(5, dtype=torch.float64))
            assert_of(drawn, real, temperature=temperature, within=1e-4)
    assert len(looked) == 1


def test_impossible_tokens():
    model = Given(300)
    bias = torch.full((300,), -torch.inf)
    bias[[5, 280]] = 0.0
    model.head.bias = nn.Parameter(bias)
    edges = torch.tensor([0.0, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    with torch.no_grad():
        drawn = TokenDrawer(model, Decoding(max_tokens=1)).draw(torch.zeros(2, 300), edges)
    assert drawn.tokens_B.tolist() == [5, 280]
    assert drawn.logprobs_B.tolist() == pytest.approx([-math.log(2)] * 2)
    assert drawn.entropy_B.tolist() == pytest.approx([math.log(2)] * 2)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_numbers_that_are_none_stop_the_sampler(value, temperature):
    logits = torch.zeros(3, 300)
    logits[1, 7] = value
    with pytest.raises(NotFinite, match="diverged"):
        draw(logits, [0.5] * 3, temperature=temperature)


def test_portions_give_the_same(monkeypatch):
    torch.manual_seed(2)
    logits, uniforms = torch.randn(50, 600) * 3, torch.rand(50, dtype=torch.float64).tolist()
    whole = draw(logits, uniforms)
    monkeypatch.setitem(draw_tokens.LOGITS_AT_ONCE, "cpu", 7 * 600)
    parts = draw(logits, uniforms)
    assert parts.tokens_B.tolist() == whole.tokens_B.tolist()
    assert torch.allclose(parts.logprobs_B, whole.logprobs_B, atol=1e-6)


def test_no_token_of_weight_0_is_drawn_at_any_edge():
    weights = torch.zeros(3 * BLOCK, 2)
    weights[[BLOCK + 3, BLOCK + 9, 2 * BLOCK - 2]] = 0.1
    sums = weights.view(3, BLOCK, 2).sum(1).double()
    allowed = {BLOCK + 3, BLOCK + 9, 2 * BLOCK - 2}
    for edge in (0.0, 1 / 3, 2 / 3, math.nextafter(1 / 3, 0), math.nextafter(2 / 3, 1), math.nextafter(1.0, 0.0)):
        tokens = inverse_cdf_blocks(weights, sums, torch.tensor([edge, edge], dtype=torch.float64))
        assert set(tokens.tolist()) <= allowed


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.6}, {"top_k": 50, "top_p": 0.5}])
def test_only_what_a_filter_leaves_is_drawn(filters):
    torch.manual_seed(5)
    logits = torch.randn(1, 700).expand(400, -1) * 3
    left = keep_likely(torch.softmax(logits[:1], -1), top_p=filters.get("top_p", 1.0), top_k=filters.get("top_k", 0))
    drawn = draw(logits, torch.rand(400, dtype=torch.float64).tolist(), **filters)
    allowed = set(left[0].nonzero()[:, 0].tolist())
    assert 1 < len(allowed) <= 50
    assert set(drawn.tokens_B.tolist()) == allowed
    assert_of(drawn, logits, within=1e-6)  # of the distribution before filters


def transformers_shares(logits, seen_ids, *, temperature, penalty=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Probabilities after transformers' own processors, in the order in which its `generate` applies them."""
    steps = [
        penalty != 1 and RepetitionPenaltyLogitsProcessor(penalty),
        TemperatureLogitsWarper(temperature),
        top_k and TopKLogitsWarper(top_k),
        top_p < 1 and TopPLogitsWarper(top_p),
        min_p and MinPLogitsWarper(min_p),
    ]
    scores = logits.clone()
    for step in filter(None, steps):
        scores = step(seen_ids, scores)
    return torch.softmax(scores.double(), -1)


@pytest.mark.parametrize("level", [0.0, 60.0])
@pytest.mark.parametrize(
    "filters",
    [
        {"min_p": 0.05},
        {"min_p": 0.2, "top_p": 0.9},
        {"min_p": 0.02, "top_k": 9, "top_p": 0.8},
        {"penalty": 1.3},
        {"penalty": 0.7, "min_p": 0.1},
        {"penalty": 2.0, "top_p": 0.7},
    ],
    ids=str,
)
def test_min_p_and_repetition_penalty_are_those_of_transformers(filters, level):
    torch.manual_seed(11)
    rows, vocabulary = 60, 2 * BLOCK + 9
    logits = torch.randn(rows, vocabulary) * 3 + level
    uniforms = torch.rand(rows, dtype=torch.float64)
    seen_ids = torch.randint(vocabulary, (rows, 300))
    seen = torch.zeros(rows, vocabulary, dtype=torch.bool).scatter_(1, seen_ids, True)
    how = {("repetition_penalty" if name == "penalty" else name): value for name, value in filters.items()}
    drawn = draw(logits, uniforms.tolist(), seen=seen if "penalty" in filters else None, temperature=0.8, **how)
    shares = transformers_shares(logits, seen_ids, temperature=0.8, **filters)
    expected = torch.searchsorted(shares.cumsum(-1), uniforms[:, None] * shares.sum(-1, keepdim=True), right=True)
    assert drawn.tokens_B.tolist() == expected[:, 0].tolist()
    assert_of(drawn, logits, temperature=0.8, within=1e-5)  # of the distribution before them


def test_the_likeliest_token_is_that_after_the_penalty():
    logits, seen = torch.tensor([[2.0, 1.5, -1.0], [-1.0, -1.5, -3.0]]), torch.tensor([[True, False, False]] * 2)
    assert draw(logits, [0, 0], temperature=0, repetition_penalty=1.4, seen=seen).tokens_B.tolist() == [1, 0]
    assert draw(logits, [0, 0], temperature=0, repetition_penalty=1.6, seen=seen).tokens_B.tolist() == [1, 1]


def test_inverse_cdf_takes_the_right_token():
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).repeat(6, 1)
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert inverse_cdf(weights, uniforms).tolist() == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"), [(1.0, 2, [1, 3]), (0.4, 0, [1]), (0.41, 0, [1, 3]), (0.001, 0, [1])]
)
def test_keep_likely(top_p, top_k, kept):
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    assert keep_likely(probs, top_p=top_p, top_k=top_k).nonzero()[:, 1].tolist() == kept
    assert keep_likely(probs, top_p=0.5, top_k=2).tolist() == [pytest.approx([0, 0.4, 0, 0])]  # 0.4/0.7 is above 0.5
    assert keep_likely(probs, top_p=1.0, top_k=0) is probs


# ---------------------------------------------------------------------- waves


@pytest.mark.parametrize(
    ("lengths", "samples", "limits", "waves"), cases("trainer/waves", "lengths", "samples", "limits", "waves")
)
def test_waves(lengths, samples, limits, waves):
    limits = {"rows": 1000, "tokens": 10**9, "shared": True, **(limits or {})}
    apart = limits.pop("apart", False)
    prompts = [[index if apart else 0] * length for index, length in enumerate(lengths)]
    planned = plan_batches(prompts, samples=samples, limits=Limits(completion=10, **limits))
    seen = sorted((row.prompt, row.sample) for wave in planned for row in wave)
    assert seen == [(prompt, sample) for prompt in range(len(prompts)) for sample in range(samples)]
    assert [[row.prompt for row in wave] for wave in planned] == waves


def test_random_numbers_are_those_of_each_rows_stream():
    seeds = [[3, 0], [3, 1], [3, 2]]
    streams = [np.random.default_rng(seed).random(600) for seed in seeds]
    uniforms, rows_B = Uniforms(seeds, torch.device("cpu")), torch.arange(3)
    for number in range(600):
        if number == 200:  # the second row has ended; later numbers are taken for the others alone
            rows_B = torch.tensor([0, 2])
        assert uniforms.take(rows_B, number).tolist() == [streams[row][number] for row in rows_B.tolist()]
