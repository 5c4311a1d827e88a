"""A probe's report as its page shows it: classes by family with their intervals, and the verdict in words."""

from typing import Any

from cohort.web.lab.charts import interval_drawn
from grpo_core.probe.report import ClassResult, ProbeReport

VERDICTS = {
    "clean": "No class of wrong answers is rewarded.",
    "pays_wrong": "It rewards wrong answers. A run with it is blocked until somebody gives a reason.",
    "rejects_right": "It rewards no class of wrong answers, but refuses the reference answers themselves.",
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
    "judged": "judged samples",
    "attack": "learned rewards",
}


def probe_shown(report: dict[str, Any]) -> dict[str, Any]:
    """For the template. `seconds_a_call`: median of all components together, one after another."""
    parsed = ProbeReport.from_json(report)
    beats = parsed.learned is not None
    again, fresh = parsed.determinism.again, parsed.determinism.fresh
    held = [answers for answers in parsed.classes if answers.name in parsed.pays_wrong]
    if parsed.learned is not None:  # what a policy would come upon first
        attacks = parsed.learned.attacks
        held.sort(key=lambda answers: answers.name not in attacks)
    return {
        "probe_report": parsed,
        "words": VERDICTS[parsed.verdict],
        "families": [
            _family(
                parsed,
                "false_positive",
                "Wrong answers",
                "Does any reach the right one?" if beats else "Is any rewarded?",
                "Reach it" if beats else "Rewarded",
            ),
            _family(
                parsed,
                "false_negative",
                "Right answers in another form",
                "Does each beat a wrong one?" if beats else "Is each rewarded?",
                "Do not beat it" if beats else "Not rewarded",
            ),
        ],
        "attacks": [] if parsed.learned is None else [_shown(parsed.of(name)) for name in parsed.learned.attacks],
        "held": held,
        "repeats": again.checked + fresh.checked,
        "differ": again.differ + fresh.differ,
        "seconds_a_call": sum(timing.median for timing in parsed.timing.values()) if parsed.timing else None,
    }


def _shown(counts: ClassResult) -> dict[str, Any]:
    return {
        "counts": counts,
        "interval": interval_drawn(counts.rate, counts.wilson95),
        "about": ABOUT.get(counts.about, counts.about),
        "wrong": bool(counts.mistakes or counts.errors),
    }


def _family(report: ProbeReport, family: str, title: str, question: str, mistake: str) -> dict[str, Any]:
    """Its classes, the worst first; those that went wrong (`faulty`) in two parts. `mistake` is the heading of the
    column that counts mistakes."""
    answers = [answers for answers in report.classes if answers.family == family]
    answers.sort(key=lambda answers: (not answers.held, -(answers.rate or 0), -answers.errors))
    classes = [_shown(counts) for counts in answers]
    faulty = [row for row in classes if row["wrong"]]
    return {
        "title": title,
        "question": question,
        "mistake": mistake,
        "classes": classes,
        "faulty": faulty,
        "worst": faulty[:AT_ONCE],
        "further": faulty[AT_ONCE:],
        "faultless": [row for row in classes if not row["wrong"]],
    }
