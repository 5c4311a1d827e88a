"""A probe's report as its page shows it: classes by family with their intervals, and the verdict in words."""

from typing import Any

from cohort.web.lab.charts import interval_drawn
from grpo_core.probe.report import ProbeReport

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
}


def probe_shown(report: dict[str, Any]) -> dict[str, Any]:
    """For the template. `seconds_a_call`: median of all components together, one after another."""
    parsed = ProbeReport.from_json(report)
    again, fresh = parsed.determinism.again, parsed.determinism.fresh
    return {
        "probe_report": parsed,
        "words": VERDICTS[parsed.verdict],
        "families": [
            _family(parsed, "false_positive", "Wrong answers", "Is any rewarded?", "Rewarded"),
            _family(parsed, "false_negative", "Right answers in another form", "Is each rewarded?", "Not rewarded"),
        ],
        "held": [answers for answers in parsed.classes if answers.name in parsed.pays_wrong],
        "repeats": again.checked + fresh.checked,
        "differ": again.differ + fresh.differ,
        "seconds_a_call": sum(timing.median for timing in parsed.timing.values()) if parsed.timing else None,
    }


def _family(report: ProbeReport, family: str, title: str, question: str, mistake: str) -> dict[str, Any]:
    """Its classes, the worst first; those that went wrong (`faulty`) in two parts. `mistake` is the heading of the
    column that counts mistakes."""
    answers = [answers for answers in report.classes if answers.family == family]
    answers.sort(key=lambda answers: (not answers.held, -(answers.rate or 0), -answers.errors))
    classes = [
        {
            "counts": counts,
            "interval": interval_drawn(counts.rate, counts.wilson95),
            "about": ABOUT.get(counts.about, counts.about),
            "wrong": bool(counts.mistakes or counts.errors),
        }
        for counts in answers
    ]
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
