"""TRPO's step where the Fisher matrix is known: its direction and length are the natural gradient's, and the line
search accepts what keeps the bound and gains enough, and nothing else."""

import math

import pytest
import torch

from grpo_core.algo.trust_region import conjugate_gradient, line_search, trust_region_step
from grpo_core.config.optim import TrpoConfig

ACTIONS, FEATURES, STATES = 4, 3, 6
EXACT = {"cg_iterations": 100, "cg_damping": 0.0}


def bandit():
    """Logits of a softmax bandit, its Fisher matrix diag(p) − p·pᵀ, and a gradient in the matrix's range."""
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    rewards = torch.tensor([1.0, 0.0, 0.5, -2.0], dtype=torch.float64)
    return p.log(), torch.diag(p) - torch.outer(p, p), p * (rewards - p @ rewards)


def linear():
    """Weights of a linear softmax policy over several states, flattened; features x give logits W·x, so the Fisher
    matrix is the mean of (diag(p) − p·pᵀ) ⊗ x·xᵀ."""
    chance = torch.Generator().manual_seed(5)
    weights_AF = torch.randn(ACTIONS, FEATURES, generator=chance, dtype=torch.float64)
    states_SF = torch.randn(STATES, FEATURES, generator=chance, dtype=torch.float64)
    fisher, gradient = 0.0, 0.0
    for x in states_SF:
        p = torch.softmax(weights_AF @ x, 0)
        values = torch.randn(ACTIONS, generator=chance, dtype=torch.float64)
        fisher = fisher + torch.kron(torch.diag(p) - torch.outer(p, p), torch.outer(x, x)) / STATES
        gradient = gradient + torch.outer(p * (values - p @ values), x).flatten() / STATES
    return weights_AF.flatten(), fisher, gradient


@pytest.mark.parametrize("policy", [bandit, linear])
@pytest.mark.parametrize("delta", [1e-4, 0.02])
def test_the_step_is_the_natural_gradient_up_to_the_bound(policy, delta):
    """F⁻¹g·√(2δ / gᵀF⁻¹g), with F⁻¹ on F's range: what moves all logits alike changes no policy."""
    _, fisher, gradient = policy()
    natural = torch.linalg.pinv(fisher) @ gradient
    expected = natural * math.sqrt(2 * delta / (gradient @ natural))
    settings = TrpoConfig(max_kl=delta, **EXACT)
    # A measure that is the quadratic model itself, so that the whole length is accepted.
    step, direction = trust_region_step(
        lambda v: fisher @ v, lambda move: (0.4999 * (move @ fisher @ move).item(), 1e9), gradient, settings
    )
    assert direction.residual < 1e-5
    assert step.tried == 1
    assert (step.move_P - expected).norm() < 1e-4 * expected.norm()
    assert (step.move_P @ fisher @ step.move_P).item() / 2 == pytest.approx(delta, rel=1e-4)


def test_a_linear_policy_keeps_the_measured_bound_and_gains():
    """The divergence and the surrogate are those of the policy, worked out over all actions and not by the model."""
    weights, fisher, gradient = linear()
    chance = torch.Generator().manual_seed(5)
    torch.randn(ACTIONS, FEATURES, generator=chance, dtype=torch.float64)
    states_SF = torch.randn(STATES, FEATURES, generator=chance, dtype=torch.float64)
    values_SA = torch.stack([torch.randn(ACTIONS, generator=chance, dtype=torch.float64) for _ in range(STATES)])

    def measure(move):
        old_SA, new_SA = (
            torch.log_softmax(states_SF @ w.view(ACTIONS, FEATURES).T, 1) for w in (weights, weights + move)
        )
        kl = (old_SA.exp() * (old_SA - new_SA)).sum(1).mean()
        return kl.item(), ((new_SA.exp() - old_SA.exp()) * values_SA).sum(1).mean().item()

    step, _ = trust_region_step(lambda v: fisher @ v, measure, gradient, TrpoConfig(max_kl=0.05, **EXACT))
    assert step.kl == measure(step.move_P)[0] <= 0.05
    assert step.gain > 0.1 * (gradient @ step.move_P).item() > 0


def test_damping_is_solved_for_and_does_not_shorten_the_step():
    fisher, gradient = torch.diag(torch.tensor([4.0, 1.0])), torch.tensor([2.0, 1.0])
    direction = conjugate_gradient(lambda v: fisher @ v, gradient, iterations=5, damping=1.0)
    assert direction.vector_P.tolist() == pytest.approx([2 / 5, 1 / 2])
    settings = TrpoConfig(max_kl=0.02, cg_damping=1.0)
    step, _ = trust_region_step(lambda v: fisher @ v, lambda move: (0.0, 1e9), gradient, settings)
    # sᵀFs = 4·0.16 + 0.25 = 0.89
    assert step.length == pytest.approx(math.sqrt(0.04 / 0.89))


@pytest.mark.parametrize(("iterations", "residual"), [(1, 0.6), (2, 0.0)])
def test_conjugate_gradient_by_hand(iterations, residual):
    """F = diag(1, 4), g = (1, 1): α₁ = 2/5, r₁ = (3/5, −3/5), whose norm is 3/5 of g's; two iterations solve it."""
    fisher, gradient = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 1.0])
    direction = conjugate_gradient(lambda v: fisher @ v, gradient, iterations=iterations, damping=0.0)
    expected = [0.4, 0.4] if iterations == 1 else [1.0, 0.25]
    assert direction.vector_P.tolist() == pytest.approx(expected, abs=1e-6)
    assert direction.residual == pytest.approx(residual, abs=1e-6)


@pytest.mark.parametrize(
    ("kl_of", "gain_of", "tried", "length"),
    [
        (lambda x: x * x, lambda x: x, 1, 1.0),
        (lambda x: 3 * x * x, lambda x: x, 2, 0.5),  # the whole length breaks the bound of 1
        (lambda x: x * x, lambda x: x - 1.1 * x * x, 2, 0.5),  # and here the surrogate falls
        (lambda x: x * x, lambda x: 0.05 * x, 4, 0.0),  # gains, but less than a tenth of what the slope predicts
        (lambda x: float("nan"), lambda x: x, 4, 0.0),
        (lambda x: 0.0, lambda x: float("nan") if x > 0.3 else x, 3, 0.25),
    ],
)
def test_the_line_search_takes_the_longest_that_keeps_bound_and_gain(kl_of, gain_of, tried, length):
    settings = TrpoConfig(max_kl=1.0, line_search_steps=4, shrink=0.5, accept_ratio=0.1)
    one = torch.tensor([1.0])
    step = line_search(lambda move: (kl_of(move.item()), gain_of(move.item())), one, one, 1.0, settings)
    assert (step.tried, step.length) == (tried, length)
    if length:
        assert step.move_P.item() == length
        assert (step.kl, step.gain) == (kl_of(length), gain_of(length))
    else:
        assert (step.move_P, step.kl, step.gain) == (None, 0.0, 0.0)


@pytest.mark.parametrize("gradient", [[0.0, 0.0], [1.0, 1.0]])
def test_without_a_gradient_or_a_curvature_there_is_no_step(gradient):
    def measure(move):
        raise AssertionError("there is nothing to try")

    step, _ = trust_region_step(torch.zeros_like, measure, torch.tensor(gradient), TrpoConfig(cg_damping=0.0))
    assert (step.move_P, step.tried) == (None, 0)
