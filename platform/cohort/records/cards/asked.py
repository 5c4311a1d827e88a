"""Record fields for each topic of external documentation forms. Topics are paraphrased; no law or standard is quoted.

From the mapping of docs/record.md. A topic without a field is one on which the record of one training run has nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    item: str
    """Part and topic of the form."""
    fields: tuple[str, ...] = ()
    """`section.field` of the record; empty when the record has no such field."""


EU_FORM = (
    Asked("General information: name and version of the model", ("subject.run", "subject.trained_policy")),
    Asked("General information: how to tell that a copy is the genuine one", ("subject.trained_policy",)),
    Asked("General information: models that it was made from", ("subject.base_model", "subject.lineage")),
    Asked("General information: who provides it, date of release, place on the market"),
    Asked("Properties: architecture and size", ("subject.base_model",)),
    Asked("Properties: kinds and sizes of input and output", ("method.sampling", "data.prompts")),
    Asked("Distribution: channels and licence"),
    Asked("Use: acceptable use, intended tasks, kinds of system it is meant for", ("handling.system_card",)),
    Asked("Use: technical means that it needs, and how it is integrated", ("environment.packages",)),
    Asked("Training process: design and stages", ("subject.pipeline", "subject.training_method", "method.loss")),
    Asked("Training process: what it is optimised for", ("reward.source", "reward.verifier", "reward.domain")),
    Asked("Training process: key choices, and why they were made", ("method.rationale", "method.preset")),
    Asked(
        "Training process: the parameters that matter",
        ("method.normalization", "method.clipping", "method.kl", "method.group_size", "method.optimiser"),
    ),
    Asked("Data: kinds and where they come from", ("data.prompts", "data.provenance")),
    Asked("Data: how they were obtained and selected", ("data.selection", "data.choice")),
    Asked("Data: number of items and their main traits", ("data.prompts", "data.heldout")),
    Asked("Data: curation, and what was left out", ("rejected.problems", "data.decontamination")),
    Asked("Data: measures against unsuitable sources and biases"),
    Asked("Compute: time and devices", ("budget.time", "environment.machine")),
    Asked("Compute: amount, and how it was found", ("budget.compute", "budget.tokens")),
    Asked("Compute: what the change took beside the original training", ("budget.base_share",)),
    Asked("Energy: amount, and how it was found", ("budget.energy",)),
    Asked("Evaluation: how, and with what results", ("behaviour.performance", "behaviour.protocol")),
    Asked(
        "Evaluation: adversarial tests, and tests for dangerous abilities",
        ("behaviour.jailbreak_robustness", "behaviour.harmful_capability"),
    ),
    Asked("Adaptation of the model: alignment and fine-tuning", ("subject.training_method", "subject.pipeline")),
)

NIST_RMF = (
    Asked("GOVERN 1.4: the process can be followed and its results are documented", ("handling.audit_trail",)),
    Asked("GOVERN 1.6: systems are in an inventory", ("handling.inventory",)),
    Asked("MAP 1.1: purpose and context are understood", ("reward.domain", "handling.system_card")),
    Asked("MAP 2.1: tasks and methods are defined", ("subject.training_method", "reward.source", "data.prompts")),
    Asked("MAP 2.3: integrity of design, and how it is tested", ("reward.rule_or_model", "reward.verifier")),
    Asked("MAP 4.1: risks from parts of others are mapped", ("subject.base_model", "data.provenance")),
    Asked("MAP 5.1: effects on people are described", ("reward.verifiable_or_social",)),
    Asked("MEASURE 2.1: tests, metrics and tools are documented", ("behaviour.protocol", "handling.evaluation_file")),
    Asked("MEASURE 2.3: performance is measured", ("behaviour.performance",)),
    Asked(
        "MEASURE 2.5: validity and limits are shown; invented statements are measured",
        ("behaviour.performance", "behaviour.hallucination", "behaviour.tool_use"),
    ),
    Asked(
        "MEASURE 2.6: safety is evaluated",
        ("behaviour.refusal_calibration", "behaviour.harmful_capability", "behaviour.safety_regressions"),
    ),
    Asked("MEASURE 2.7: resistance to attacks is evaluated", ("behaviour.jailbreak_robustness",)),
    Asked(
        "MEASURE 2.9: the model is explained and documented",
        ("method.loss", "subject.reference_policy", "subject.old_policy", "handling.trace_policy"),
    ),
    Asked("MEASURE 2.11: fairness and languages are evaluated", ("behaviour.multilingual",)),
    Asked("MEASURE 2.12: effects on the environment are measured", ("budget.compute", "budget.energy")),
    Asked("MEASURE 3.1: known risks are followed", ("reward.brittleness", "oversight.flags", "oversight.overrides")),
    Asked("MEASURE 4.2: results are checked with people who know the field", ("oversight.human_review",)),
    Asked("MANAGE 4.1: there is a plan for monitoring after release", ("handling.monitoring",)),
    Asked("MANAGE 4.2: changes are managed", ("handling.change_management", "subject.earlier_records")),
)
