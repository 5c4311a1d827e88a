"""Operations by architecture: how many multiplications and additions the passes of a run take.

A token that goes forward through a matrix of n weights takes 2n operations, and learning from it takes 4n more: 2n for
the gradient of what went in, 2n for the gradient of the weights. So a pass of training takes 6 × parameters × tokens
(Kaplan et al. 2020, arXiv 2001.08361, table 1; the Commission's guidelines, C(2025) 7719 final, Annex A.2.2). Besides:

- Attention compares each token with those before it: 4 × layers × width × their number, in the mean half the text's
  length. The 6PD of the guidelines leaves it out, which is right while parameters are far above a twelfth of the
  context (their footnote to Annex A.2.2).
- Of a mixture of experts a token goes through those that its router chooses, and these count.
- Through the output layer go completion tokens alone; the input embedding is looked up, not multiplied.
- With LoRA (Hu et al. 2021) no gradient of the frozen weights is made, so that they take 4 in place of 6.
- Annex A.1 leaves out evaluations, models trained to help (a critic) and activations that are computed again to save
  memory. The first and the last are counted apart here; a critic is in the sum, which it can only make larger.

Not counted: norms, softmax, the optimiser's arithmetic, and what a reward model or a judge computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.compute.shape import Shape
from grpo_core.config.kinds import AnyConfig, ScoredConfig
from grpo_core.config.run import RunConfig

Name = Literal["sampling", "old", "reference", "update", "trust_region", "critic", "recomputed", "evaluation"]
APART: tuple[Name, ...] = ("recomputed", "evaluation")
"""Parts that are in no sum, as Annex A.1 of the guidelines has it."""
TITLES: dict[Name, str] = {
    "sampling": "sampling, one pass forward",
    "old": "log-probabilities before the update, one pass forward",
    "reference": "reference policy, one pass forward",
    "update": "update",
    "trust_region": "trust region: products with the Fisher matrix, and the line search",
    "critic": "critic",
    "recomputed": "activations computed again",
    "evaluation": "evaluations, one pass forward",
}

Amount = Annotated[float, Field(ge=0)]


class Work(BaseModel):
    """Tokens of a run that went, or will go, through its models."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tokens: Amount
    """Sampled in steps, with a prompt counted for each of its completions; superseded steps included."""
    completion_tokens: Amount | None = None
    """Those of them that the policy sampled; None where that is not known."""
    completions: Amount | None = None
    """How many texts they are of; None where that is not known, and attention is not counted."""
    learned_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the tokens that go through the update."""
    evaluated_tokens: Amount = 0.0
    """Of evaluations, prompts included."""


@dataclass(frozen=True)
class Part:
    """One kind of pass."""

    name: Name
    passes: float
    """Passes forward that it equals, where one pass forward takes 2 × parameters × tokens."""
    parameters: int
    tokens: float
    flop: float

    @property
    def counted(self) -> bool:
        return self.name not in APART


@dataclass(frozen=True)
class Flop:
    parts: tuple[Part, ...]
    attention: float
    """What of `total` attention takes; 0 where the shape of the model is not known."""

    @property
    def total(self) -> float:
        """Of the training: all but what is counted apart."""
        return sum(part.flop for part in self.parts if part.counted)

    def part(self, name: Name) -> float:
        return sum(part.flop for part in self.parts if part.name == name)


def training_flop(config: AnyConfig, shape: Shape, work: Work) -> Flop:
    """Operations of a run of this config with this model. Fine-tuning and reward models sample nothing, and sampling
    learns nothing."""
    return Flop(*_grpo(config, shape, work)) if isinstance(config, RunConfig) else Flop(*_other(config, shape, work))


def _other(config: AnyConfig, shape: Shape, work: Work) -> tuple[tuple[Part, ...], float]:
    model = _Passes(shape, work)
    if isinstance(config, ScoredConfig):
        parts = [model.part("sampling", 1, work.tokens)]
    else:
        parts = [model.part("update", 2 if config.model.lora.rank else 3, work.tokens, unfrozen=3)]
        if config.engine.gradient_checkpointing:
            parts.append(model.part("recomputed", 1, work.tokens))
    if work.evaluated_tokens:
        parts.append(model.part("evaluation", 1, work.evaluated_tokens))
    return tuple(parts), sum(model.attention.values())


def _grpo(config: RunConfig, shape: Shape, work: Work) -> tuple[tuple[Part, ...], float]:
    algorithm, model = config.algorithm, _Passes(shape, work)
    tokens, learned, passes = work.tokens, work.tokens * work.learned_share, algorithm.inner_iterations
    looked = tokens if _measures_all(config) else learned
    parts = [model.part("sampling", 1, tokens)]
    if _measures_all(config) or algorithm.mini_batches > 1:
        parts.append(model.part("old", 1, looked))
    if algorithm.needs_reference:
        parts.append(model.part("reference", 1, looked))
    frozen = config.model.lora.rank > 0
    parts.append(model.part("update", passes * (2 if frozen else 3), learned, unfrozen=3 * passes))
    if config.optim.method == "trpo":
        region = _trust_region_passes(config, frozen=frozen), _trust_region_passes(config, frozen=False)
        parts.append(model.part("trust_region", region[0], tokens, unfrozen=region[1]))
    if algorithm.estimator.critic:
        parts.append(model.critic(1 + 3 * passes, tokens))
    if config.engine.gradient_checkpointing:
        parts.append(model.part("recomputed", passes, learned))
    if work.evaluated_tokens:
        parts.append(model.part("evaluation", 1, work.evaluated_tokens))
    return tuple(parts), sum(model.attention.values())


def _trust_region_passes(config: RunConfig, *, frozen: bool) -> float:
    """Passes forward that a step of TRPO equals, over all tokens, with one length of the line search, which is most
    often enough. A product with the Fisher matrix is a pass with forward derivatives, which takes 3 (2 where weights
    are frozen and have none), one forward and one backward, 2 (1); one more product gives the length. A length that is
    tried takes the old and the new policy forward."""
    return (4 if frozen else 6) * (config.optim.trpo.cg_iterations + 1) + 2


def _measures_all(config: RunConfig) -> bool:
    """Whether every completion goes through the model before the update, since advantages, a mask or a threshold need
    its log-probabilities (training/single.py)."""
    algorithm = config.algorithm
    in_reward = algorithm.kl.coef > 0 and algorithm.kl.place == "reward"
    masked = algorithm.correction.mode == "sequence_mask" or algorithm.top_entropy_share < 1
    return algorithm.estimator.critic or in_reward or masked


def learned_share(config: AnyConfig, sums: Mapping[str, float]) -> float:
    """Share of the sampled groups that go through the update, of a run's sums by signal (groups, groups_mixed, …):
    those that carry a signal, where others are skipped or replaced. 1 where nothing is known."""
    if not isinstance(config, RunConfig):
        return 1.0
    algorithm, groups = config.algorithm, sums.get("groups", 0.0)
    skipped = config.engine.skip_zero_advantage and algorithm.zero_advantage_is_inert
    if not groups or not (skipped or algorithm.dynamic_sampling.enabled):
        return 1.0
    return min(1.0, algorithm.carried(sums) / groups)


class _Passes:
    """Operations of passes through one model over texts of one mean length."""

    def __init__(self, shape: Shape, work: Work) -> None:
        self._shape, self._work = shape, work
        self.attention: dict[Name, float] = {}
        """By part, of those that are in the sum."""

    def part(self, name: Name, forward: float, tokens: float, *, unfrozen: float = 0) -> Part:
        """`forward`: passes that it equals; `unfrozen`: those of adapters and attention, where they are more than those
        of frozen weights."""
        shape = self._shape
        completions = tokens
        if shape.head and name != "evaluation" and self._work.completion_tokens is not None and self._work.tokens:
            completions = tokens * self._work.completion_tokens / self._work.tokens
        each = unfrozen or forward
        products = 2 * (forward * (shape.body * tokens + shape.head * completions) + each * shape.adapters * tokens)
        attention = each * self._attended(tokens, name)
        if name not in APART:
            self.attention[name] = attention
        return Part(name, forward, shape.active + shape.adapters, tokens, products + attention)

    def critic(self, forward: float, tokens: float) -> Part:
        """The critic has the body of the base model, all of whose weights are trained, and one output."""
        shape = self._shape
        attention = forward * self._attended(tokens, "critic")
        self.attention["critic"] = attention
        return Part("critic", forward, shape.body, tokens, 2 * forward * shape.body * tokens + attention)

    def _attended(self, tokens: float, name: Name) -> float:
        """Of one pass forward: queries with keys, and weights with values, over half a text in the mean."""
        shape, completions = self._shape, self._work.completions
        if not shape.layers or not shape.attention or not completions or name == "evaluation":
            return 0.0
        return 4 * shape.layers * shape.attention * tokens * (self._work.tokens / completions) / 2
