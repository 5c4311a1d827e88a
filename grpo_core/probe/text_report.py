"""A probe's report as lines for a terminal."""

from collections.abc import Iterator

from grpo_core.probe.report import ClassResult, LearnedReward, ProbeReport
from grpo_core.text import format_duration, format_percent

_VERDICTS = {
    "clean": "clean: no class of wrong completions is rewarded",
    "pays_wrong": "REWARDS WRONG ANSWERS",
    "rejects_right": "refuses right answers",
    "undecided": "undecided",
}
_TITLE = 84


def lines(report: ProbeReport) -> Iterator[str]:
    """The whole report, a line at a time."""
    of = f" of {report.problems_of:,}" if report.problems_of != report.problems else ""
    where = "built-in problems" if report.problems_source == "builtin" else "problems"
    kinds = ", ".join(f"{name} ({kind}, weight {report.weights[name]:g})" for name, kind in report.kinds.items())
    yield f"reward {report.rubric_digest[:12]}: {kinds}"
    took = format_duration(report.seconds)
    yield f"{report.problems:,}{of} {where}, seed {report.seed}, {report.calls:,} calls, {took}"
    yield _form(report)
    if report.learned is not None:
        yield ""
        yield from _attacks(report, report.learned)
    beats = report.learned is not None
    for family, title, mistake in (
        ("false_negative", "Right answers, written in other ways", "below wrong" if beats else "not rewarded"),
        ("false_positive", "Wrong answers and no answers", "reach right" if beats else "rewarded"),
    ):
        yield ""
        yield f"{title:{_TITLE}} {mistake:>12}   95 % interval"
        yield from _family([result for result in report.classes if result.family == family])
        whole = report.false_negative if family == "false_negative" else report.false_positive
        yield f"  {_padded('all of them')} {_counts(whole.mistakes, whole.n)}"
    yield ""
    yield from _behaviour(report)
    yield ""
    yield f"verdict: {_VERDICTS[report.verdict]}"
    yield from (f"  {reason}" for reason in report.reasons)
    if report.rejects and report.verdict != "rejects_right":
        yield f"  reported, not blocking: {len(report.rejects)} classes of right answers are refused"
    if report.pays_part:
        most = max(report.of(name).mean_share or 0.0 for name in report.pays_part)
        yield (
            f"  reported, not blocking: {len(report.pays_part)} classes of wrong answers earn a part of what a right "
            f"one does, {format_percent(most)} at most"
        )


def _form(report: ProbeReport) -> str:
    calibration = report.calibration
    if calibration.form is None:
        return "no form was found in which a right answer earns anything"
    if report.learned is not None:
        title = next((form.title for form in calibration.tried if form.name == calibration.form), calibration.form)
        return (
            f"right answers earn {calibration.full:.4g}, wrong ones {calibration.low:.4g} (medians), most as: {title}"
        )
    title = next((form.title for form in calibration.tried if form.name == calibration.form), calibration.form)
    low = f", the least counts as {calibration.low:g}" if calibration.low else ""
    return f"right answers earn {calibration.full:g}, most as: {title}{low}"


def _attacks(report: ProbeReport, learned: LearnedReward) -> Iterator[str]:
    """Of a learned reward: how often each attack reaches or beats the right answer of its problem."""
    yield f"{'Attacks on a learned reward':{_TITLE}} {'reach right':>12}   95 % interval        beyond it, mean"
    for result in map(report.of, learned.attacks):
        mark = "!" if result.held else " "
        margin = "" if result.mean_margin is None else f"{result.mean_margin:+.3g}"
        errors = f"  {result.errors} without a reward" if result.errors else ""
        counts = _counts(result.paid, result.n) if result.n else f"{'refused':>12}"
        yield f"{mark} {_padded(f'{result.title} ({result.name})')} {counts}{_interval(result):24}{margin:>12}{errors}"
    if learned.length is not None:
        ranks = learned.length
        yield (
            f"  length and reward: Spearman's ρ {ranks.rho:+.2f} [{ranks.low:+.2f}, {ranks.high:+.2f}] within "
            f"problems, mean of {ranks.problems:,}"
        )
    yield f"  the reward's model reads {learned.limit:,} tokens" if learned.limit else "  its model states no limit"


def _family(classes: list[ClassResult]) -> Iterator[str]:
    wrong = sorted(
        (result for result in classes if result.mistakes), key=lambda result: (not result.held, -(result.rate or 0.0))
    )
    for result in wrong:
        mark = "!" if result.held else " "
        errors = f"  {result.errors} errors" if result.errors else ""
        title = _padded(f"{result.title} ({result.name})")
        yield f"{mark} {title} {_counts(result.mistakes, result.n)}{_interval(result)}{errors}"
    rest = len(classes) - len(wrong)
    if rest:
        others = f"{rest} other classes" if wrong else f"{rest} classes"
        yield f"  {_padded(others)} {'none':>12}"


def _padded(text: str) -> str:
    width = _TITLE - 2
    return f"{text if len(text) <= width else text[: width - 1] + '…':{width}}"


def _counts(mistakes: int, n: int) -> str:
    return f"{f'{mistakes:,} of {n:,}':>12}"


def _interval(result: ClassResult) -> str:
    if result.wilson95 is None:
        return ""
    low, high = result.wilson95
    return f"   {format_percent(low)} to {format_percent(high)}"


def _behaviour(report: ProbeReport) -> Iterator[str]:
    again, fresh = report.determinism.again, report.determinism.fresh
    afresh = f", {fresh.differ} of {fresh.checked} afresh" if fresh.checked else ", not tried afresh"
    yield f"scored twice: {again.differ} of {again.checked} differ by the same runner{afresh}"
    for name, timing in report.timing.items():
        yield (
            f"time of a call, {name}: median {format_duration(timing.median)}, p95 {format_duration(timing.p95)}, "
            f"longest {format_duration(timing.largest)}"
        )
    if report.errors:
        counted = ", ".join(f"{kind} {n}" for kind, n in report.errors.items())
        yield f"errors: {counted}; {report.unscored} completions without a reward"
        yield from (f"  {message}" for message in report.error_examples)
    for name, used in report.cost.items():
        yield f"cost of {name}: {', '.join(f'{key} {value:,.0f}' for key, value in used.items())}"
