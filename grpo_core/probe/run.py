"""The probe: finds the form in which right answers earn most, then scores every class of completions with the rubric.

Scores through the same `Runner` that a run uses, so that what it finds is what a policy would find.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from grpo_core import __version__
from grpo_core.data.fingerprint import problems_digest
from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from grpo_core.probe.cases.case import Form, ProbeClass
from grpo_core.probe.cases.cases import Question, cases, chosen, read_questions
from grpo_core.probe.cases.choice import CHOICE
from grpo_core.probe.cases.forms import WHOLE, forms_for
from grpo_core.probe.cases.json_text import JSON_TEXTS
from grpo_core.probe.cases.judge import INJECTED, JUDGE
from grpo_core.probe.cases.judged import JUDGED_RIGHT, JUDGED_WRONG, JudgedAnswer, readable_answers
from grpo_core.probe.cases.numbers_right import RIGHT_NUMBERS
from grpo_core.probe.cases.numbers_wrong import WRONG_NUMBERS
from grpo_core.probe.cases.programs import CODE
from grpo_core.probe.cases.right_any import AS_GIVEN, RIGHT_ANY
from grpo_core.probe.cases.words import OTHERS, WORDS
from grpo_core.probe.cases.wrong_any import WRONG_ANY
from grpo_core.probe.report import (
    EXAMPLE_CHARS,
    EXAMPLES,
    PROBLEMS,
    Calibration,
    ClassResult,
    Determinism,
    FormTried,
    ProbeExample,
    ProbeReport,
)
from grpo_core.probe.scoring import ProbeScore, ProbeScorer, repeats
from grpo_core.probe.verdict import HALF, PART, SLIGHT, holds, interval, share_of, together, verdict_of, what_counts
from grpo_core.rewards.rubric import Rubric
from grpo_core.rewards.runner import Runner
from grpo_core.text import UNSTORABLE

TRIED = 10
"""Problems on which the forms are compared."""
AGAIN = 5
"""Every so many completions are scored again."""

Progress = Callable[[int, int, str], None]
"""(done, of, what is being scored)."""


@dataclass(frozen=True)
class _Shot:
    """A completion of a class."""

    of: ProbeClass
    problem: Problem
    completion: str


def probe_rubric(
    rubric: Rubric,
    problems: Sequence[Problem],
    *,
    runner: Runner,
    limit: int = PROBLEMS,
    seed: int = 0,
    check: Callable[[], None] = lambda: None,
    progress: Progress = lambda done, of, what: None,
    fresh: Callable[[], Runner] | None = None,
    source: Literal["data", "builtin"] = "data",
    judged: Sequence[JudgedAnswer] = (),
) -> ProbeReport:
    """Probe the rubric on `limit` of the problems, picked by seed, and on all answers that people `judged`.

    `check` is called often and may raise to stop. `fresh` opens a second runner, with no memory of the first, for the
    test of determinism; rules alone need none. Raises DataError where there is no problem, or one lacks a field that
    the rubric reads, and a GrpoError where scoring as a whole fails.
    """
    began = time.monotonic()
    taken = chosen(problems, limit=limit, seed=seed)
    if not taken:
        raise DataError("a probe needs at least one problem")
    rubric.check_problems(taken)
    questions = read_questions(rubric, taken)
    scorer = ProbeScorer(rubric, runner, check)

    form, tried = _best_form(rubric, questions, scorer, seed, progress)
    made = cases(questions, form, seed=seed)
    shots = [_Shot(of, case.problem, text) for of in classes_for(rubric) for case in made for text in of.make(case)]
    answers, left_out = readable_answers(rubric, judged)
    for of, right in ((JUDGED_RIGHT, True), (JUDGED_WRONG, False)):
        shots += [_Shot(of, answer.problem, answer.completion) for answer in answers if answer.right is right]
    samples = [(shot.problem, shot.completion) for shot in shots]
    scores = scorer.all(samples, lambda done: progress(done, len(shots), "classes"))
    repeated, first = samples[::AGAIN], scores[::AGAIN]
    same = repeats(first, scorer.all(repeated, lambda done: progress(done, len(repeated), "once more")))
    if fresh is None and rubric.rules_alone:
        fresh = lambda: Runner(rubric)  # noqa: E731
    anew = repeats(first, [])
    if fresh is not None and not scorer.given_up:
        with closing(fresh()) as other:
            new = ProbeScorer(rubric, other, check)
            anew = repeats(first, new.all(repeated, lambda done: progress(done, len(repeated), "once more, afresh")))
            scorer.count_in(new)

    by_class: dict[str, list[tuple[_Shot, ProbeScore]]] = {}
    for shot, score in zip(shots, scores, strict=True):
        by_class.setdefault(shot.of.name, []).append((shot, score))
    scored = [(shot.of, score.reward) for shot, score in zip(shots, scores, strict=True) if score.reward is not None]
    full, low, nominal = what_counts(
        [reward for of, reward in scored if of.name == REFERENCE],
        [reward for of, reward in scored if of.family == "false_positive" and of is not JUDGED_WRONG],
        nominal=sum(max(part.component.weight, 0.0) for part in rubric.parts),
    )
    results = [_result(pairs, full, low) for pairs in by_class.values()]
    calibration = Calibration(
        form=None if nominal else form.name, full=full, low=low, nominal=nominal, tried=tuple(tried(full, low))
    )
    unscored = sum(score.reward is None for score in scores)
    reference = next((result for result in results if result.name == REFERENCE), None)
    verdict, reasons = verdict_of(results, reference, calibration, calls=len(scores), unscored=unscored)
    reasons = (*reasons, *left_out)
    if scorer.given_up:
        reasons = (*reasons, scorer.given_up)
    facts = runner.facts()
    negative = [result for result in results if result.family == "false_negative"]
    positive = [result for result in results if result.family == "false_positive"]
    return ProbeReport(
        cohort_version=__version__,
        at=datetime.now(UTC),
        rubric_digest=rubric.digest,
        kinds={part.component.name: part.component.kind for part in rubric.parts},
        weights={part.component.name: part.component.weight for part in rubric.parts},
        problems_source=source,
        problems_digest=problems_digest(taken),
        problems=len(taken),
        problems_of=len(problems),
        subjects=dict(Counter(question.subject for question in questions)),
        seed=seed,
        verdict=verdict,
        pays_wrong=tuple(result.name for result in positive if result.held),
        pays_part=tuple(result.name for result in positive if not result.held and (result.mean_share or 0.0) >= PART),
        rejects=tuple(result.name for result in negative if (result.rate or 0.0) > SLIGHT),
        reasons=reasons,
        calibration=calibration,
        false_negative=together(negative),
        false_positive=together(positive),
        classes=tuple(results),
        determinism=Determinism(again=same, fresh=anew),
        timing=scorer.timing(),
        calls=scorer.calls,
        unscored=unscored,
        errors=dict(scorer.errors),
        error_examples=tuple(scorer.messages),
        cost=scorer.cost(facts),
        facts=facts,
        sandbox=scorer.sandbox(facts),
        seconds=time.monotonic() - began,
    )


def _best_form(
    rubric: Rubric, questions: Sequence[Question], scorer: ProbeScorer, seed: int, progress: Progress
) -> tuple[Form, Callable[[float, float], list[FormTried]]]:
    """The form in which right answers earn most, the first of equals; and, once it is known what counts, how all of
    them did."""
    forms = forms_for(rubric, {question.subject for question in questions})
    known = [question for question in questions if question.gold][:TRIED]
    tried: list[tuple[Form, list[tuple[Problem, str]]]] = []
    for form in forms:
        texts = [
            (question.problem, text)
            for question in known
            if (text := form.write(question.problem, question.gold)) is not None
        ]
        tried.append((form, texts))
    flat = [sample for _, texts in tried for sample in texts]
    scores = iter(scorer.all(flat, lambda done: progress(done, len(flat), "forms of a right answer")))
    rewards = [[next(scores).reward for _ in texts] for _, texts in tried]

    def mean(earned: list[float | None]) -> float:
        """A form that some problems lack earns nothing on them."""
        return sum(reward or 0.0 for reward in earned) / max(len(known), 1)

    best = max(range(len(forms)), key=lambda index: (round(mean(rewards[index]), 9), -index), default=None)

    def listed(full: float, low: float) -> list[FormTried]:
        shown = []
        for (form, texts), earned in zip(tried, rewards, strict=True):
            scored = [reward for reward in earned if reward is not None]
            if texts:
                shown.append(
                    FormTried(
                        name=form.name,
                        title=form.title,
                        n=len(scored),
                        mean=sum(scored) / len(scored) if scored else None,
                        paid=sum(share_of(reward, full, low) > HALF for reward in scored),
                        example=_cut(texts[0][1]),
                    )
                )
        return shown

    return (forms[best] if best is not None and known else WHOLE), listed


def _result(pairs: Sequence[tuple[_Shot, ProbeScore]], full: float, low: float) -> ClassResult:
    of = pairs[0][0].of
    shares = [share_of(score.reward, full, low) for _, score in pairs if score.reward is not None]
    n, paid = len(shares), sum(share > HALF for share in shares)
    mistakes = paid if of.family == "false_positive" else n - paid
    shown = [_example(shot, score, full, low) for shot, score in pairs]
    should_pay = of.family == "false_negative"
    wrong = [example for example in shown if example.paid is not None and example.paid != should_pay]
    return ClassResult(
        name=of.name,
        title=of.title,
        about=of.about,
        family=of.family,
        rule=of.rule,
        n=n,
        paid=paid,
        rate=mistakes / n if n else None,
        wilson95=interval(mistakes, n),
        mean_share=sum(shares) / n if n else None,
        errors=sum(score.failed for _, score in pairs),
        held=holds(of.rule, mistakes, n),
        examples=tuple((wrong or shown[:1])[:EXAMPLES]),
    )


def _example(shot: _Shot, score: ProbeScore, full: float, low: float) -> ProbeExample:
    share = None if score.reward is None else share_of(score.reward, full, low)
    return ProbeExample(
        problem_id=shot.problem.id,
        answer=_cut(shot.problem.answer),
        completion=_cut(shot.completion),
        reward=score.reward,
        share=share,
        paid=None if share is None else share > HALF,
        details={name: _cut(detail) for name, detail in score.details.items()},
    )


def _cut(text: str) -> str:
    kept = UNSTORABLE.sub("\ufffd", text)
    return kept if len(kept) <= EXAMPLE_CHARS else kept[: EXAMPLE_CHARS - 1] + "…"


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
assert len({probe_class.name for probe_class in CLASSES}) == len(CLASSES)
REFERENCE = AS_GIVEN.name
"""The class of the unchanged reference answers: refusing these is what makes a verifier refuse right answers."""

_MODELS = ("model", "judge")


def classes_for(rubric: Rubric) -> list[ProbeClass]:
    """Those that are tried with the rubric; a class that applies to no problem leaves nothing in the report."""
    judged = any(part.kind.mode in _MODELS or part.component.kind == "python" for part in rubric.parts)
    return [probe_class for probe_class in CLASSES if judged or probe_class not in JUDGE]
