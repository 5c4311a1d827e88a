"""Fields of the record that have no meaning for a kind of run, and why. Such a field says "not applicable: …", which is
another thing than not stated.

What a kind does have is written in the sections' own modules, and in `stage.py` what it alone has.
"""

from collections.abc import Iterator
from typing import get_args

from cohort.records.fields import Section
from cohort.records.schema_types import Answer
from grpo_core.config.stage import Kind

KIND_WORDS: dict[Kind, str] = {
    "grpo": "GRPO",
    "sft": "fine-tuning",
    "reward_model": "reward model",
    "sample": "sampling",
    "distill": "distillation",
}
"""As a record's sentences name a stage."""

_FINE_TUNING = {
    "subject.reference_policy": "fine-tuning has no reference policy",
    "subject.old_policy": "fine-tuning samples nothing to learn from, so no earlier policy is compared with",
    "reward": "fine-tuning has no reward",
    "method.normalization": "fine-tuning has no reward to normalize: every given answer counts with weight 1",
    "method.clipping": "the loss has no ratio of two policies",
    "method.kl": "fine-tuning has no reference policy",
    "method.group_size": "fine-tuning samples no groups",
    "method.sampling": "fine-tuning samples nothing to learn from",
    "rejected": "fine-tuning samples no completions",
    "oversight.flags": "the monitors watch rewards and sampled completions, and fine-tuning has neither",
}
_NO_ANSWERS = "a reward model gives scores and no answers, so no suite can be run on it"
_NO_CHANGE = "sampling changes no weights, so there is no before and after"
_NOTHING_LEARNED = "nothing is learned"

_WHY: dict[Kind, dict[str, str]] = {
    "grpo": {},
    "sft": _FINE_TUNING,
    "distill": {
        path: why.replace("fine-tuning", "distillation").replace("Fine-tuning", "Distillation")
        for path, why in _FINE_TUNING.items()
    },
    "reward_model": {
        "subject.reference_policy": "a reward model is no policy",
        "subject.old_policy": "a reward model is no policy",
        "reward": "a reward model is trained on preferences; what it gives is a reward, and nothing rewards it",
        "method.normalization": "no reward is normalized",
        "method.clipping": "the loss has no ratio of two policies",
        "method.kl": "a reward model is no policy",
        "method.group_size": "nothing is sampled",
        "method.sampling": "nothing is sampled",
        "rejected": "nothing is sampled",
        "oversight.flags": "the monitors watch rewards and sampled completions of a policy",
        "behaviour": _NO_ANSWERS,
    },
    "sample": {
        "subject.reference_policy": _NOTHING_LEARNED,
        "subject.old_policy": _NOTHING_LEARNED,
        "subject.trained_policy": "sampling changes no weights",
        "method.loss": _NOTHING_LEARNED,
        "method.normalization": _NOTHING_LEARNED,
        "method.clipping": _NOTHING_LEARNED,
        "method.kl": _NOTHING_LEARNED,
        "method.optimiser": _NOTHING_LEARNED,
        "rejected.groups": "groups without signal are a matter of learning, and nothing is learned",
        "behaviour": _NO_CHANGE,
    },
}
"""Kind → section, or `section.field` → why it does not apply."""
assert set(_WHY) == set(get_args(Kind))
_STAY = ("behaviour.not_chosen", "behaviour.imported", "behaviour.tool_use", "rejected.problems")
"""Fields of such sections that stay: what others measured of it, what a person stated, what was dropped."""


def not_applicable_to(kind: Kind, path: str) -> Answer | None:
    """The answer in a field (`section.field`) that has no meaning for this kind; None where it has one."""
    section = path.partition(".")[0]
    why = _WHY[kind].get(path) or (None if path in _STAY else _WHY[kind].get(section))
    if why is None:
        return None
    return Answer(value=None, text=f"not applicable: {why}", source="not applicable", evidence="none")


def absent_section(kind: Kind, section: type[Section]) -> Iterator[tuple[str, Answer]]:
    """(name, answer) of every field of a section that does not apply to this kind as a whole, or in part."""
    for name in section.model_fields:
        if (answer := not_applicable_to(kind, f"{section.__name__.lower()}.{name}")) is not None:
            yield name, answer
