"""Config of a reward model's training: a sequence classifier on pairs or scores. Loads no torch."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.evaluation import HELDOUT, EvalConfig
from grpo_core.config.prompt import PromptConfig
from grpo_core.config.run import CheckpointConfig, EngineConfig, ModelConfig, SamplingConfig
from grpo_core.config.sft import MAXIMUM_LIKELIHOOD, BatchOptimConfig
from grpo_core.config.stage import Kind, RunName, StageConfig
from grpo_core.errors import Conflict
from grpo_core.specs.fields import Count, CountOrZero, HubSplit, NotNegative, Share


class PreferencesConfig(PromptConfig):
    path: Annotated[str, Field(min_length=1)]
    """File with pairs (`prompt`, `chosen`, `rejected`, and `margin` where there is one), or with scored completions
    (`prompt`, `completion`, `score`). A relative path starts at the config file's folder. With `hub`: id of a dataset
    on the Hugging Face Hub."""
    hub: HubSplit | None = None
    """Commit and split of a dataset on the Hub; with it, no file of this name is looked at."""
    limit: Count | None = Field(default=None, title="First rows only")
    """Use only the first so many rows; empty means all."""
    max_tokens: Count = Field(default=1024, title="Max tokens of a text")
    """Longest prompt and answer together that is taken."""
    long: Literal["error", "drop"] = Field(default="error", title="Longer texts")
    """What to do with a longer text: stop and name it, or drop its row and count it. None is cut."""
    holdout: CountOrZero = Field(default=0, title="Rows split off to measure on")
    """Rows set apart from the file (by seed, whole prompts, never trained on), on which accuracy is measured."""
    heldout_path: str | None = Field(default=None, title="Held-out preferences")
    """File with pairs or scores to measure on. Empty: `holdout` of the training file."""
    replay_path: str | None = Field(default=None, title="Earlier preferences")
    """File that an earlier reward model was trained on: `replay_share` of the rows of every batch are drawn from it."""
    replay_share: Share = Field(default=0.1, title="Share of earlier preferences")
    """Share of every batch that comes from `replay_path`. DeepSeekMath used 0.1."""

    @property
    def has_heldout(self) -> bool:
        return self.heldout_path is not None or self.holdout > 0

    @model_validator(mode="after")
    def _one_heldout_set(self) -> Self:
        if self.heldout_path is not None and self.holdout:
            raise Conflict(
                "two_heldout_sets", "give heldout_path or holdout, not both: one set is measured", field="holdout"
            )
        return self


class RewardModelConfig(StageConfig):
    """Of the training of a reward model."""

    kind: ClassVar[Kind] = "reward_model"

    name: RunName = "reward-model"
    """What people call the run."""
    preset: str | None = None
    """Paper whose settings apply wherever a field is not given; differences from it are shown and recorded."""
    model: ModelConfig
    """The language model, or the reward model, that training begins from. A language model gets a new head."""
    data: PreferencesConfig
    """What to learn from."""
    objective: Literal["bradley_terry", "regression"] = Field(default="bradley_terry", title="Objective")
    """bradley_terry: of a pair, −log σ(r_chosen − r_rejected − margin). regression: of a score, (r − score)²."""
    center: NotNegative = Field(default=0.0, title="Centring coefficient")
    """Weight of (r_chosen + r_rejected)² of each pair, which keeps rewards around 0; 0.01 in Eisenstein et al. 2023
    (arXiv 2312.09244). With bradley_terry."""
    optim: BatchOptimConfig = BatchOptimConfig(lr=1e-5)
    """The optimiser and the length of the run."""
    engine: EngineConfig = EngineConfig()
    """Where and in what portions the work is done."""
    eval: EvalConfig = EvalConfig()
    """When the held-out pairs are measured: before, while and after training."""
    checkpoints: CheckpointConfig = CheckpointConfig()
    """Which weights are kept."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Start of every random choice of the run."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        own = self.eval
        if own.suites or own.path is not None or own.holdout or own.reward is not None:
            raise Conflict(
                "no_answers_to_judge",
                "a reward model answers nothing: it is measured on held-out pairs (data.holdout or data.heldout_path), "
                "not on problems or suites",
                field="eval.suites" if own.suites else "eval.path",
            )
        if not self.data.has_heldout and (own.before or own.after):
            raise Conflict(
                "nothing_to_evaluate_on",
                "nothing to measure on: give data.holdout or data.heldout_path, or switch eval.before and eval.after "
                "off",
                field="data.holdout",
            )
        if self.center and self.objective != "bradley_terry":
            raise Conflict(
                "center_without_pairs", "center has a meaning only with objective: bradley_terry", field="center"
            )
        return self

    # ------------------------------------------------------------------ derived

    @property
    def steps(self) -> int:
        return self.optim.steps

    @property
    def longest_sequence(self) -> int:
        """Tokens of one text."""
        return self.data.max_tokens

    @property
    def algorithm(self) -> AlgorithmConfig:
        """Of the parts that all trainers share; it has no ratio, no penalty and no critic."""
        return MAXIMUM_LIKELIHOOD

    @property
    def sampling(self) -> SamplingConfig:
        """Nothing is sampled."""
        return SamplingConfig()

    @property
    def eval_max_completion_tokens(self) -> int:
        return self.sampling.max_completion_tokens

    @property
    def best_by(self) -> str:
        """What decides the best checkpoint, and early stopping."""
        return self.checkpoints.best_by or HELDOUT
