"""Gradients of the whole loss of an update, by autograd, against central differences on a two-layer network.

Each token of each completion has fixed features; tanh layer, linear layer, log-softmax; the sampled token's
log-probability is what the losses see. The old policy and the reference are the same network with other weights.
Shapes: N tokens · F features · H hidden · V vocabulary · B completions.

A loss with a factor that carries no gradient (CISPO's weight, VESPO's, GSPO-token's ratio, DPPO's gate, k3_plus) is not
the integral of its gradient: there the differences are taken of a surrogate written out here, in which the factor is a
number found at the point in question.
"""

import math

import pytest
import torch

from grpo_core.algo.aggregation import row_weights
from grpo_core.algo.kl import kl_estimate
from grpo_core.losses.base import Tokens
from grpo_core.losses.settings import LOSSES
from tests.core.algo.toy import PAIRS, algorithm, gradient, rows

LENGTHS = [3, 1, 4, 2, 3, 2]
ADVANTAGES = [1.2, -0.7, -1.1, 0.9, 0.4, 1.0]
FACTS = rows(LENGTHS, used=[True] * 5 + [False], groups=[0, 0, 0, 1, 1, 1])
FEATURES, HIDDEN, VOCABULARY = 3, 4, 5
CHANCE = torch.Generator().manual_seed(2)
FROZEN = {"cispo", "vespo", "gspo_token", "dppo"}
"""Losses with a factor that carries no gradient."""


def normal(*shape):
    return torch.randn(*shape, generator=CHANCE, dtype=torch.float64)


ROWS_N = torch.repeat_interleave(torch.tensor(LENGTHS))
ADVANTAGES_N = torch.tensor(ADVANTAGES, dtype=torch.float64)[ROWS_N]
FEATURES_NF = normal(sum(LENGTHS), FEATURES)
SAMPLED_N = torch.randint(VOCABULARY, (sum(LENGTHS),), generator=CHANCE)
START = 0.7 * normal(FEATURES * HIDDEN + HIDDEN * VOCABULARY)


def seen(weights):
    """Of each token the log-probability and the entropy, under weights that are one flat tensor."""
    first_FH = weights[: FEATURES * HIDDEN].view(FEATURES, HIDDEN)
    second_HV = weights[FEATURES * HIDDEN :].view(HIDDEN, VOCABULARY)
    logprobs_NV = torch.log_softmax(torch.tanh(FEATURES_NF @ first_FH) @ second_HV, dim=1)
    return logprobs_NV.gather(1, SAMPLED_N[:, None])[:, 0], -(logprobs_NV.exp() * logprobs_NV).sum(dim=1)


NOW_N = seen(START)[0]
OLD_N, REFERENCE_N = (seen(START + 0.5 * normal(len(START)))[0] for _ in range(2))
RATIOS = [ratios.tolist() for ratios in (NOW_N - OLD_N).exp().split(LENGTHS)]


def total(weights, config, *, policy=None, penalty=None):
    """Weighted loss of an update: policy, KL, entropy bonus. `policy` and `penalty` take the place of the code's own
    loss and KL per token."""
    logprobs_N, entropies_N = seen(weights)
    by_row = row_weights(FACTS, config)
    tokens = Tokens(logprobs_N, OLD_N, ADVANTAGES_N, ROWS_N)
    loss_N = policy(logprobs_N) if policy else config.loss_spec.compute(tokens, config).loss_N
    kl_N = penalty(logprobs_N) if penalty else kl_estimate(logprobs_N, REFERENCE_N, config.kl.estimator)
    penalty_N = config.kl.coef * kl_N - config.entropy_coef * entropies_N
    return (by_row.policy_B[ROWS_N] * loss_N + by_row.penalty_B[ROWS_N] * penalty_N).sum()


def checked(config):
    """The gradient, equal to central differences: their error is of the order step², about 1e-10 with rounding."""
    weights, step = START.clone().requires_grad_(), 1e-6
    (slopes,) = torch.autograd.grad(total(weights, config), weights)
    surrogate = {"policy": frozen(config)} if config.loss in FROZEN else {}
    if config.kl.estimator == "k3_plus":
        surrogate["penalty"] = lambda logprobs_N: (REFERENCE_N - logprobs_N) ** 2 / 2  # k2, whose gradient it takes
    with torch.no_grad():
        there, back = (
            torch.stack([total(START + nudge, config, **surrogate) for nudge in sign * step * torch.eye(len(START))])
            for sign in (1, -1)
        )
    assert slopes.norm().item() > 0.05
    assert torch.allclose(slopes, (there - back) / (2 * step), rtol=1e-6, atol=1e-8)
    return slopes


def frozen(config):
    """The loss per token as a function of log π, with the factor without gradient put in as a number."""
    if config.loss == "dppo":
        p_N, q_N = NOW_N.exp(), OLD_N.exp()
        far_N = (p_N - q_N).abs()
        if config.dppo.divergence == "kl":
            far_N = q_N * (q_N / p_N).log() + (1 - q_N) * ((1 - q_N) / (1 - p_N)).log()
        keep_N = ((p_N - q_N) * ADVANTAGES_N <= 0) | (far_N <= config.dppo.threshold)
        assert keep_N.any()
        assert not keep_N.all()
        return lambda logprobs_N: -ADVANTAGES_N * keep_N * torch.exp(logprobs_N - OLD_N)
    factors = []
    for advantage, ratios in zip(ADVANTAGES, RATIOS, strict=True):
        w = math.prod(ratios)
        s = w ** (1 / len(ratios))
        for ratio in ratios:
            match config.loss:
                case "cispo":
                    held = min(ratio, config.clip_high)
                    if config.cispo_bound == "relative":
                        held = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
                    factors.append(-held * advantage)
                case "vespo":
                    k, decay = (3.0, 2.0) if advantage < 0 else (2.0, 3.0)
                    factors.append(-math.exp(decay) * w**k * math.exp(-decay * w) * advantage)
                case "gspo_token":
                    held = (s > 1 + config.clip_high and advantage > 0) or (s < 1 - config.clip_low and advantage < 0)
                    factors.append(0.0 if held else -s * advantage)
    return lambda logprobs_N: torch.tensor(factors, dtype=torch.float64) * logprobs_N


def test_the_network_crosses_every_bound_and_stands_on_none():
    """A difference across a corner would be wrong, and a bound that nothing crosses would not be tested."""
    used = list(zip(RATIOS, ADVANTAGES, strict=True))[:5]
    ratios = [(ratio, a) for of_row, a in used for ratio in of_row]
    means = [(math.prod(of_row) ** (1 / len(of_row)), a) for of_row, a in used]
    for values, low, high in ((ratios, 0.8, 1.2), (means, 0.9, 1.15), (ratios, math.exp(-0.4), math.exp(0.4))):
        assert any(value > high and a > 0 for value, a in values)
        assert any(value < low and a < 0 for value, a in values)
        assert any(low < value < high for value, a in values)
        assert all(abs(value - bound) > 1e-3 for value, _ in values for bound in (low, high))
    assert any(value > 1.3 and a < 0 for value, a in ratios)
    assert all(abs(value - bound) > 1e-3 for value, _ in ratios for bound in (1.25, 1.3))


@pytest.mark.parametrize("estimator", [None, "k1", "k2", "k3", "k3_plus"])
@pytest.mark.parametrize(("loss", "aggregation"), PAIRS)
def test_a_gradient_is_that_of_the_loss(loss, aggregation, estimator):
    settings = {"dppo": {"threshold": 0.1}} if loss == "dppo" else {}
    plain = checked(algorithm(loss, aggregation, **settings))
    if estimator is not None:
        penalties = {"kl": {"coef": 0.4, "estimator": estimator}, "entropy_coef": 0.3}
        assert (checked(algorithm(loss, aggregation, **settings, **penalties)) - plain).norm().item() > 0.01


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ("clip", {"clip_delta": 1.3}),
        ("cispo", {"cispo_bound": "relative", "clip_high": 0.2}),
        ("dppo", {"dppo": {"divergence": "kl", "threshold": 0.03}}),
    ],
)
def test_other_bounds_give_other_gradients(loss, settings):
    for aggregation in LOSSES[loss].aggregations:
        bounded = checked(algorithm(loss, aggregation, **settings))
        weights = START.clone().requires_grad_()
        (plain,) = torch.autograd.grad(total(weights, algorithm(loss, aggregation)), weights)
        assert not torch.allclose(bounded, plain, rtol=1e-3)


@pytest.mark.parametrize(("loss", "aggregation"), PAIRS)
def test_masked_tokens_have_exactly_no_gradient(loss, aggregation):
    config = algorithm(loss, aggregation, kl={"coef": 0.4}, entropy_coef=0.3)
    tokens = Tokens(NOW_N.clone().requires_grad_(), OLD_N, ADVANTAGES_N, ROWS_N)
    slopes = gradient(tokens, config, row_weights(FACTS, config).policy_B)
    assert slopes[-2:] == [0.0, 0.0]
    assert max(map(abs, slopes[:-2])) > 0.01
