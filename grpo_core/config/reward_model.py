"""Config of a reward model's training: a sequence classifier on pairs or scores. Loads no torch."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from grpo_core.config.evaluation import HELDOUT, EvalConfig
from grpo_core.config.prompt import template_fault
from grpo_core.config.run import CheckpointConfig, EngineConfig, ModelConfig
from grpo_core.config.sft import BatchConfig, BatchOptimConfig
from grpo_core.config.stage import Kind, RunName
from grpo_core.errors import Conflict
from grpo_core.specs.fields import CODE, Count, CountOrZero, HubSplit, LongText, NotNegative, Part, Share

TRAINED_ON = "cohort_scoring_texts"
"""Field of a reward model's config.json, written by the run that trained it: `scoring_texts` of its settings."""


def scoring_texts(template: str, *, chat: bool) -> dict[str, Any]:
    """Which texts a model reads by these settings; equal where they read the same."""
    return {"chat": chat, "template": None if chat else template}


class PreferencesConfig(Part):
    path: Annotated[str, Field(min_length=1)]
    """File with pairs (`prompt`, `chosen`, `rejected`, and `margin` where there is one), or with scored completions
    (`prompt`, `completion`, `score`). A relative path starts at the config file's folder. With `hub`: id of a dataset
    on the Hugging Face Hub."""
    hub: HubSplit | None = None
    """Commit and split of a dataset on the Hub; with it, no file of this name is looked at."""
    limit: Count | None = Field(default=None, title="First rows only")
    """Use only the first so many rows; empty means all."""
    template: Annotated[LongText, Field(max_length=20_000)] = "{prompt}{completion}"
    """What the model reads; {prompt} and {completion} are filled in. Not used with chat. The reward kind `reward_model`
    must be given the same."""
    chat: bool = False
    """Let the chat template make the text, with the prompt as the user's turn and the completion as the assistant's.
    The reward kind `reward_model` must be given the same."""
    chat_template: Annotated[str, CODE] | None = Field(default=None, title="Chat template (Jinja)")
    """Used instead of the tokenizer's, and saved with the reward model. Empty: the tokenizer's."""
    max_tokens: Count = Field(default=1024, title="Max tokens of a text")
    """Longest prompt and answer together that is taken."""
    long: Literal["error", "drop"] = Field(default="error", title="Longer texts")
    """What to do with a longer text: stop and name it, or drop its row and count it. None is cut."""
    holdout: CountOrZero = Field(default=0, title="Rows split off to measure on")
    """At most so many rows are set apart from the file (by seed, all rows of a prompt together, never trained on), on
    which accuracy is measured."""
    heldout_path: str | None = Field(default=None, title="Held-out preferences")
    """File with pairs or scores to measure on. Empty: `holdout` of the training file."""
    replay_path: str | None = Field(default=None, title="Earlier preferences")
    """File that an earlier reward model was trained on: `replay_share` of the rows of every batch are drawn from it.
    Rows whose prompt is held out are left out."""
    replay_share: Share = Field(default=0.1, title="Share of earlier preferences")
    """Share of every batch that comes from `replay_path`, exact over the run: what a batch's whole number of rows falls
    short of or exceeds is carried to the next. DeepSeekMath used 0.1."""

    @property
    def has_heldout(self) -> bool:
        return self.heldout_path is not None or self.holdout > 0

    @field_validator("chat_template")
    @classmethod
    def _chat_template_parses(cls, template: str | None) -> str | None:
        if template is not None and (fault := template_fault(template)) is not None:
            raise Conflict("chat_template_syntax", f"is no Jinja template: {fault}")
        return template

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if not self.chat and "{completion}" not in self.template:
            raise Conflict(
                "template_without_completion",
                "does not hold {completion}, so the model would not see what it scores",
                field="template",
            )
        if self.chat_template is not None and not self.chat:
            raise Conflict(
                "chat_template_without_chat", "chat_template has a meaning only with chat: true", field="chat_template"
            )
        return self

    @model_validator(mode="after")
    def _one_heldout_set(self) -> Self:
        if self.heldout_path is not None and self.holdout:
            raise Conflict(
                "two_heldout_sets", "give heldout_path or holdout, not both: one set is measured", field="holdout"
            )
        return self


class RewardModelConfig(BatchConfig):
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
        if (refused := next(_unsupported(self), None)) is not None:
            raise refused
        if self.center and self.objective != "bradley_terry":
            raise Conflict(
                "center_without_pairs", "center has a meaning only with objective: bradley_terry", field="center"
            )
        return self

    # ------------------------------------------------------------------ derived

    @property
    def longest_sequence(self) -> int:
        """Tokens of one text."""
        return self.data.max_tokens

    @property
    def eval_max_completion_tokens(self) -> int:
        return self.sampling.max_completion_tokens

    @property
    def during_suites(self) -> tuple[str, ...]:
        """What is measured while training: the held-out pairs, or nothing."""
        off = self.eval.every is None and self.eval.cost == 0
        return () if off or not self.data.has_heldout else (HELDOUT,)

    @property
    def best_by(self) -> str:
        """What decides the best checkpoint, and early stopping."""
        return self.checkpoints.best_by or HELDOUT


def _unsupported(c: RewardModelConfig) -> Iterator[Conflict]:
    """What other kinds of run can do and this one cannot, each with the way out."""
    engine = c.engine
    if c.model.lora.rank:
        yield Conflict(
            "lora_of_reward_model",
            "a reward model's new head is trained with all weights; adapters are not: set model.lora.rank to 0",
            field="model.lora.rank",
        )
    if c.model.quantization != "none":
        yield Conflict(
            "quantization_of_reward_model",
            "weights in 4 bits are trained through adapters, which a reward model has not: set model.quantization: "
            "none",
            field="model.quantization",
        )
    if engine.training != "single":
        yield Conflict(
            "deepspeed_of_reward_model",
            f"engine.training {engine.training} does not divide a reward model; use engine.training: single",
            field="engine.training",
        )
    if engine.devices * engine.nodes > 1:
        yield Conflict(
            "ranks_of_reward_model",
            "a reward model is trained by one process: set engine.devices and engine.nodes to 1",
            field="engine.devices",
        )
    for name, given in (("torch_compile", engine.torch_compile), ("one_step_off", engine.one_step_off)):
        if given:
            yield Conflict(
                f"{name}_of_reward_model",
                f"engine.{name} does nothing for a reward model; leave it out",
                field=f"engine.{name}",
            )
    own, during = c.eval, c.eval.during
    if unknown := [name for name in during if name != HELDOUT or not c.data.has_heldout]:
        yield Conflict(
            "unknown_suite_during",
            f"{', '.join(unknown)} cannot be evaluated while training; a reward model has {HELDOUT} alone, which are "
            "data.holdout or data.heldout_path",
            field="eval.during",
        )
    if own.every is not None and not c.data.has_heldout:
        yield Conflict(
            "every_without_pairs",
            "eval.every has nothing to measure on: give data.holdout or data.heldout_path, or leave it empty",
            field="eval.every",
        )
    if own.patience is not None and own.every is None:
        yield Conflict(
            "patience_without_every",
            "eval.patience counts evaluations, whose number must not depend on the clock; give eval.every",
            field="eval.patience",
        )
    if c.checkpoints.best_by not in (None, HELDOUT):
        yield Conflict(
            "best_by_not_measured",
            f"checkpoints.best_by {c.checkpoints.best_by}: a reward model is measured on {HELDOUT} alone",
            field="checkpoints.best_by",
        )
