"""The one table of a record's fields: which there are, in what order, how they are called, and who may see each unless
its owner says otherwise. The field list is that of docs/record.md. Knows no Django.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from cohort.records.schema_types import Answer, Audience, Part, field, field_of_kind


class Section(Part):
    """Fields that belong together."""

    def answers(self) -> Iterator[tuple[str, Answer]]:
        """(name, answer) of every field that the run has, in order."""
        for name in type(self).model_fields:
            if (answer := getattr(self, name)) is not None:
                yield name, answer


class Subject(Section):
    """What was trained, from what"""

    run: Answer = field("Run", "authority")
    outcome: Answer = field("How it ended", "public")
    attempts: Answer = field("Attempts", "authority")
    steering: Answer = field("Retries, extensions and pauses", "authority")
    earlier_records: Answer = field("Earlier records of this run", "public")
    training_method: Answer = field("Reinforcement learning used", "public")
    base_model: Answer = field("Base model", "public")
    context: Answer = field("Context length", "public")
    lineage: Answer = field("Lineage: base, cold start, earlier runs", "public")
    pipeline: Answer = field("Whole pipeline, stage by stage", "public")
    reference_policy: Answer = field("Reference policy", "public")
    old_policy: Answer = field("Old-policy snapshots", "public")
    trained_policy: Answer = field("Trained policy", "public")


class Environment(Section):
    """Code and environment"""

    code: Answer = field("Trainer's code", "public")
    packages: Answer = field("Packages", "downstream")
    machine: Answer = field("Machine", "downstream")
    seeds: Answer = field("Seeds", "public")


class Reward(Section):
    """Reward"""

    source: Answer = field("Reward source", "public")
    verifier: Answer = field("Verifier specification", "public")
    disclosure: Answer = field("Who may see the specification, and why", "public")
    rule_or_model: Answer = field("Rule or model", "public")
    domain: Answer = field("Reward domains", "public")
    verifiable_or_social: Answer = field("Verifiable or social", "public")
    brittleness: Answer = field("Known brittleness", "public")
    probes: Answer = field("Tests of the verifier before the launch", "public")
    errors: Answer = field("Reward errors", "public")
    course: Answer = field("Mean reward", "public")


class Data(Section):
    """Data"""

    prompts: Answer = field("Prompt distribution", "public")
    example: Answer = field("One prompt as the policy saw it", "internal")
    selection: Answer = field("How prompts were selected", "public")
    choice: Answer = field("Why this dataset", "downstream")
    provenance: Answer = field("Data provenance record", "public")
    heldout: Answer = field("Held-out problems", "public")
    decontamination: Answer = field("Decontamination checks", "public")


class Method(Section):
    """Method"""

    loss: Answer = field("Loss variant", "public")
    normalization: Answer = field("Reward normalization", "public")
    clipping: Answer = field("Clipping", "public")
    kl: Answer = field("KL penalty", "public")
    group_size: Answer = field("Group size", "public")
    sampling: Answer = field("Sampling temperature and limits", "public")
    optimiser: Answer = field("Optimiser", "public")
    preset: Answer = field("Preset and differences", "public")
    config: Answer = field("Complete config", "public")
    rationale: Answer = field("Why these choices", "authority")


class Stage(Section):
    """The stage: what only a run of this kind has"""

    kind: Answer = field("Kind of run", "public")
    conversations: Answer | None = field_of_kind("Conversations learned from", "public")
    packing: Answer | None = field_of_kind("Texts of one pass", "public")
    epochs: Answer | None = field_of_kind("Epochs", "public")
    heldout_loss: Answer | None = field_of_kind("Held-out loss", "public")
    token_accuracy: Answer | None = field_of_kind("Token accuracy", "public")
    teacher: Answer | None = field_of_kind("Teacher", "public")
    objective: Answer | None = field_of_kind("Objective", "public")
    preferences: Answer | None = field_of_kind("Preferences learned from", "public")
    replay: Answer | None = field_of_kind("Replay of earlier preferences", "public")
    accuracy: Answer | None = field_of_kind("Accuracy on held-out preferences", "public")
    calibration: Answer | None = field_of_kind("Calibration", "public")
    length_bias: Answer | None = field_of_kind("Length bias", "public")
    sampler: Answer | None = field_of_kind("Sampler", "public")
    filters: Answer | None = field_of_kind("Completions dropped, by filter", "public")
    duplicates: Answer | None = field_of_kind("Duplicates", "public")
    dataset: Answer | None = field_of_kind("Dataset written", "public")


class Rejected(Section):
    """Discarded and retained samples"""

    samples: Answer = field("Rejected samples", "public")
    groups: Answer = field("Groups without signal", "public")
    truncated: Answer = field("Truncated completions", "public")
    problems: Answer = field("Problems dropped", "public")
    traces: Answer = field("Traces kept", "public")
    not_stored: Answer = field("Samples not stored", "public")
    redacted: Answer = field("Texts deleted", "public")
    commitments: Answer = field("Commitments to every completion", "public")


class Budget(Section):
    """Training budget"""

    steps: Answer = field("Steps", "public")
    time: Answer = field("Time and device", "public")
    step_time: Answer = field("Time per step: estimate and actual", "public")
    peak_memory: Answer = field("Peak memory: estimate and actual", "public")
    tokens: Answer = field("Completions and tokens", "public")
    superseded: Answer = field("Superseded work", "public")
    compute: Answer = field("Training compute", "public")
    energy: Answer = field("Energy", "public")
    base_share: Answer = field("Compute compared with the base model's", "authority")


class Oversight(Section):
    """Monitors and people"""

    flags: Answer = field("Monitors", "downstream")
    overrides: Answer = field("Flags overridden", "downstream")
    alerts: Answer = field("Alerts, and what people did about them", "downstream")
    human_review: Answer = field("Human review", "downstream")
    judgements_hidden: Answer = field("Judgements in no figure", "public")
    rescores: Answer = field("Scored again by a second reward", "downstream")
    preregistration: Answer = field("Registered before the first step", "public")
    policy: Answer = field("Policy of the project", "public")


class Behaviour(Section):
    """Behaviour before and after"""

    performance: Answer = field("Performance before and after", "public")
    protocol: Answer = field("Evaluation protocol", "public")
    hallucination: Answer = field("Hallucination", "public")
    refusal_calibration: Answer = field("Refusal calibration", "public")
    jailbreak_robustness: Answer = field("Jailbreak robustness", "public")
    harmful_capability: Answer = field("Harmful-capability evaluations", "public")
    benchmark_contamination: Answer = field("Benchmark contamination", "public")
    multilingual: Answer = field("Multilingual behaviour", "public")
    tool_use: Answer = field("Tool use", "public")
    format: Answer = field("Format", "public")
    safety_regressions: Answer = field("Safety regressions", "public")
    not_chosen: Answer = field("Evaluations that are not compared here", "public")
    imported: Answer = field("Results of other tools", "public")


class Handling(Section):
    """Handling and connections"""

    trace_policy: Answer = field("Reasoning traces shown to users", "public")
    inventory: Answer = field("AI system inventory", "authority")
    system_card: Answer = field("System card", "public")
    model_card: Answer = field("Model card", "public")
    audit_trail: Answer = field("Audit trail", "public")
    evaluation_file: Answer = field("Evaluation file", "public")
    change_management: Answer = field("Change-management process", "authority")
    monitoring: Answer = field("Post-market monitoring plan", "authority")
    statements_withdrawn: Answer = field("Statements withdrawn or replaced", "public")
    contact: Answer = field("Contact for questions and incidents", "public")


@dataclass(frozen=True)
class FieldFacts:
    section: str
    name: str
    label: str
    audience: Audience

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"


_SECTIONS = {section.__name__.lower(): section for section in Section.__subclasses__()}
FIELDS: dict[str, dict[str, FieldFacts]] = {
    section: {
        name: FieldFacts(section, name, str(info.title), info.json_schema_extra["audience"])  # type: ignore[index, arg-type]
        for name, info in part.model_fields.items()
    }
    for section, part in _SECTIONS.items()
}
"""section → field → what the table above says of it, both in the page's order."""
OPTIONAL = ("stage",)
"""Sections of a run of another kind than GRPO; a field of one is there where the run's kind has it."""
COMMON_FIELDS = {section: fields for section, fields in FIELDS.items() if section not in OPTIONAL}
"""Those that every record has."""
STAGE_FIELDS: dict[str, tuple[str, ...]] = {
    "sft": ("kind", "conversations", "packing", "epochs", "heldout_loss", "token_accuracy"),
    "distill": ("kind", "conversations", "packing", "epochs", "heldout_loss", "token_accuracy", "teacher"),
    "reward_model": ("kind", "objective", "preferences", "replay", "epochs", "accuracy", "calibration", "length_bias"),
    "sample": ("kind", "sampler", "filters", "duplicates", "dataset"),
}
"""Kind of run → the fields of `stage` that its record has."""
TITLES: dict[str, str] = {section: (part.__doc__ or "").strip() for section, part in _SECTIONS.items()}
"""section → its heading."""


def field_facts(path: str) -> FieldFacts:
    """Of `section.field`. Raises KeyError for none."""
    section, _, name = path.partition(".")
    return FIELDS[section][name]
