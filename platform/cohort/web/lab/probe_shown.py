"""A probe's report as its page shows it: classes by family with their intervals, and the verdict in words."""

from dataclasses import dataclass
from typing import Any

from cohort.web.lab.charts import Interval, interval_drawn
from grpo_core.probe.report import ClassResult, ProbeReport

VERDICTS = {
    "clean": "No class of wrong answers is paid.",
    "pays_wrong": "It pays wrong answers. A run with it is blocked until somebody gives a reason.",
    "rejects_right": "It pays no class of wrong answers, but refuses the reference answers themselves.",
    "undecided": "The probe decided nothing.",
}
AT_ONCE = 12
"""Classes that went wrong and are shown without a click."""
ABOUT = {
    "numbers": "numbers",
    "expressions": "expressions",
    "choice": "multiple choice",
    "words": "words",
    "json": "JSON",
    "code": "programs",
    "any": "any answer",
    "form": "the form",
    "judge": "judges",
    "hacks": "grader hacks",
}


@dataclass(frozen=True)
class ClassShown:
    told: ClassResult
    interval: Interval | None
    about: str


@dataclass(frozen=True)
class FamilyShown:
    title: str
    question: str
    mistake: str
    """Heading of the column that counts mistakes."""
    classes: tuple[ClassShown, ...]

    @property
    def faulty(self) -> tuple[ClassShown, ...]:
        return tuple(one for one in self.classes if one.told.mistakes or one.told.errors)

    @property
    def worst(self) -> tuple[ClassShown, ...]:
        return self.faulty[:AT_ONCE]

    @property
    def further(self) -> tuple[ClassShown, ...]:
        return self.faulty[AT_ONCE:]

    @property
    def faultless(self) -> tuple[ClassShown, ...]:
        return tuple(one for one in self.classes if not (one.told.mistakes or one.told.errors))


@dataclass(frozen=True)
class ProbeShown:
    told: ProbeReport
    words: str
    families: tuple[FamilyShown, ...]

    @property
    def held(self) -> list[ClassResult]:
        return [one for one in self.told.classes if one.name in self.told.pays_wrong]

    @property
    def repeats(self) -> int:
        return self.told.determinism.again.checked + self.told.determinism.fresh.checked

    @property
    def differ(self) -> int:
        return self.told.determinism.again.differ + self.told.determinism.fresh.differ

    @property
    def seconds_a_call(self) -> float | None:
        """Median of all components together, one after another."""
        return sum(one.median for one in self.told.timing.values()) if self.told.timing else None


def probe_shown(report: dict[str, Any]) -> ProbeShown:
    told = ProbeReport.from_json(report)
    return ProbeShown(
        told,
        VERDICTS[told.verdict],
        (
            _family(told, "false_positive", "Wrong answers", "Is any of them paid?", "Paid"),
            _family(told, "false_negative", "Right answers in another form", "Is each of them paid?", "Not paid"),
        ),
    )


def _family(told: ProbeReport, family: str, title: str, question: str, mistake: str) -> FamilyShown:
    """The worst first."""
    found = [one for one in told.classes if one.family == family]
    found.sort(key=lambda one: (not one.held, -(one.rate or 0), -one.errors))
    return FamilyShown(
        title,
        question,
        mistake,
        tuple(
            ClassShown(one, interval_drawn(one.rate, one.wilson95), ABOUT.get(one.about, one.about)) for one in found
        ),
    )
