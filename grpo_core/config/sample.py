"""Config of rejection sampling: completions of a model that filters keep become a dataset. Loads no torch."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.evaluation import REWARD, EvalConfig
from grpo_core.config.reward import RewardConfig
from grpo_core.config.run import CheckpointConfig, DataConfig, EngineConfig, ModelConfig, SamplingConfig, TracesConfig
from grpo_core.config.stage import Kind, RunName, StageConfig
from grpo_core.errors import Conflict
from grpo_core.specs.fields import Count, Part, Share


class FilterConfig(Part):
    passed: bool = Field(default=True, title="Right answers only")
    """Keep only completions that the reward's success component calls right."""
    min_reward: float | None = Field(default=None, title="Least reward")
    """Keep only completions of at least this reward; empty: any."""
    components: tuple[Annotated[str, Field(min_length=1, max_length=40)], ...] = Field(
        default=(), title="Components that must pass"
    )
    """Names of further components of the reward that must call the completion right, such as one of format or
    language."""
    finished: bool = Field(default=True, title="Finished answers only")
    """Drop completions that reached the longest length without an end."""
    min_tokens: Count | None = Field(default=None, title="Least tokens")
    """Drop shorter completions."""
    max_tokens: Count | None = Field(default=None, title="Most tokens")
    """Drop longer completions."""
    duplicates: Literal["keep", "exact", "near"] = Field(default="exact", title="Duplicates dropped")
    """exact: of completions of a problem that are the same but for white space, the first is kept. near: of those that
    share `near_share` of their word 5-grams too."""
    near_share: Share = Field(default=0.8, title="Share of 5-grams that makes a near-duplicate")
    """With duplicates: near."""
    per_problem: Count | None = Field(default=None, title="Most completions per problem")
    """Keep at most so many of a problem, chosen by `choose`; empty: all that pass."""
    choose: Literal["best", "shortest", "random"] = Field(default="best", title="Which of them")
    """With per_problem. best: those of the highest reward, of equal ones by seed. shortest: those of fewest tokens.
    random: by seed."""


class SampleConfig(StageConfig):
    """Of rejection sampling."""

    kind: ClassVar[Kind] = "sample"

    name: RunName = "sample"
    """What people call the run, and the dataset that it writes."""
    model: ModelConfig
    """The model that answers."""
    data: DataConfig
    """Problems to answer, each once."""
    reward: RewardConfig
    """What completions are scored by."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn: `group_size` of each problem, `prompts_per_step` problems in a step."""
    filter: FilterConfig = FilterConfig()
    """Which completions become rows of the dataset."""
    rows: Literal["conversations", "pairs", "scores"] = Field(default="conversations", title="Rows of the dataset")
    """conversations: prompt and completion, for fine-tuning. pairs: of each problem a completion that the filter keeps
    above one that the reward calls wrong, for a reward model. scores: every scored completion with its reward, for a
    reward model by regression."""
    engine: EngineConfig = EngineConfig()
    """Where and in what portions the work is done."""
    traces: TracesConfig = TracesConfig(tokens=("none",))
    """Which samples are kept for review; the dataset does not depend on it."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Start of every random choice of the run."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        names = {component.name for component in self.reward.components}
        if unknown := sorted(set(self.filter.components) - names):
            raise Conflict(
                "unknown_component",
                f"{', '.join(unknown)}: the reward has {', '.join(sorted(names))}",
                field="filter.components",
            )
        for field, fault in self._without_meaning():
            raise Conflict("nothing_is_trained", fault, field=field)
        if self.rows == "scores" and self.filter != FilterConfig():
            raise Conflict(
                "scores_are_not_filtered",
                "with rows: scores every scored completion is a row, and no filter applies; leave filter out",
                field="filter",
            )
        if self.rows == "pairs" and not self.filter.passed:
            raise Conflict(
                "pairs_of_right_and_wrong",
                "with rows: pairs a right completion stands above a wrong one; set filter.passed: true",
                field="filter.passed",
            )
        low, high = self.filter.min_tokens, self.filter.max_tokens
        if low is not None and high is not None and low > high:
            raise Conflict(
                "min_tokens_above_max", f"is {low}, more than filter.max_tokens {high}", field="filter.min_tokens"
            )
        return self

    def _without_meaning(self) -> Iterator[tuple[str, str]]:
        """(field, why it cannot be given), for settings of training."""
        if self.model.lora.rank:
            yield "model.lora.rank", "no adapters are made where nothing is trained; leave model.lora out"
        if self.model.quantization != "none":
            yield "model.quantization", "the model is held whole where nothing is trained; set it to none"
        if self.engine.training != "single":
            yield "engine.training", "nothing is trained, so that DeepSpeed has nothing to divide; leave it out"
        if self.engine.one_step_off:
            yield "engine.one_step_off", "there is no update to overlap sampling with; leave it out"
        if self.traces.tokens != ("none",):
            yield "traces.tokens", "token arrays hold what an update computes, and there is none; set it to [none]"

    # ------------------------------------------------------------------ derived

    def steps_for(self, problems: int) -> int:
        """Steps that `problems` problems take."""
        return -(-problems // self.sampling.prompts_per_step)

    @property
    def completions_per_step(self) -> int:
        return self.sampling.group_size * self.sampling.prompts_per_step

    @property
    def longest_sequence(self) -> int:
        """Tokens, prompt and completion together."""
        return self.data.max_prompt_tokens + self.sampling.max_completion_tokens

    @property
    def algorithm(self) -> AlgorithmConfig:
        """Of the parts that sampling shares with GRPO; nothing is learned."""
        return AlgorithmConfig()

    @property
    def eval(self) -> EvalConfig:
        """Nothing is evaluated."""
        return EvalConfig(before=False, after=False, cost=0.0)

    @property
    def checkpoints(self) -> CheckpointConfig:
        """A checkpoint holds the position alone, and no weights."""
        return CheckpointConfig(best=False, final=False)

    @property
    def best_by(self) -> str:
        return REWARD

    @property
    def eval_max_completion_tokens(self) -> int:
        return self.sampling.max_completion_tokens

    @property
    def heldout_reward(self) -> RewardConfig:
        return self.reward
