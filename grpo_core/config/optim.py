"""The optimiser's part of a config: how a gradient becomes a change of the weights. Which choices go together is in
`config.optim_conflicts`. Loads no torch.
"""

from typing import Annotated, Literal

from pydantic import Field

from grpo_core.specs.fields import Count, CountOrZero, NotNegative, Part, Positive


class TrpoConfig(Part):
    max_kl: Positive = Field(default=0.01, title="Trust region δ, nats per token")
    """δ: the mean KL divergence of the new policy from the old one, over the tokens of a step, is at most this. The
    paper used 0.01."""
    cg_iterations: Count = Field(default=10, title="Iterations of conjugate gradient")
    """Most products with the Fisher matrix that the direction of a step is made of; it ends sooner where the residual
    has become 1e-5 of the gradient. The paper used 10."""
    cg_damping: NotNegative = Field(default=1e-3, title="Damping of conjugate gradient")
    """Added to the diagonal of the Fisher matrix while the direction is solved for, which keeps directions of no
    curvature from growing without bound. The length of the step is by the matrix without it."""
    line_search_steps: Count = Field(default=10, title="Steps of the line search, at most")
    """Lengths that are tried before the policy is left as it is."""
    shrink: Annotated[float, Field(gt=0, lt=1, title="Shrinking of the line search")] = 0.8
    """Each length is this share of the one before. The first aims at the bound itself and lands beyond it about every
    second time, so a smaller share gives much of the region away."""
    accept_ratio: Annotated[float, Field(ge=0, lt=1, title="Least share of the predicted gain")] = 0.1
    """A step is taken only where the surrogate rises by at least this share of what its gradient predicts."""
    max_parameters: Annotated[int, Field(ge=1, le=1_000_000_000, title="Trained weights, at most")] = 10_000_000
    """A policy with more trained weights is refused: a step holds seven numbers for each of them, and takes as many
    passes as some twenty updates of AdamW."""


class AdamwConfig(Part):
    """Of every kind of run that learns."""

    steps: Count = Field(default=100, title="Steps")
    """Sampled batches, each followed by μ × mini-batches optimiser updates. The run's length."""
    lr: Positive = Field(default=1e-6, title="Learning rate")
    """Learning rate of AdamW."""
    beta1: Annotated[float, Field(ge=0, lt=1, title="AdamW β₁")] = 0.9
    """Decay of AdamW's first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1, title="AdamW β₂")] = 0.999
    """Decay of AdamW's second moment."""
    eps: Positive = 1e-8
    """Added to the root of AdamW's second moment before dividing."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    warmup_steps: CountOrZero = 0
    """Steps over which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "linear"] = "constant"
    """constant after warm-up, or falling linearly so that it would reach 0 one step after the last."""
    max_grad_norm: Positive = 1.0
    """The gradient is scaled down to this norm when longer."""

    def learning_rate(self, step: int) -> float:
        """Rate of step `step` (from 1): linear warm-up that reaches `lr` at `warmup_steps`, then constant, or linear so
        that it would be 0 one step after the last."""
        if step <= self.warmup_steps:
            return self.lr * step / self.warmup_steps
        if self.schedule == "constant":
            return self.lr
        return self.lr * (self.steps - step + 1) / (self.steps - self.warmup_steps)


class OptimConfig(AdamwConfig):
    method: Literal["adamw", "trpo"] = Field(default="adamw", title="Optimiser")
    """adamw follows the gradient at a learning rate. trpo takes the natural gradient's direction as far as the bound on
    the divergence allows (TRPO, arXiv 1502.05477); it goes with loss: unclipped, and is for small models."""
    trpo: TrpoConfig = TrpoConfig()
    """Settings of method: trpo."""
