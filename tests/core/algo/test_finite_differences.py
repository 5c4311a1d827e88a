"""Gradients of the whole loss of an update, by autograd, against central differences on a two-layer network.

A loss with a factor that carries no gradient (CISPO's weight, VESPO's, GSPO-token's ratio, DPPO's gate, k3_plus) is not
the integral of its gradient: there the differences are taken of a surrogate written out here, in which the factor is a
number found at the point in question.
"""

import math

import pytest
import torch

from grpo_core.algo.losses import policy_loss
from grpo_core.config_mixes import AGGREGATIONS
from tests.core.algo.network import ADVANTAGES, LENGTHS, USED, Toy, autograd, differences
from tests.core.algo.toy import PAIRS, algorithm

TOY = Toy()
PLAIN = {"clip", "gspo", "gmpo", "sapo", "luspo", "sequence_ratio", "reinforce"}
"""Losses whose gradient is that of their value."""
FROZEN = set(AGGREGATIONS) - PLAIN


def check(config, **surrogate):
    found = autograd(lambda weights: TOY.total(weights, config), TOY.start)
    expected = differences(lambda weights: TOY.total(weights, config, **surrogate), TOY.start)
    assert found.norm().item() > 0.05
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-8)
    return found


def by_row():
    """(row, place of its tokens, advantage, ratio of each token) of the toy at its start, in plain numbers."""
    logs = (TOY.see(TOY.start).logprobs_N - TOY.old_N).tolist()
    at = 0
    for row, (length, advantage) in enumerate(zip(LENGTHS, ADVANTAGES, strict=True)):
        yield row, range(at, at + length), advantage, [math.exp(value) for value in logs[at : at + length]]
        at += length


def frozen(loss, config):
    """The loss per token as a function of log π, with the factor without gradient put in as a number."""
    factors, steady = [], []
    for _, _, advantage, ratios in by_row():
        w = math.prod(ratios)
        s = w ** (1 / len(ratios))
        for ratio in ratios:
            match loss:
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
                case "dppo":
                    factors.append(-advantage)
            steady.append(ratio)
    factor_N = torch.tensor(factors, dtype=torch.float64)
    if loss != "dppo":
        return lambda logprobs_N: factor_N * logprobs_N
    now = TOY.see(TOY.start).logprobs_N.exp().tolist()
    keep_N = torch.tensor(
        [
            (p - p / r) * a <= 0 or far(config.dppo.divergence, p / r, p) <= config.dppo.threshold
            for p, r, a in zip(now, steady, TOY.advantages_N.tolist(), strict=True)
        ]
    )
    assert keep_N.any()
    assert not keep_N.all()
    return lambda logprobs_N: factor_N * keep_N * torch.exp(logprobs_N - TOY.old_N)


def far(divergence, q, p):
    if divergence == "tv":
        return abs(p - q)
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


def test_the_toy_crosses_every_bound_and_stands_on_none():
    """A difference across a corner would be wrong, and a bound that nothing crosses would not be tested."""
    ratios = [(ratio, a) for row, _, a, of_row in by_row() for ratio in of_row if USED[row]]
    means = [(math.prod(of_row) ** (1 / len(of_row)), a) for row, _, a, of_row in by_row() if USED[row]]
    for values, low, high in ((ratios, 0.8, 1.2), (means, 0.9, 1.15), (ratios, math.exp(-0.4), math.exp(0.4))):
        assert any(value > high and a > 0 for value, a in values)
        assert any(value < low and a < 0 for value, a in values)
        assert any(low < value < high for value, a in values)
        assert all(abs(value - bound) > 1e-3 for value, _ in values for bound in (low, high))
    assert any(value > 1.3 and a < 0 for value, a in ratios)
    assert all(abs(value - bound) > 1e-3 for value, _ in ratios for bound in (1.25, 1.3))


@pytest.mark.parametrize(("loss", "aggregation"), [pair for pair in PAIRS if pair[0] in PLAIN])
def test_losses_that_are_the_integral_of_their_gradient(loss, aggregation):
    check(algorithm(loss, aggregation))


@pytest.mark.parametrize("aggregation", AGGREGATIONS["clip"])
def test_clip_with_a_bound_for_negative_advantages(aggregation):
    bounded = check(algorithm("clip", aggregation, clip_delta=1.3))
    assert not torch.allclose(bounded, check(algorithm("clip", aggregation)), rtol=1e-3)


DPPO = {"dppo": {"dppo": {"threshold": 0.1}}}


@pytest.mark.parametrize("beside", [{}, {"kl": {"coef": 0.4, "estimator": "k3"}, "entropy_coef": 0.3}], ids=["", "kl"])
@pytest.mark.parametrize(("loss", "aggregation"), [pair for pair in PAIRS if pair[0] in FROZEN])
def test_losses_with_a_factor_that_carries_no_gradient(loss, aggregation, beside):
    config = algorithm(loss, aggregation, **DPPO.get(loss, {}), **beside)
    check(config, policy=frozen(loss, config))


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ("cispo", {"cispo_bound": "relative", "clip_high": 0.2}),
        ("dppo", {"dppo": {"divergence": "kl", "threshold": 0.03}}),
    ],
)
def test_cispo_between_two_bounds_and_dppo_by_kl(loss, settings):
    config = algorithm(loss, **settings)
    check(config, policy=frozen(loss, config))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_plus"])
@pytest.mark.parametrize(("loss", "aggregation"), [pair for pair in PAIRS if pair[0] in PLAIN])
def test_with_kl_and_entropy_bonus(loss, aggregation, estimator):
    def k2(logprobs_N):
        return (TOY.reference_N - logprobs_N) ** 2 / 2  # the gradient that k3_plus takes

    config = algorithm(loss, aggregation, kl={"coef": 0.4, "estimator": estimator}, entropy_coef=0.3)
    found = check(config, **({"penalty": k2} if estimator == "k3_plus" else {}))
    without = autograd(lambda weights: TOY.total(weights, algorithm(loss, aggregation)), TOY.start)
    assert (found - without).norm().item() > 0.01


@pytest.mark.parametrize(("loss", "aggregation"), PAIRS)
def test_masked_tokens_have_exactly_no_gradient(loss, aggregation):
    config = algorithm(loss, aggregation, kl={"coef": 0.4}, entropy_coef=0.3)
    logprobs_N = TOY.see(TOY.start).logprobs_N.requires_grad_()
    weights_N = TOY.row_weights(config).policy_B[TOY.rows_N]
    (slopes_N,) = torch.autograd.grad(
        (policy_loss(TOY.tokens(logprobs_N), config).loss_N * weights_N).sum(), logprobs_N
    )
    masked_N = ~torch.tensor(USED)[TOY.rows_N]
    assert slopes_N[masked_N].tolist() == [0.0, 0.0]
    assert slopes_N[~masked_N].abs().max().item() > 0.01
