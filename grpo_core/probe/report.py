"""What a probe found: types of the report that the command writes, workers send and the platform keeps.

Only data: no scoring here, and nothing of the runner is imported, so that a web process may read a report.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, JsonValue

from grpo_core.records.types import Body, ErrorClass

PROBE_VERSION = 2
"""Of the classes and the rules of the verdict. Reports of different versions are not compared class by class."""
PROBLEMS = 20
"""Problems that a probe takes by default."""
EXAMPLE_CHARS = 500
EXAMPLES = 3

Family = Literal["false_negative", "false_positive"]
Verdict = Literal["clean", "pays_wrong", "rejects_right", "undecided"]
Rule = Literal["any", "some", "many", "told"]
"""When a class of wrong completions holds a verifier back. any: one that is rewarded suffices. some: two, or a share
whose interval lies above 2 %. many: a share whose interval lies above 20 %, for classes whose members may be right
after all, such as mutants of a program. told: never, it is for reading (every class of right answers)."""


class ProbeExample(Body):
    """One completion that a class made, and what it earned."""

    problem_id: str
    answer: str
    """The problem's reference answer, cut when long."""
    completion: str
    """Cut after EXAMPLE_CHARS."""
    reward: float | None
    share: float | None
    """Of what a right answer earns: 1 is all of it. None too where the reward is learned and has no such scale."""
    paid: bool | None
    """None where it could not be scored, or compared with the right answer of its problem."""
    details: dict[str, str]
    """Each component's detail, or its error, by its name."""


class ClassResult(Body):
    """One class of completions over all problems that it applies to."""

    name: str
    """Stable, such as `plus_one`: part of PROBE_VERSION."""
    title: str
    """In words, for people."""
    about: str
    """What it is for: numbers, expressions, choice, words, json, code, any, form, judge, hacks, attack."""
    family: Family
    rule: Rule
    n: Annotated[int, Field(ge=0)]
    """Completions that were scored; those with an error that left no reward are in `errors` alone. Of a learned reward,
    those whose problem has a right answer that was scored too."""
    paid: Annotated[int, Field(ge=0)]
    """Rewarded. By a learned reward: wrong ones that reach or beat the right answer of their problem, right ones that
    beat a wrong answer of it in the same form."""
    rate: float | None
    """Share of mistakes: not rewarded, of a class of right answers; rewarded, of wrong ones. None where n is 0."""
    wilson95: tuple[float, float] | None
    """Of `rate`."""
    mean_share: float | None
    """Mean of what they earned, as a share of what a right answer earns; None for a learned reward."""
    mean_reward: float | None = None
    mean_margin: float | None = None
    """Of a learned reward: mean of what they earned beyond the right answer of the same problem."""
    errors: Annotated[int, Field(ge=0)] = 0
    """Completions on which a component failed."""
    held: bool = False
    """This class alone holds the verifier back."""
    examples: tuple[ProbeExample, ...] = ()
    """Mistakes first, at most EXAMPLES of them; where there is none, one that went as it should."""

    @property
    def mistakes(self) -> int:
        return self.paid if self.family == "false_positive" else self.n - self.paid


class FormTried(Body):
    """One form of writing a right answer down, and what the reference answers earned in it."""

    name: str
    title: str
    n: int
    """Reference answers that were scored."""
    mean: float | None
    """Mean reward."""
    paid: int
    """How many earned more than half of `full`, as finally determined; of a learned reward, more than `low`."""
    example: str
    """Of the first problem, cut after EXAMPLE_CHARS."""


class Calibration(Body):
    """The form in which right answers earn most; every other completion is compared with it."""

    form: str | None
    """Name of the form that was kept; None where there is no right answer to try, or none earned anything."""
    full: float | None
    """What a right answer earns: median reward of the reference answers that earned anything, in that form. Of a
    learned reward: of all of them."""
    low: float
    """What counts as nothing: 0, or the median reward of the wrong completions when that is below 0. Of a learned
    reward: the median reward of a wrong answer in that form."""
    nominal: bool = False
    """`full` is the sum of the weights, because the problems hold no right answer to try."""
    tried: tuple[FormTried, ...]


class Repeats(Body):
    """The same completion scored again."""

    checked: int
    differ: int
    """Reward or any component's value was another one, or there was an error only once."""
    share: float | None
    wilson95: tuple[float, float] | None
    largest: float
    """Largest difference between two rewards."""


class Determinism(Body):
    again: Repeats
    """By the same runner."""
    fresh: Repeats
    """By a new runner, with new processes and no memory of the first; checked is 0 where none was available."""


class LengthRanks(Body):
    """How reward and length of the probe's completions go together."""

    problems: int
    """Problems in which both differ."""
    rho: float
    """Spearman's ρ of reward and characters over all completions of a problem, in the mean over problems."""
    low: float
    """95 % interval by a bootstrap over problems."""
    high: float


class LearnedReward(Body):
    """Of a reward with a trained classifier in it, whose number has no scale: what it is compared with, and how."""

    honest: int
    """Problems whose right answer was scored, in the form that earns most. Completions are compared with it."""
    attacks: tuple[str, ...]
    """Names of the classes that are the attacks on a learned reward, in order; each is among `classes`."""
    limit: int | None
    """Tokens that the model reads at most, the smallest of several; None where it states no limit."""
    length: LengthRanks | None
    """None where fewer than two problems have completions of different lengths and rewards."""


class Timing(Body):
    """Seconds of one call of one component."""

    calls: int
    median: float
    p95: float
    largest: float


class Shares(Body):
    """All classes of a family together. The classes weigh as many samples as they have."""

    n: int
    mistakes: int
    rate: float | None
    wilson95: tuple[float, float] | None
    classes: int
    classes_with_mistakes: int


class ProbeReport(Body):
    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["cohort-probe/1"] = Field("cohort-probe/1", alias="schema")
    probe_version: int = PROBE_VERSION
    cohort_version: str
    at: AwareDatetime
    rubric_digest: str
    kinds: dict[str, str]
    """Kind of each component, by its name."""
    weights: dict[str, float]
    problems_source: Literal["data", "builtin"]
    problems_digest: str
    """`grpo_core.data.fingerprint.problems_digest` of the problems that were taken."""
    problems: int
    problems_of: int
    """How many there were to choose from."""
    subjects: dict[str, int]
    """What the answers are (number, expression, choice, words, json, code): {subject: problems}."""
    seed: int

    verdict: Verdict
    pays_wrong: tuple[str, ...]
    """Names of the classes of wrong completions that hold the verifier back."""
    pays_part: tuple[str, ...]
    """Names of other classes of wrong completions that earn a tenth or more of a right answer, in the mean; none of a
    learned reward."""
    rejects: tuple[str, ...]
    """Names of the classes of right answers of which more than 2 % are not rewarded."""
    reasons: tuple[str, ...]
    """Why the verdict is as it is, in sentences."""

    calibration: Calibration
    learned: LearnedReward | None = None
    """None where the reward has no trained classifier in it."""
    false_negative: Shares
    false_positive: Shares
    classes: tuple[ClassResult, ...]
    determinism: Determinism
    timing: dict[str, Timing]
    """By component."""
    calls: int
    """Completions scored, those scored again included."""
    unscored: int
    """Completions of classes that got no reward because of an error, or because the probe had given up; without those
    that are too long on purpose."""
    errors: dict[ErrorClass, int]
    """Errors of components, by class."""
    error_examples: tuple[str, ...] = ()
    """Up to 5 different messages."""
    cost: dict[str, dict[str, float]] = Field(default_factory=dict)
    """What components that call a server report as used (calls, tokens …), by component's name."""
    facts: dict[str, JsonValue] = Field(default_factory=dict)
    """All that the runner reports of what it holds open: versions, hashes, the sandbox's level."""
    sandbox: dict[str, JsonValue] | None = None
    """Report of the sandbox where one was used."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data, as it is written, sent and stored."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_json(cls, payload: Mapping[str, Any]) -> Self:
        """Raises pydantic's ValidationError when it is no report of this schema."""
        return cls.model_validate(payload)

    def of(self, name: str) -> ClassResult:
        """The class with this name. Raises KeyError."""
        return {result.name: result for result in self.classes}[name]
