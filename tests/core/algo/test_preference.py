"""The losses of reward models: by hand, and their gradients by the closed form."""

import math

import pytest
import torch

from grpo_core.algo.preference import bradley_terry_loss, regression_loss

CHOSEN, REJECTED, MARGIN = [2.0, -1.0, 0.5, 80.0], [0.5, 1.0, 0.5, -80.0], [0.0, 0.0, 1.0, 0.0]


def pairs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chosen, rejected = (torch.tensor(side, dtype=torch.float64, requires_grad=True) for side in (CHOSEN, REJECTED))
    return chosen, rejected, torch.tensor(MARGIN, dtype=torch.float64)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("center", [0.0, 0.01])
def test_bradley_terry_is_the_negative_log_likelihood(center: float) -> None:
    """log(1 + e^−d), d = r_c − r_r − m: of d 1.5, −2, −1, 160."""
    chosen, rejected, margin = pairs()
    loss = bradley_terry_loss(chosen, rejected, margin, center=center)
    by_hand = [math.log1p(math.exp(-d)) for d in (1.5, -2.0, -1.0, 160.0)]
    centred = [center * total**2 for total in (2.5, 0.0, 1.0, 0.0)]
    assert loss.tolist() == pytest.approx([a + b for a, b in zip(by_hand, centred, strict=True)], rel=1e-12)
    loss.sum().backward()
    # dL/dr_c = −σ(−d) + 2·center·(r_c + r_r), dL/dr_r = σ(−d) + the same.
    away = [sigmoid(-d) for d in (1.5, -2.0, -1.0, 160.0)]
    pull = [2 * center * total for total in (2.5, 0.0, 1.0, 0.0)]
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert chosen.grad.tolist() == pytest.approx([p - a for a, p in zip(away, pull, strict=True)], rel=1e-12)
    assert rejected.grad.tolist() == pytest.approx([p + a for a, p in zip(away, pull, strict=True)], rel=1e-12)


def test_bradley_terry_is_torchs_logsigmoid_and_finite_far_out() -> None:
    chosen = torch.tensor([-500.0, 500.0, 0.3])
    rejected = torch.tensor([500.0, -500.0, 0.1])
    loss = bradley_terry_loss(chosen, rejected, torch.zeros(3))
    assert loss.tolist() == pytest.approx([1000.0, 0.0, math.log1p(math.exp(-0.2))], rel=1e-6)
    assert torch.equal(loss, -torch.nn.functional.logsigmoid(chosen - rejected))


def test_regression_is_the_squared_error() -> None:
    rewards = torch.tensor([1.0, -2.0, 0.25], requires_grad=True)
    loss = regression_loss(rewards, torch.tensor([0.5, 1.0, 0.25]))
    assert loss.tolist() == [0.25, 9.0, 0.0]
    loss.sum().backward()
    assert rewards.grad is not None
    assert rewards.grad.tolist() == [1.0, -6.0, 0.0]
