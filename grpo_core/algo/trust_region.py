"""A step of TRPO (Schulman et al. 2015, arXiv 1502.05477, section 6 and appendix C): maximise the surrogate within a
mean KL divergence δ of the old policy. Its direction is the natural gradient's, by conjugate gradient; its length is
first the quadratic model's, then what a line search on the measured divergence and surrogate leaves of it.

Works on vectors and functions alone: what the policy is, and how its Fisher matrix is applied, is
`training.trust_region`'s. Departures from the paper: the direction is solved for with damping and over all tokens of
the step (the paper takes a tenth of them), and a step must reach a share of the gain that the gradient predicts, where
the paper asks for any gain; damping and share are those of the code that its first author published with it.

Shapes: P trained weights, as one vector.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.config.optim import TrpoConfig

RESIDUAL = 1e-5
"""Conjugate gradient ends where what is left is this share of the gradient: fp32 gives no more."""

Product = Callable[[Tensor], Tensor]
"""F·v of a vector v, with F the Fisher matrix of the old policy: the second derivative of its mean KL divergence."""
Measure = Callable[[Tensor], tuple[float, float]]
"""(mean KL divergence, gain of the surrogate) of the policy whose weights are moved by a vector. The old policy stays
as it is."""


@dataclass(frozen=True)
class Direction:
    """An approximate solution of (F + damping·I)·s = g."""

    vector_P: Tensor
    residual: float
    """‖g − (F + damping·I)·s‖ / ‖g‖; 0 where g is 0."""


@dataclass(frozen=True)
class Step:
    """What a line search ended with."""

    move_P: Tensor | None
    """To be added to the weights; None where no length was accepted."""
    length: float
    """Factor of the direction in the move; 0 without one."""
    tried: int
    """Lengths that were measured."""
    kl: float
    """Measured mean KL divergence of the move, in nats per token; 0 without one."""
    gain: float
    """Measured rise of the surrogate; 0 without a move."""


def conjugate_gradient(product: Product, gradient_P: Tensor, *, iterations: int, damping: float) -> Direction:
    """s with (F + damping·I)·s ≈ g after at most `iterations` products, from s = 0 (Hestenes and Stiefel 1952; TRPO,
    appendix C). Ends sooner at `RESIDUAL`, and where F has no curvature along what is left."""
    vector_P, residual_P, search_P = torch.zeros_like(gradient_P), gradient_P.clone(), gradient_P.clone()
    whole = square = _dot(gradient_P, gradient_P)
    for _ in range(iterations):
        if square <= RESIDUAL**2 * whole:
            break
        image_P = product(search_P) + damping * search_P
        curvature = _dot(search_P, image_P)
        if not curvature > 0:
            break
        vector_P += square / curvature * search_P
        residual_P -= square / curvature * image_P
        before, square = square, _dot(residual_P, residual_P)
        search_P = residual_P + square / before * search_P
    return Direction(vector_P, (square / whole) ** 0.5 if whole else 0.0)


def line_search(measure: Measure, direction_P: Tensor, gradient_P: Tensor, length: float, settings: TrpoConfig) -> Step:
    """The longest of `length`·shrinkᵏ, k from 0, whose measured divergence is at most δ and whose measured gain is at
    least `accept_ratio` of the βs·g that the gradient predicts; without one, no move. What is no number is not
    accepted."""
    slope = _dot(gradient_P, direction_P)
    for tried in range(1, settings.line_search_steps + 1):
        move_P = length * direction_P
        kl, gain = measure(move_P)
        if kl <= settings.max_kl and gain >= settings.accept_ratio * length * slope:
            return Step(move_P, length, tried, kl, gain)
        length *= settings.shrink
    return Step(None, 0.0, settings.line_search_steps, 0.0, 0.0)


def trust_region_step(
    product: Product, measure: Measure, gradient_P: Tensor, settings: TrpoConfig
) -> tuple[Step, Direction]:
    """The whole step from the surrogate's gradient g, which is to be climbed. The longest length that is tried is
    β = √(2δ / sᵀFs), where the quadratic model ½β²·sᵀFs of the divergence reaches δ (TRPO, appendix C). Where F has no
    curvature along s there is no such length and no move."""
    direction = conjugate_gradient(product, gradient_P, iterations=settings.cg_iterations, damping=settings.cg_damping)
    vector_P = direction.vector_P
    curvature = _dot(vector_P, product(vector_P)) if vector_P.any() else 0.0
    if not curvature > 0:
        return Step(None, 0.0, 0, 0.0, 0.0), direction
    length = (2 * settings.max_kl / curvature) ** 0.5
    return line_search(measure, vector_P, gradient_P, length, settings), direction


def _dot(a_P: Tensor, b_P: Tensor) -> float:
    return torch.dot(a_P, b_P).item()
