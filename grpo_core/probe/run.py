"""The probe: finds the form in which right answers earn most, then scores every class of completions with the rubric.

Scores through the same `Runner` that a run uses, so that what it finds is what a policy would find.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Literal

from grpo_core import __version__
from grpo_core.data.fingerprint import problems_digest
from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from grpo_core.probe.cases.attacks import FIXED
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
from grpo_core.probe.learned import (
    FORM_WRONG,
    OVER_LIMIT,
    Earned,
    classes_by_length,
    honest_basis,
    is_learned,
    learned_of,
)
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
from grpo_core.probe.verdict import (
    HALF,
    PART,
    SLIGHT,
    ByHonest,
    ByShare,
    holds,
    interval,
    together,
    verdict_of,
    what_counts,
    what_counts_learned,
)
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
    classes = (*classes_for(rubric), *classes_by_length(runner))
    made = cases(questions, form, seed=seed)
    shots = [_Shot(of, case.problem, text) for of in classes for case in made for text in of.make(case)]
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

    earned = _earned(shots, scores)
    if learned := is_learned(rubric):
        compared = _compared(rubric, [answer.problem for answer in answers], form, seed)
        others = scorer.all([(shot.problem, shot.completion) for shot in compared], lambda done: None)
        basis: ByHonest | ByShare = honest_basis([*earned, *_earned(compared, others)], REFERENCE)
        full, low, nominal = what_counts_learned(
            [each.reward for each in earned if each.name == REFERENCE],
            [each.reward for each in earned if each.name == FORM_WRONG],
        )
    else:
        wrong = {of.name for of in classes if of.family == "false_positive"}
        full, low, nominal = what_counts(
            [each.reward for each in earned if each.name == REFERENCE],
            [each.reward for each in earned if each.name in wrong],
            nominal=sum(max(part.component.weight, 0.0) for part in rubric.parts),
        )
        basis = ByShare(full, low)
    by_class: dict[str, list[tuple[_Shot, ProbeScore]]] = {}
    for shot, score in zip(shots, scores, strict=True):
        by_class.setdefault(shot.of.name, []).append((shot, score))
    results = [_result(pairs, basis) for pairs in by_class.values()]
    calibration = Calibration(
        form=None if nominal else form.name,
        full=full,
        low=low,
        nominal=nominal,
        tried=tuple(tried(low if learned else low + HALF * (full - low))),
    )
    meant = [score for shot, score in zip(shots, scores, strict=True) if shot.of.name != OVER_LIMIT]
    unscored = sum(score.reward is None for score in meant)
    reference = next((result for result in results if result.name == REFERENCE), None)
    verdict, reasons = verdict_of(results, reference, calibration, calls=len(meant), unscored=unscored, learned=learned)
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
        learned=learned_of(runner, basis, earned, results, seed=seed) if isinstance(basis, ByHonest) else None,
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


def _compared(rubric: Rubric, problems: Sequence[Problem], form: Form, seed: int) -> list[_Shot]:
    """A right and a wrong answer to each judged problem, of which no class has any."""
    made = cases(read_questions(rubric, problems), form, seed=seed)
    pair = [of for of in CLASSES if of.name in (REFERENCE, FORM_WRONG)]
    return [_Shot(of, case.problem, text) for of in pair for case in made for text in of.make(case)]


def _earned(shots: Sequence[_Shot], scores: Sequence[ProbeScore]) -> list[Earned]:
    """Of those that were scored."""
    return [
        Earned(shot.of.name, shot.problem.id, shot.completion, score.reward)
        for shot, score in zip(shots, scores, strict=True)
        if score.reward is not None
    ]


def _best_form(
    rubric: Rubric, questions: Sequence[Question], scorer: ProbeScorer, seed: int, progress: Progress
) -> tuple[Form, Callable[[float], list[FormTried]]]:
    """The form in which right answers earn most, the first of equals; and, once it is known beyond which reward one
    counts, how all of them did."""
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

    least = min([0.0, *(reward for earned in rewards for reward in earned if reward is not None)])

    def mean(earned: list[float | None]) -> float:
        """A form that some problems lack earns nothing on them; where rewards are negative, the least there is."""
        scored = [reward for reward in earned if reward is not None]
        return (sum(scored) + least * (len(known) - len(scored))) / max(len(known), 1)

    best = max(range(len(forms)), key=lambda index: (round(mean(rewards[index]), 9), -index), default=None)

    def listed(beyond: float) -> list[FormTried]:
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
                        paid=sum(reward > beyond for reward in scored),
                        example=_cut(texts[0][1]),
                    )
                )
        return shown

    return (forms[best] if best is not None and known else WHOLE), listed


def _result(pairs: Sequence[tuple[_Shot, ProbeScore]], basis: ByShare | ByHonest) -> ClassResult:
    of = pairs[0][0].of
    shown = [_example(shot, score, basis) for shot, score in pairs]
    scored = [example for example in shown if example.paid is not None and example.reward is not None]
    shares = [example.share for example in scored if example.share is not None]
    margins = [basis.margin(example.problem_id, example.reward or 0.0) for example in scored]
    beyond = [margin for margin in margins if margin is not None]
    n, paid = len(scored), sum(example.paid is True for example in scored)
    mistakes = paid if of.family == "false_positive" else n - paid
    should_pay = of.family == "false_negative"
    wrong = [example for example in scored if example.paid != should_pay]
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
        mean_share=fmean(shares) if shares else None,
        mean_reward=fmean(example.reward or 0.0 for example in scored) if scored else None,
        mean_margin=fmean(beyond) if beyond else None,
        errors=sum(score.failed for _, score in pairs),
        held=holds(of.rule, mistakes, n),
        examples=tuple((wrong or shown[:1])[:EXAMPLES]),
    )


def _example(shot: _Shot, score: ProbeScore, basis: ByShare | ByHonest) -> ProbeExample:
    reward = score.reward
    return ProbeExample(
        problem_id=shot.problem.id,
        answer=_cut(shot.problem.answer),
        completion=_cut(shot.completion),
        reward=reward,
        share=None if reward is None else basis.share(reward),
        paid=None if reward is None else basis.rewarded(shot.of.family, shot.problem.id, reward),
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
    *FIXED,
)
assert len({probe_class.name for probe_class in CLASSES}) == len(CLASSES)
REFERENCE = AS_GIVEN.name
"""The class of the unchanged reference answers: refusing these is what makes a verifier refuse right answers."""

_MODELS = ("model", "judge")


def classes_for(rubric: Rubric) -> list[ProbeClass]:
    """Those that are tried with the rubric; a class that applies to no problem leaves nothing in the report."""
    judged = any(part.kind.mode in _MODELS or part.component.kind == "python" for part in rubric.parts)
    left_out = (*(() if judged else JUDGE), *(() if is_learned(rubric) else FIXED))
    return [probe_class for probe_class in CLASSES if probe_class not in left_out]
