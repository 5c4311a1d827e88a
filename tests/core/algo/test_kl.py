"""KL estimators and the adaptive controller against numbers worked out by hand."""

import math

import pytest
import torch

from grpo_core.algo.kl import adapted_coef, kl_estimate
from tests.tables import cases

ESTIMATORS = ("k1", "k2", "k3", "k3_plus")


def at(d, estimator):
    """Value and slope d / d log π where log π_ref − log π is d."""
    policy = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    value = kl_estimate(policy, torch.tensor([-1.0 + d], dtype=torch.float64), estimator)
    value.sum().backward()
    return value.item(), policy.grad.item()


@pytest.mark.parametrize(
    ("d", "values"),
    [
        (0.5, (-0.5, 0.125, 0.148721, 0.148721)),
        (-0.5, (0.5, 0.125, 0.106531, 0.106531)),
        (0.0, (0.0, 0.0, 0.0, 0.0)),
        (-3.0, (3.0, 4.5, 2.049787, 2.049787)),
    ],
)
def test_values_and_slopes(d, values):
    estimates, slopes = zip(*(at(d, name) for name in ESTIMATORS), strict=True)
    assert estimates == pytest.approx(values, abs=1e-6 * (d != 0))  # 0 exactly: the first step of a run shows 0
    # With x = log π: k1' = 1, k2' = −d, k3' = 1 − e^d; k3_plus has k2's.
    assert slopes == pytest.approx((1.0, -d, 1 - math.exp(d), -d), abs=1e-12)


def test_estimators_and_gradients_against_the_exact_divergence():
    # Three tokens. The mean over π of k1 and of k3 is KL(π ‖ π_ref); the mean over π of k2's gradient is the gradient
    # of KL. Logits as variables: dKL/dz_i = π_i·(log π_i − log ref_i − KL).
    logits = torch.tensor([0.3, -0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log(torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64))
    logprobs = torch.log_softmax(logits, 0)
    p = logprobs.detach().exp()
    divergence = sum(p[i].item() * (logprobs[i].item() - reference[i].item()) for i in range(3))
    assert divergence > 0.1
    exact = [p[i].item() * (logprobs[i].item() - reference[i].item() - divergence) for i in range(3)]
    for name in ("k1", "k3", "k3_plus"):
        assert (p * kl_estimate(logprobs, reference, name)).sum().item() == pytest.approx(divergence)
    slopes = {}
    for name in ESTIMATORS:
        (slope,) = torch.autograd.grad((p * kl_estimate(logprobs, reference, name)).sum(), logits, retain_graph=True)
        slopes[name] = slope.tolist()
    assert slopes["k2"] == pytest.approx(exact)
    assert slopes["k3_plus"] == pytest.approx(exact)
    assert slopes["k1"] == pytest.approx([0.0] * 3, abs=1e-12)  # no pull
    assert slopes["k3"] != pytest.approx(exact, rel=0.1)


def test_nothing_is_clamped():
    assert at(30.0, "k3")[0] == pytest.approx(math.exp(30) - 31)
    assert at(30.0, "k3")[1] == pytest.approx(1 - math.exp(30))
    assert at(-700.0, "k3") == (pytest.approx(699.0), pytest.approx(1.0))
    for name, slope in (("k3", -math.inf), ("k3_plus", -100.0)):
        policy = torch.tensor([-101.0], requires_grad=True)
        value = kl_estimate(policy, torch.tensor([-1.0]), name)
        value.sum().backward()
        assert value.item() == math.inf  # e^100 is more than float32 holds; the update refuses such a loss
        assert policy.grad.item() == slope


# ---------------------------------------------------------------------- the controller


@pytest.mark.parametrize(
    ("nats", "completions", "expected"), cases("algo/kl_controller", "nats", "completions", "expected")
)
def test_the_controller_moves_towards_its_target(nats, completions, expected):
    coef = adapted_coef(0.1, nats, target_nats=6.0, horizon=10_000, completions=completions)
    assert coef == pytest.approx(expected, rel=1e-12)


def test_a_controller_that_could_reach_0_is_refused():
    assert adapted_coef(0.1, 0.0, target_nats=6.0, horizon=100, completions=499) == pytest.approx(0.1 * 0.002)
    with pytest.raises(ValueError, match="take more than 100"):
        adapted_coef(0.1, 6.0, target_nats=6.0, horizon=100, completions=500)
