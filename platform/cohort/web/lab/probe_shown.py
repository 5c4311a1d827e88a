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
    counts: ClassResult
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
        return tuple(shown for shown in self.classes if shown.counts.mistakes or shown.counts.errors)

    @property
    def worst(self) -> tuple[ClassShown, ...]:
        return self.faulty[:AT_ONCE]

    @property
    def further(self) -> tuple[ClassShown, ...]:
        return self.faulty[AT_ONCE:]

    @property
    def faultless(self) -> tuple[ClassShown, ...]:
        return tuple(shown for shown in self.classes if not (shown.counts.mistakes or shown.counts.errors))


@dataclass(frozen=True)
class ProbeShown:
    probe_report: ProbeReport
    words: str
    families: tuple[FamilyShown, ...]

    @property
    def held(self) -> list[ClassResult]:
        return [answers for answers in self.probe_report.classes if answers.name in self.probe_report.pays_wrong]

    @property
    def repeats(self) -> int:
        return self.probe_report.determinism.again.checked + self.probe_report.determinism.fresh.checked

    @property
    def differ(self) -> int:
        return self.probe_report.determinism.again.differ + self.probe_report.determinism.fresh.differ

    @property
    def seconds_a_call(self) -> float | None:
        """Median of all components together, one after another."""
        return sum(timing.median for timing in self.probe_report.timing.values()) if self.probe_report.timing else None


def probe_shown(report: dict[str, Any]) -> ProbeShown:
    parsed = ProbeReport.from_json(report)
    return ProbeShown(
        parsed,
        VERDICTS[parsed.verdict],
        (
            _family(parsed, "false_positive", "Wrong answers", "Is any of them paid?", "Paid"),
            _family(parsed, "false_negative", "Right answers in another form", "Is each of them paid?", "Not paid"),
        ),
    )


def _family(report: ProbeReport, family: str, title: str, question: str, mistake: str) -> FamilyShown:
    """The worst first."""
    classes = [answers for answers in report.classes if answers.family == family]
    classes.sort(key=lambda answers: (not answers.held, -(answers.rate or 0), -answers.errors))
    return FamilyShown(
        title,
        question,
        mistake,
        tuple(
            ClassShown(answers, interval_drawn(answers.rate, answers.wilson95), ABOUT.get(answers.about, answers.about))
            for answers in classes
        ),
    )
