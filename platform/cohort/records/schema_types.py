"""What a record is put together from: entries and their marks, the comparisons of suites, files, the head.

Every entry carries its value, where the value comes from, its evidence and who may see it. Knows no Django.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from grpo_core.config.evaluation import Category, HigherIs
from grpo_core.stats.inferiority import NonInferiority

Audience = Literal["public", "downstream", "authority", "internal"]
AUDIENCES: tuple[Audience, ...] = ("public", "downstream", "authority", "internal")
"""Nested: each sees what those before it see, and more."""
AUDIENCE_WORDS: dict[Audience, str] = {
    "public": "anyone",
    "downstream": "those who build on the model",
    "authority": "authorities that ask",
    "internal": "the project itself",
}

NOT_STATED = "not stated"
NOT_EVALUATED = "not evaluated"
NOT_MEASURED = "not measured"

Evidence = Literal["recomputable", "reported", "declared", "stated", "none"]
EVIDENCE_WORDS: dict[Evidence, str] = {
    "recomputable": "can be computed again from the sealed files; a card for a smaller audience may lack them",
    "reported": "measured while it ran; the files alone cannot repeat it",
    "declared": "set in the run's config",
    "stated": "a person's words, unchecked",
    "none": "nothing supports it",
}

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Source = Annotated[str, Field(pattern=r"^(measured|estimated|config|not stated|not applicable|stated by .+)$")]
SAFETY: tuple[Category, ...] = ("hallucination", "refusal_calibration", "jailbreak_robustness", "harmful_capability")
"""Categories whose suites are judged together: Holm's correction, and what is said of regressions."""


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Answer(Part):
    """What is to be said in a field, before the record is closed."""

    value: JsonValue
    """For machines; null when there is none."""
    text: Annotated[str, Field(min_length=1)]
    """The value in words, as pages and cards show it."""
    source: Source
    """measured, estimated, config, stated by <user>, not stated, or not applicable."""
    evidence: Evidence
    """recomputable: from the sealed files. reported: measured while the run ran. declared: set in the config.
    stated: a person's words. none."""
    audience: Audience | None = None
    """Null: the field's own."""
    note: str = ""
    """What a reader should know about it."""

    @property
    def missing(self) -> bool:
        return self.source == NOT_STATED


class Entry(Answer):
    """One field of the record."""

    audience: Audience
    """Who may see it: a card for public, downstream, authority or internal shows what is for it and for those before
    it."""
    note: str
    """What a reader should know about it; may be empty."""
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Random, so that the hash of a withheld field does not reveal its content."""


class Withheld(Part):
    """Where a card's audience does not get the field."""

    withheld: Sha256
    """Its leaf in the tree of the record's fields: SHA-256 of 0x00, the salt, and the canonical JSON of
    {section, field, entry without its salt}."""
    audience: Audience


class Span(Part):
    """A 95 % interval."""

    low: float
    high: float


class Side(Part):
    """One suite, once."""

    correct: float
    """Sum of the scored answers' scores."""
    scored: int
    """Answers that have a score."""
    share: float | None
    """correct / scored; null where nothing was scored."""
    interval: Span
    """Wilson's; wider by what the unscored answers could be worth."""
    bounds: Span | None
    """The share if every unscored answer were wrong, and right; null where all are scored."""
    truncated: int
    errors: int
    """Answers that could not be scored: neither right nor wrong."""


class Bootstrap(Part):
    """Percentile interval of the mean difference over resampled items, or over resampled clusters."""

    low: float
    high: float
    resamples: int
    seed: int


class Change(Part):
    """after − before on the same problems; docs/statistics.md says how each is computed."""

    difference: float
    """Of the raw score; which way is harm says `higher_is`."""
    interval: Span
    method: Literal["tango", "clustered", "bootstrap"]
    clusters: int | None
    """Null where the items are taken as independent."""
    items: int
    """Scored both times: what the difference and the counts are of."""
    unscored: int
    """Without a score before, after, or both; the interval holds whatever these were worth."""
    fixed: int
    broken: int
    both_right: int
    both_wrong: int
    p_mcnemar: float | None
    p_holm: float | None
    """Corrected over the safety suites; null for the others."""
    mde: float
    """Smallest difference that would have been found with 80 % power."""
    bootstrap: Bootstrap | None


class Slice(Part):
    """A part of a suite, such as one language or one attack."""

    slice: str
    problems: int
    before: Side | None
    after: Side | None
    change: Change | None


class Clean(Part):
    """The suite without the items that were found in the training data."""

    touched: int
    """Items left out."""
    touched_ids: list[str]
    """Which, by their ids: who checks the record leaves out the same."""
    problems: int
    before: Side | None
    after: Side | None
    change: Change | None


class Comparison(Part):
    """One suite before and after."""

    suite: str
    title: str
    category: Category
    higher_is: HigherIs
    """Whether a higher score is better or worse for who uses the model."""
    sensitive: bool
    """Its items' texts are for authorities only."""
    problems: int
    before: Side | None
    after: Side | None
    change: Change | None
    """Null unless both were run under the same protocol."""
    margin: float
    """Fixed in the config before the run."""
    non_inferiority: NonInferiority | None
    """Null where no change can be stated or the score is neither good nor bad."""
    verdict: str
    """In words."""
    undecided_because: str
    """Why it is undecided, and what would decide it; empty where it is not."""
    items_needed: int | None
    """About how many items (or clusters) would decide it with 80 % power, were difference and spread what they are
    here; null where it is decided, or no number would."""
    slices: list[Slice]
    clean: Clean | None
    """Null where no overlap was searched for."""
    protocol: dict[str, JsonValue]


class FileEntry(Part):
    """A sealed data file; the same list in the card of every audience."""

    path: str
    sha256: Sha256
    size: Annotated[int, Field(ge=0)]
    audience: Audience
    """Cards for an audience before this one do not hold it."""


class Head(Part):
    """What the record is of. The first leaf of its tree."""

    title: str
    """The run's name."""
    run: int
    """Its number on the platform."""
    end: Annotated[int, Field(ge=1)]
    """Which of the run's ends: a run that was retried or extended ends several times."""
    version: Annotated[int, Field(ge=1)]
    """Counted within the end; a later one says more."""
    sealed_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]
    """UTC."""
    state: Literal["succeeded", "failed", "cancelled"]
    """How the run ended. A run that failed or was cancelled has a record too."""


def field(title: str, audience: Audience) -> Any:
    """A field of a section: its label, and who sees it unless a person said otherwise."""
    return Field(title=title, json_schema_extra={"audience": audience})


def field_of_kind(title: str, audience: Audience) -> Any:
    """A field that the records of some kinds of run have, and others not."""
    return Field(default=None, title=title, json_schema_extra={"audience": audience})
