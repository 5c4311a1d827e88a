"""Probe results in a record: where the reward is known to be brittle, in figures, and who launched in spite of it.

Only figures and class names: a probe's examples contain problems of the dataset, which a record does not show.
"""

from dataclasses import dataclass
from typing import Any

from cohort.evidence.plain_text import counted, named
from cohort.lab.gate import gate, launch_of
from cohort.lab.models import LaunchProbe, VerifierProbe
from cohort.records.answers import count, measured, moment, not_stated, of
from cohort.records.models import Statement
from cohort.records.schema_types import Answer
from cohort.records.sections.from_statements import statement_answer
from cohort.runs.models import Run
from grpo_core.probe.report import ProbeReport, Shares

_VERDICTS = {
    "clean": "no class of wrong answers is rewarded",
    "pays_wrong": "wrong answers are rewarded",
    "rejects_right": "some right answers are not rewarded",
    "undecided": "errors kept the probe from deciding",
}
_REPORT_FIELDS = ("probe_version", "verdict", "problems", "problems_source", "problems_digest", "unscored")
_CLASS_FIELDS = {"name", "title", "family", "n", "paid", "rate", "wilson95", "mean_share", "errors", "held"}


@dataclass(frozen=True)
class Probed:
    """The newest probe of the run's reward when the record was made, and what was known when the run was launched. Of
    a kind of run without a reward, none."""

    newest: VerifierProbe | None
    launch: LaunchProbe | None


def probed(run: Run) -> Probed:
    if run.verifier_version_id is None:
        return Probed(None, None)
    return Probed(gate(run.verifier_version, run.dataset).probe, launch_of(run))


def brittleness(probes: Probed, stated: Statement | None) -> Answer:
    launched = _launched(probes.launch)
    if probes.newest is None:
        unprobed = f"No probe of the verifier was run. {launched}".strip()
        if stated is None:
            return not_stated(f"{unprobed} Nobody has put its weak places into words either.")
        answer = statement_answer(stated, value={"probe": None, "words": stated.text})
        return answer.model_copy(update={"note": f"{answer.note} {unprobed}"})
    report = ProbeReport.from_json(probes.newest.report)
    words, who = "", ""
    if stated is not None:
        public = stated.audience == "public"
        words = stated.text if public else ""
        who = f"{stated.by.username} put its weak places into words" + (
            f", {moment(stated.at)}." if public else f" for the audience {stated.audience} alone."
        )
    value = {"probe": _figures(probes.newest, report), "override": _override(probes.launch), "words": words or None}
    text = f"{_text(report)}{f'; in words: {words}' if words else ''}"
    dataset = probes.newest.dataset
    problems = f"the dataset {dataset.name}" if dataset is not None else "the probe's own"
    probe = f"Probed {moment(probes.newest.at)} with {count(report.problems)} problems of {problems}."
    return measured(
        value, text, evidence="reported", note=" ".join(filter(None, (probe, _chosen(report), launched, who)))
    )


def _text(report: ProbeReport) -> str:
    parts = [f"{_VERDICTS[report.verdict]}: {of_family(report.false_positive, 'wrong')} rewarded"]
    if report.learned is not None:
        parts.append("it is learned: a wrong answer counts as rewarded where it reaches its problem's right one")
    if held := [answer_class.title for answer_class in report.classes if answer_class.name in report.pays_wrong]:
        parts.append(f"it rewards {named(held, 5)}")
    parts.append(f"{of_family(report.false_negative, 'right')} not rewarded")
    if rejected := [answer_class.title for answer_class in report.classes if answer_class.name in report.rejects]:
        parts.append(f"it rejects {named(rejected, 5)}")
    return "; ".join(parts)


def of_family(shares: Shares, what: str) -> str:
    """`3 of 480 (0.6 %) wrong answers`. Without an interval: the answers were made in chosen classes, not drawn from
    those that a policy gives."""
    return f"{of(shares.mistakes, shares.n)} {what} answers"


def _chosen(report: ProbeReport) -> str:
    """Which classes the shares are of."""
    families = (("wrong", "false_positive", report.false_positive), ("right", "false_negative", report.false_negative))
    parts = []
    for what, family, shares in families:
        titles = [answer_class.title for answer_class in report.classes if answer_class.family == family]
        if shares.n and titles:
            parts.append(f"{counted(len(titles), 'class', 'classes')} of {what} answers: {', '.join(titles)}")
    if not parts:
        return ""
    return f"The answers are of chosen classes, so that shares say nothing of others. {'; '.join(parts)}."


def _launched(launch: LaunchProbe | None) -> str:
    if launch is None:
        return ""
    if launch.state == "unprobed":
        if launch.overridden:
            return f"Not probed, launched with override by {launch.by.username}: {launch.reason}"
        return "It was not probed before the launch."
    if launch.overridden:
        return f"The run was blocked by it; {launch.by.username} launched it with an override: {launch.reason}"
    return "It was probed before the launch."


def _override(launch: LaunchProbe | None) -> dict[str, Any] | None:
    if launch is None or not launch.overridden:
        return None
    return {
        "by": launch.by.username,
        "at": launch.at.isoformat(),
        "reason": launch.reason,
        "pays_wrong": list(launch.pays_wrong),
        "probe": launch.probe.digest if launch.probe else None,
    }


def _figures(probe: VerifierProbe, report: ProbeReport) -> dict[str, Any]:
    return {
        **{name: getattr(report, name) for name in _REPORT_FIELDS},
        "digest": probe.digest,
        "at": report.at.isoformat(),
        "pays_wrong": list(report.pays_wrong),
        "pays_part": list(report.pays_part),
        "rejects": list(report.rejects),
        "false_negative": report.false_negative.model_dump(mode="json", exclude={"wilson95"}),
        "false_positive": report.false_positive.model_dump(mode="json", exclude={"wilson95"}),
        "classes": [answer_class.model_dump(mode="json", include=_CLASS_FIELDS) for answer_class in report.classes],
        "determinism": report.determinism.model_dump(mode="json"),
        "sandbox": (report.sandbox or {}).get("level"),
        **({} if report.learned is None else {"learned": report.learned.model_dump(mode="json")}),
    }


def sandbox_text(report: dict[str, Any] | None) -> str:
    """What kept the code of verifiers and completions apart, in one line; empty where nothing had to."""
    if not report:
        return ""
    weaker = "; weaker: " + "; ".join(report["weaker"]) if report.get("weaker") else ""
    return f"{report.get('version') or report.get('level')}{weaker}"
