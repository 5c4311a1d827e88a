"""Record fields for each topic of external documentation forms, with the source of each form and the day on which it
was read. Topics are paraphrased; no law or standard is quoted.

From the mapping of docs/record.md. A topic without a field is one on which the record of one training run has nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    item: str
    """Part and topic of the form."""
    fields: tuple[str, ...] = ()
    """`section.field` of the record; empty when the record has no such field."""


EU_FORM = (
    Topic("General information: name and version of the model", ("subject.run", "subject.trained_policy")),
    Topic("General information: how to tell that a copy is the genuine one", ("subject.trained_policy",)),
    Topic("General information: models that it was made from", ("subject.base_model", "subject.lineage")),
    Topic("General information: who provides it, date of release, place on the market", ("handling.contact",)),
    Topic("Properties: architecture and size", ("subject.base_model",)),
    Topic("Properties: kinds and sizes of input and output", ("method.sampling", "data.prompts")),
    Topic("Distribution: channels and licence"),
    Topic("Use: acceptable use, intended tasks, kinds of system it is meant for", ("handling.system_card",)),
    Topic("Use: technical means that it needs, and how it is integrated", ("environment.packages",)),
    Topic("Training process: design and stages", ("subject.pipeline", "subject.training_method", "method.loss")),
    Topic("Training process: what it is optimised for", ("reward.source", "reward.verifier", "reward.domain")),
    Topic("Training process: key choices, and why they were made", ("method.rationale", "method.preset")),
    Topic(
        "Training process: the parameters that matter",
        ("method.normalization", "method.clipping", "method.kl", "method.group_size", "method.optimiser"),
    ),
    Topic("Data: kinds and where they come from", ("data.prompts", "data.provenance")),
    Topic("Data: how they were obtained and selected", ("data.selection", "data.choice")),
    Topic("Data: number of items and their main traits", ("data.prompts", "data.heldout")),
    Topic("Data: curation, and what was left out", ("rejected.problems", "data.decontamination")),
    Topic("Data: measures against unsuitable sources and biases"),
    Topic("Compute: time and devices", ("budget.time", "environment.machine")),
    Topic("Compute: amount, and how it was found", ("budget.compute", "budget.tokens")),
    Topic("Compute: what the change took compared with the original training", ("budget.base_share",)),
    Topic("Energy: amount, and how it was found", ("budget.energy",)),
    Topic("Evaluation: how, and with what results", ("behaviour.performance", "behaviour.protocol")),
    Topic(
        "Evaluation: adversarial tests, and tests for dangerous abilities",
        ("behaviour.jailbreak_robustness", "behaviour.harmful_capability"),
    ),
    Topic("Adaptation of the model: alignment and fine-tuning", ("subject.training_method", "subject.pipeline")),
)

NIST_RMF = (
    Topic("GOVERN 1.4: the process can be followed and its results are documented", ("handling.audit_trail",)),
    Topic("GOVERN 1.6: systems are in an inventory", ("handling.inventory",)),
    Topic("MAP 1.1: purpose and context are understood", ("reward.domain", "handling.system_card")),
    Topic("MAP 2.1: tasks and methods are defined", ("subject.training_method", "reward.source", "data.prompts")),
    Topic("MAP 2.3: integrity of design, and how it is tested", ("reward.rule_or_model", "reward.verifier")),
    Topic("MAP 4.1: risks from parts of others are mapped", ("subject.base_model", "data.provenance")),
    Topic("MAP 5.1: effects on people are described", ("reward.verifiable_or_social",)),
    Topic("MEASURE 2.1: tests, metrics and tools are documented", ("behaviour.protocol", "handling.evaluation_file")),
    Topic("MEASURE 2.3: performance is measured", ("behaviour.performance",)),
    Topic(
        "MEASURE 2.5: validity and limits are shown; invented statements are measured",
        ("behaviour.performance", "behaviour.hallucination", "behaviour.tool_use"),
    ),
    Topic(
        "MEASURE 2.6: safety is evaluated",
        ("behaviour.refusal_calibration", "behaviour.harmful_capability", "behaviour.safety_regressions"),
    ),
    Topic("MEASURE 2.7: resistance to attacks is evaluated", ("behaviour.jailbreak_robustness",)),
    Topic(
        "MEASURE 2.9: the model is explained and documented",
        ("method.loss", "subject.reference_policy", "subject.old_policy", "handling.trace_policy"),
    ),
    Topic("MEASURE 2.11: fairness and languages are evaluated", ("behaviour.multilingual",)),
    Topic("MEASURE 2.12: effects on the environment are measured", ("budget.compute", "budget.energy")),
    Topic(
        "MEASURE 3.1: known risks are followed",
        ("reward.brittleness", "oversight.flags", "oversight.overrides", "oversight.alerts"),
    ),
    Topic(
        "MEASURE 4.2: results are checked with people who know the field",
        ("oversight.human_review", "oversight.rescores"),
    ),
    Topic("MANAGE 4.1: there is a plan for monitoring after release", ("handling.monitoring",)),
    Topic("MANAGE 4.2: changes are managed", ("handling.change_management", "subject.earlier_records")),
)


@dataclass(frozen=True)
class Sheet:
    """Where a form is from."""

    source: str
    """Document, and article or section."""
    read: str
    """Day on which it was read, in public copies; the official text decides."""
    dates: tuple[str, ...] = ()
    """From when what applies, as read on that day."""


_READ = "2026-11-28"
_GPAI_DATES = (
    "Duties of providers of general-purpose AI models (Regulation (EU) 2024/1689, Articles 53 to 55) apply since "
    "2 August 2025; models placed on the market before have until 2 August 2027 (Article 111(3)).",
    "The Commission can enforce them since 2 August 2026 (Article 101).",
    "Regulation (EU) 2026/1744, in force since 27 July 2026, leaves these duties as they were. It moves those for "
    "high-risk systems to 2 December 2027 (Annex III) and 2 August 2028 (Annex I). By its recital 41 codes of practice "
    "give no presumption that a duty is met.",
    "Who modifies a model is taken as its provider only after a significant change; the indication is more than a "
    "third of the original's training compute, and the duties are those of the modification (guidelines C(2025) 7719 "
    "final of 19 November 2025, points 57 to 63).",
)
EU_FORM_SHEET = Sheet(
    "Regulation (EU) 2024/1689, Article 53(1)(a) and Annex XI; Model Documentation Form of the General-Purpose AI Code "
    "of Practice, transparency chapter, 10 July 2025",
    _READ,
    _GPAI_DATES,
)
EU_CONTENT = Sheet(
    "Regulation (EU) 2024/1689, Article 53(1)(d); Explanatory Notice and Template for the Public Summary of Training "
    "Content, 24 July 2025, C(2025) 8311 final of 5 December 2025",
    _READ,
    (
        *_GPAI_DATES,
        "A free and open-source licence lifts neither the duty of this summary nor that of a policy on copyright "
        "(Article 53(2)).",
    ),
)
NIST_SHEET = Sheet(
    "NIST AI 100-1, AI Risk Management Framework 1.0, January 2023, core; NIST AI 600-1, Generative AI Profile, July "
    "2024",
    "2026-11-21",
    ("Voluntary: nobody is bound by a date.",),
)
