"""The governance record as types: what a sealed run says of itself, field by field.

Every field carries its value, where the value comes from and what stands behind it. A field that nobody filled says
"not stated", an evaluation that was not run says "not evaluated"; nothing is ever invented. Knows no Django and no
torch, so that a card can be checked on any machine. `python -m cohort.governance.schema` prints the JSON Schema.
"""

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

SCHEMA = "cohort-record/1"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

NOT_STATED = "not stated"
NOT_EVALUATED = "not evaluated"

Evidence = Literal["recomputable", "reported", "declared", "stated", "none"]
EVIDENCE_WORDS: dict[Evidence, str] = {
    "recomputable": "can be computed again from the files in this card",
    "reported": "measured while it ran; this card alone cannot repeat it",
    "declared": "set in the run's config",
    "stated": "a person's words, unchecked",
    "none": "nothing stands behind it",
}

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Entry(Part):
    """One field of the record."""

    value: JsonValue
    """For machines; null when there is none."""
    text: Annotated[str, Field(min_length=1)]
    """The value in words, as pages and cards show it."""
    source: Annotated[str, Field(pattern=r"^(measured|config|not stated|not applicable|stated by .+)$")]
    """measured, config, stated by <user>, not stated, or not applicable."""
    evidence: Evidence
    """recomputable: from the files in this card. reported: measured while the run ran. declared: set in the config.
    stated: a person's words. none."""
    note: str = ""
    """What a reader should know beside it."""

    @property
    def missing(self) -> bool:
        return self.source == NOT_STATED


class Span(Part):
    """A 95 % interval."""

    low: float
    high: float


class Side(Part):
    """One suite, once."""

    correct: float
    """Sum of the items' scores."""
    share: float
    """correct / problems."""
    interval: Span
    """Wilson."""
    truncated: int
    errors: int


class Change(Part):
    """after − before on the same problems; what each means stands in `grpo_core.stats.Paired`."""

    difference: float
    interval: Span
    fixed: int
    broken: int
    both_right: int
    both_wrong: int
    p_mcnemar: float | None
    mde: float
    """Smallest difference that would have been found with 80 % power."""


class Comparison(Part):
    """One suite before and after."""

    suite: str
    problems: int
    before: Side | None
    after: Side | None
    change: Change | None
    """Null unless both were run under the same protocol."""
    margin: float
    """Fixed in the config before the run."""
    verdict: str
    protocol: dict[str, JsonValue]


class Performance(Entry):
    value: list[Comparison] | None  # type: ignore[assignment]
    """One comparison a suite; null when nothing was evaluated."""


class Section(Part):
    """Fields that belong together. A field's title is its label."""

    def entries(self) -> Iterator[tuple[str, str, Entry]]:
        """(name, label, entry) of every field, in order."""
        for name, field in type(self).model_fields.items():
            if (entry := getattr(self, name)) is not None:
                yield name, str(field.title), entry


def _entry(title: str) -> Any:
    return Field(title=title)


def _later_entry(title: str) -> Any:
    """A field that the first records did not have: absent from them, and in every one that is sealed now."""
    return Field(default=None, title=title)


class Subject(Section):
    """What was trained, from what"""

    run: Entry = _entry("Run")
    outcome: Entry = _entry("How it ended")
    attempts: Entry | None = _later_entry("Attempts")
    steering: Entry | None = _later_entry("Retries, extensions and pauses")
    earlier_records: Entry | None = _later_entry("Earlier records of this run")
    training_method: Entry = _entry("Reinforcement learning used")
    base_model: Entry = _entry("Base model")
    before_grpo: Entry = _entry("What came before GRPO")
    reference_policy: Entry = _entry("Reference policy")
    old_policy: Entry = _entry("Old-policy snapshot")
    trained_policy: Entry = _entry("Trained policy")
    code: Entry = _entry("Trainer and machine")
    seeds: Entry = _entry("Seeds")


class Reward(Section):
    """Reward"""

    source: Entry = _entry("Reward source")
    verifier: Entry = _entry("Verifier specification")
    rule_or_model: Entry = _entry("Rule or model")
    domain: Entry = _entry("Reward domain")
    verifiable_or_social: Entry = _entry("Verifiable or social")
    brittleness: Entry = _entry("Known brittleness")
    errors: Entry = _entry("Reward errors")
    course: Entry = _entry("Mean reward")


class Data(Section):
    """Data"""

    prompts: Entry = _entry("Prompt distribution")
    selection: Entry = _entry("How prompts were selected")
    provenance: Entry = _entry("Data provenance record")
    heldout: Entry = _entry("Held-out problems")
    decontamination: Entry = _entry("Decontamination checks")


class Method(Section):
    """Method"""

    loss: Entry = _entry("Loss variant")
    normalization: Entry = _entry("Reward normalization")
    clipping: Entry = _entry("Clipping")
    kl: Entry = _entry("KL penalty")
    group_size: Entry = _entry("Group size")
    sampling: Entry = _entry("Sampling temperature and limits")
    optimiser: Entry = _entry("Optimiser")
    preset: Entry = _entry("Preset and differences")
    config: Entry = _entry("Complete config")


class Rejected(Section):
    """What was thrown away"""

    samples: Entry = _entry("Rejected samples")
    groups: Entry = _entry("Groups without signal")
    truncated: Entry = _entry("Truncated completions")
    problems: Entry = _entry("Problems dropped")
    traces: Entry = _entry("Traces kept")


class Budget(Section):
    """Budget"""

    steps: Entry = _entry("Steps")
    time: Entry = _entry("Time and device")
    tokens: Entry = _entry("Completions and tokens")
    superseded: Entry | None = _later_entry("Superseded work")
    compute: Entry = _entry("Training compute")
    energy: Entry = _entry("Energy")


class Behaviour(Section):
    """Behaviour before and after"""

    performance: Performance = _entry("Performance before and after")
    protocol: Entry = _entry("Evaluation protocol")
    hallucination: Entry = _entry("Hallucination")
    refusal_calibration: Entry = _entry("Refusal calibration")
    jailbreak_robustness: Entry = _entry("Jailbreak robustness")
    harmful_capability: Entry = _entry("Harmful-capability evaluations")
    benchmark_contamination: Entry = _entry("Benchmark contamination")
    multilingual: Entry = _entry("Multilingual behaviour")
    tool_use: Entry = _entry("Tool use")
    safety_regressions: Entry = _entry("Safety regressions")


class Handling(Section):
    """Handling and connections"""

    trace_policy: Entry = _entry("Reasoning traces shown to users")
    inventory: Entry = _entry("AI system inventory")
    model_card: Entry = _entry("Model or system card")
    audit_trail: Entry = _entry("Audit trail")
    evaluation_file: Entry = _entry("Evaluation file")
    change_management: Entry = _entry("Change-management process")
    monitoring: Entry = _entry("Post-market monitoring plan")


class Record(Part):
    """What is sealed. Its digest is the SHA-256 of its RFC 8785 canonical JSON."""

    title: str
    """The run's name."""
    sealed_at: AwareDatetime
    state: Literal["succeeded", "failed", "cancelled"]
    """How the run ended. A run that failed or was cancelled has a record too."""
    data_files_digest: Sha256
    """SHA-256 of the canonical JSON of the list `files` without CARD.md and card.html, so that the record's digest
    holds every evaluation item and every trace."""
    subject: Subject
    reward: Reward
    data: Data
    method: Method
    rejected: Rejected
    budget: Budget
    behaviour: Behaviour
    handling: Handling

    def sections(self) -> list[Section]:
        fields = (getattr(self, name) for name in type(self).model_fields)
        return [field for field in fields if isinstance(field, Section)]

    def counts(self) -> tuple[int, int]:
        """(fields that are stated, measured or do not apply; all fields)."""
        entries = [entry for section in self.sections() for _, _, entry in section.entries()]
        return sum(not entry.missing for entry in entries), len(entries)


class FileEntry(Part):
    path: str
    sha256: Sha256
    size: Annotated[int, Field(ge=0)]


class Sealed(Part):
    """record.json, exactly as its canonical bytes."""

    schema_: Annotated[Literal["cohort-record/1"], Field(alias="schema")]
    record: Record
    record_digest: Sha256
    """SHA-256 of the canonical JSON of `record`."""
    files: list[FileEntry]
    """Every other file of the card, sorted by path."""
    seal: Sha256
    """SHA-256 of the canonical JSON of this object without `seal`: over the record and every file's digest. The one
    digest to compare."""


def title_of(section: Section) -> str:
    return (type(section).__doc__ or "").strip()


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of record.json."""
    return {
        "$schema": DIALECT,
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        **Sealed.model_json_schema(by_alias=True, mode="serialization"),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n")
