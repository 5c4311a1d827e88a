"""All classes of the probe, in the order in which a report lists them."""

from grpo_core.probe.cases.case import ProbeClass
from grpo_core.probe.cases.choice import CHOICE
from grpo_core.probe.cases.json_text import JSON_TEXTS
from grpo_core.probe.cases.judge import INJECTED, JUDGE
from grpo_core.probe.cases.numbers_right import RIGHT_NUMBERS
from grpo_core.probe.cases.numbers_wrong import WRONG_NUMBERS
from grpo_core.probe.cases.programs import CODE
from grpo_core.probe.cases.right_any import AS_GIVEN, RIGHT_ANY
from grpo_core.probe.cases.words import OTHERS, WORDS
from grpo_core.probe.cases.wrong_any import WRONG_ANY
from grpo_core.rewards.rubric import Rubric

CLASSES: tuple[ProbeClass, ...] = (
    *RIGHT_ANY,
    *RIGHT_NUMBERS,
    *CHOICE,
    *WORDS,
    *JSON_TEXTS,
    *CODE,
    *WRONG_NUMBERS,
    *OTHERS,
    *WRONG_ANY,
    *INJECTED,
    *JUDGE,
)
assert len({one.name for one in CLASSES}) == len(CLASSES)
REFERENCE = AS_GIVEN.name
"""The class of the reference answers as they stand: refusing these is what makes a verifier refuse right answers."""

_MODELS = ("model", "judge")


def classes_for(rubric: Rubric) -> list[ProbeClass]:
    """Those that are tried with the rubric; a class that applies to no problem leaves nothing in the report."""
    asked = any(part.kind.place in _MODELS or part.component.kind == "python" for part in rubric.parts)
    return [one for one in CLASSES if asked or one not in JUDGE]
