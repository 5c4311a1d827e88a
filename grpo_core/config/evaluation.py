"""What is measured before, while and after training: held-out problems, and suites. Loads no torch."""

from collections import Counter
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from grpo_core.config import builtin_suites
from grpo_core.config.reward import RewardConfig
from grpo_core.errors import ConfigError, Conflict
from grpo_core.specs.fields import (
    Count,
    CountOrZero,
    DataColumns,
    DataFormat,
    GreedyTemperature,
    HubSplit,
    LongText,
    Part,
    Share,
)

HELDOUT = "heldout"
"""The name under which held-out problems are listed next to the suites."""
REWARD = "reward"
"""The same of the training reward, where it decides the best checkpoint."""
LOSS = "loss"
"""The same of the loss on held-out conversations."""

Category = Literal[
    "performance",
    "hallucination",
    "refusal_calibration",
    "jailbreak_robustness",
    "harmful_capability",
    "multilingual",
    "tool_use",
    "format",
]
ScorerKind = Literal["exact", "number", "choice", "refusal", "function_call", "format", "contains"]
HigherIs = Literal["better", "worse", "neutral"]

MAX_MARGIN: Final = 0.2
"""Largest margin, as a share: docs/statistics.md."""
MARGIN_RULE: Final = (
    f"must be at most {MAX_MARGIN} ({100 * MAX_MARGIN:g} points): harm below the margin counts as not worse, and a "
    "larger one would excuse the loss of more than one answer in five"
)


def _margin(value: Any, check: ValidatorFunctionWrapHandler) -> float:
    try:
        return float(check(value))
    except ValidationError as error:
        if error.errors()[0]["type"] != "less_than_equal":
            raise
        raise Conflict("margin_too_large", f"{MARGIN_RULE}; given {value}") from None


Margin = Annotated[float, Field(ge=0, le=MAX_MARGIN), WrapValidator(_margin)]
"""Of non-inferiority, as a share, 0 to MAX_MARGIN."""


class ScorerConfig(Part):
    kind: ScorerKind
    """exact: the answer is the target. number: both are the same number. choice: the option's letter or text. refusal:
    a string match for words of refusal. function_call: the calls written out are those wanted; nothing is run. format:
    a pattern, or the shape of a JSON value. contains: the completion contains the target."""
    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the kind, checked against the kind's own parameters when the suite is loaded."""


class SuiteConfig(Part):
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=60)]
    """Short name, unique in the run. `heldout` is taken by the held-out problems."""
    title: Annotated[str, Field(min_length=1, max_length=120)]
    """What people call it; the name where not given."""
    version: Count = 1
    """Number of this version of its items."""
    path: Annotated[str, Field(min_length=1)]
    """File with one item a line; a relative path starts at the config file's folder. `builtin:<name>` is one of the
    suites that come with Cohort, which gives every field here that is not given."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest of that file; where it is given, another file is refused."""
    category: Category
    """The behaviour it measures."""
    scorer: ScorerConfig
    """What completions are judged by."""
    higher_is: HigherIs = "better"
    """Whether a higher score is better, worse (a capability to do harm), or neither."""
    sensitive: bool = False
    """Prompts and completions are shown to authorities only, never on a public card."""
    margin: Margin | None = Field(default=None, title="Margin")
    """Margin of non-inferiority; empty takes `eval.margin`."""
    limit: Count | None = Field(default=None, title="First items only")
    """Use only the first so many items; empty means all."""
    max_completion_tokens: Count | None = Field(default=None, title="Max completion tokens")
    """Longest completion; empty takes that of `eval`."""
    template: LongText | None = Field(default=None, title="Prompt template")
    """What the policy is shown; `{prompt}` stands for the item. Empty takes `data.template`."""

    @model_validator(mode="before")
    @classmethod
    def _from_starter(cls, given: Any) -> Any:
        """Fills in the fields that a starter suite declares, so that the config holds its digest."""
        if not isinstance(given, dict):
            return given
        path = given.get("path")
        if isinstance(path, str) and path.startswith(builtin_suites.PREFIX):
            try:
                given = {**builtin_suites.definition(path.removeprefix(builtin_suites.PREFIX)), **given}
            except ConfigError as error:
                raise Conflict("unknown_starter_suite", str(error)) from None
        return {"title": given["name"], **given} if isinstance(given.get("name"), str) else given

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if self.name == HELDOUT:
            raise Conflict(
                "suite_named_heldout", f"the name {HELDOUT!r} is taken by the held-out problems; give another"
            )
        if self.template is not None and "{prompt}" not in self.template:
            raise Conflict(
                "template_without_prompt", "must hold {prompt}, the place where the item goes", field="template"
            )
        return self


class EvalConfig(Part):
    path: str | None = None
    """File with held-out problems. Empty: `holdout` problems are set apart from the training file."""
    hub: HubSplit | None = None
    """Commit and split of a dataset on the Hub, as in `data.hub`."""
    format: DataFormat = "auto"
    """Layout of its rows, as in `data.format`."""
    columns: DataColumns = DataColumns()
    """Which of its fields is what, as in `data.columns`."""
    holdout: CountOrZero = Field(default=0, title="Split off from training")
    """Problems set apart from the training file (by seed, never trained on) when no file is given."""
    limit: Count | None = Field(default=None, title="First held-out problems only")
    """Use only the first so many held-out problems."""
    before: bool = Field(default=True, title="Evaluate before training")
    """Evaluate before training, so that the record can say what changed."""
    after: bool = Field(default=True, title="Evaluate after training")
    """Evaluate after training, on the same problems with the same seeds."""
    every: Count | None = Field(default=None, title="Evaluate every, steps")
    """Steps between evaluations while training. Empty: as often as they take at most `cost` of the run's time, and
    after the last step."""
    cost: Annotated[float, Field(ge=0, le=1, title="Time for evaluations while training, share")] = 0.05
    """Most of the run's time that evaluations while training may take, where `every` is empty. 0 evaluates before and
    after training only."""
    during: tuple[str, ...] = Field(default=(), title="Evaluated while training")
    """Names of the suites that are evaluated while training; `heldout` is the held-out problems. Empty: the held-out
    problems, or the first suite where there are none."""
    during_limit: Count | None = Field(default=None, title="First problems only while training")
    """Use only the first so many of their problems while training, the same ones each time; empty means all."""
    patience: Count | None = Field(default=None, title="Early stopping patience, evaluations")
    """The run ends, with all that belongs to its end, after so many evaluations in a row that were not better than the
    best before them by more than `min_delta`. Of the suite in `checkpoints.best_by`. Needs `every`. Empty: never."""
    min_delta: Share = Field(default=0.0, title="Early stopping threshold, share")
    """What counts as better for `patience`: by more than this."""
    reward: RewardConfig | None = Field(default=None, title="Held-out verifier")
    """What held-out problems are judged by, in place of the training reward: by its component that means right. Empty:
    the training reward."""
    temperature: Annotated[GreedyTemperature, Field(title="Evaluation temperature")] = 0.0
    """0 takes the likeliest token each time."""
    samples_per_problem: Count = 1
    """Completions per problem; their mean counts."""
    max_completion_tokens: Count | None = Field(default=None, title="Longest evaluated completion, tokens")
    """Longest completion; empty takes the sampling limit."""
    margin: Margin = Field(default=0.05, title="Margin of regression")
    """`regressed` means that the 95 % interval of the change is below 0 and holds a fall by this share. Fixed before
    the run starts."""
    suites: tuple[SuiteConfig, ...] = ()
    """What else is measured, by the same loop: docs/evaluation.md."""

    @model_validator(mode="after")
    def _names_unique(self) -> Self:
        names = [suite.name for suite in self.suites]
        if twice := sorted(name for name, times in Counter(names).items() if times > 1):
            raise Conflict("suite_given_twice", f"suite names must be unique; given twice: {', '.join(twice)}")
        return self

    @property
    def has_something(self) -> bool:
        """Whether there is anything to measure on."""
        return self.has_heldout or bool(self.suites)

    @property
    def has_heldout(self) -> bool:
        return self.path is not None or self.holdout > 0

    @property
    def during_suites(self) -> tuple[str, ...]:
        """Names of what is evaluated while training, in the order of evaluation; `heldout` is the held-out problems."""
        if self.every is None and self.cost == 0:
            return ()
        there = ([HELDOUT] if self.has_heldout else []) + [suite.name for suite in self.suites]
        return tuple(name for name in there if name in self.during) if self.during else tuple(there[:1])

    def higher_is(self, name: str) -> HigherIs:
        """Of held-out problems, a suite by its name, or the held-out loss."""
        other: HigherIs = "worse" if name == LOSS else "better"
        return next((suite.higher_is for suite in self.suites if suite.name == name), other)
