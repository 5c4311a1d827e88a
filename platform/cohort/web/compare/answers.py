"""The same problem answered by several runs, side by side: an item of a suite, or a training problem."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Role
from cohort.evaluations.across_runs import ItemAcross, item_answers, items_across, results_across
from cohort.review.across_runs import STEPS, ProblemAcross, groups_across, problems_across
from cohort.review.models import Group, Sample
from cohort.review.services import right
from cohort.runs.models import EvalResult, Run
from cohort.web.access import may, project_for
from cohort.web.compare.chosen import Choice, Chosen
from cohort.web.compare.summary import suite_title
from cohort.web.context import listed, query_without
from cohort.web.review.judging import closed_page
from grpo_core.config.evaluation import SuiteConfig

ITEMS = 50
SHOWS = {
    "disagree": "runs differ",
    "lost": "baseline right, another not",
    "won": "baseline not, another right",
    "all": "all",
}
"""Filters of the items of a suite, by the scores of the runs, and what the page calls them."""


@dataclass(frozen=True)
class Answer:
    chosen: Chosen
    group: Group | None
    samples: tuple[tuple[Sample, bool | None], ...]
    """With whether each is right."""

    @property
    def right(self) -> list[bool | None]:
        return [passed for _, passed in self.samples]


@require_safe
def run_compare_answers(request: HttpRequest, slug: str) -> HttpResponse:
    """`suite` names the suite whose items are listed; without one, problems of training are. `show` filters them,
    `item` opens one, `texts` those of a sensitive suite to reviewers and above."""
    project = project_for(request, slug)
    choice = Choice(project, request.GET)
    results = results_across(choice.runs)
    name = request.GET.get("suite", "")
    if name not in results and (closed := closed_page(request, slug, *(run.pk for run in choice.runs))):
        return closed
    context = {
        "choice": choice,
        "suite": name if name in results else "",
        "suites": [(suite, suite_title(suite)) for suite in results],
        "steps": STEPS,
        "title": suite_title(name) if name in results else "Training problems",
        "link": query_without(request, "item", "items"),
    }
    if name in results:
        context |= _of_suite(request, choice, name, results[name])
    else:
        context |= _of_training(request, choice)
    return render(request, "compare/answers.html", context)


def _of_suite(
    request: HttpRequest, choice: Choice, name: str, results: Mapping[int, Mapping[str, EvalResult]]
) -> dict[str, Any]:
    show = request.GET.get("show", "disagree")
    show = show if show in SHOWS else "disagree"
    every = items_across(choice.runs, results)
    at = choice.runs.index(choice.baseline) if choice.baseline else 0
    rows = [row for row in every if _fits(row, show, at)]
    sensitive = any(_sensitive(run, name) for run in choice.runs)
    may_read = not sensitive or may(request, choice.project, Role.REVIEWER)
    texts = may_read and (not sensitive or bool(request.GET.get("texts")))
    context = _opened([row.problem_id for row in rows], request.GET.get("item"))
    opened = rows[context["at"]] if rows else None
    answers = item_answers(results, opened.problem_id) if opened else {}
    items = [(chosen, answers.get(chosen.run.pk)) for chosen in choice.chosen] if opened else []
    return context | {
        "show": show,
        "shows": SHOWS,
        "rows": listed(request, rows, ITEMS, name="items"),
        "total": len(every),
        "opened": opened,
        "items": items,
        "example": next((item for _, item in items if item is not None), None),
        "sensitive": sensitive,
        "may_read": may_read,
        "texts": texts,
        "texts_query": "&texts=1" if texts and sensitive else "",
    }


def _fits(row: ItemAcross, show: str, baseline: int) -> bool:
    base = row.values[baseline]
    differences = [score - base for score in row.values if score is not None and base is not None]
    match show:
        case "disagree":
            return row.spread > 0
        case "lost":
            return min(differences, default=0) < 0
        case "won":
            return max(differences, default=0) > 0
        case _:
            return True


def _sensitive(run: Run, name: str) -> bool:
    suites: tuple[SuiteConfig, ...] = tuple(run.parsed_config.eval.suites)
    return any(suite.sensitive for suite in suites if suite.name == name)


def _of_training(request: HttpRequest, choice: Choice) -> dict[str, Any]:
    problems = problems_across(choice.runs)
    context = _opened([problem.key for problem in problems], request.GET.get("item"))
    opened: ProblemAcross | None = problems[context["at"]] if problems else None
    groups = groups_across(opened) if opened else {}
    answers = [_answer(chosen, groups.get(chosen.run.pk)) for chosen in choice.chosen] if opened else []
    return context | {
        "rows": listed(request, problems, ITEMS, name="items"),
        "total": len(problems),
        "opened": opened,
        "answers": answers,
        "example": next(iter(groups.values()), None),
        "texts": True,
        "may_read": True,
    }


def _answer(chosen: Chosen, group: Group | None) -> Answer:
    success = chosen.run.scored_by.success_of
    samples = group.samples.all() if group else []
    return Answer(chosen, group, tuple((sample, right(sample, success)) for sample in samples))


def _opened(keys: list[str], wanted: str | None) -> dict[str, Any]:
    """Which row is opened, the first unless the address names one, and the keys of its neighbours."""
    at = keys.index(wanted) if wanted in keys else 0
    return {
        "at": at,
        "number": at + 1,
        "of": len(keys),
        "earlier": keys[at - 1] if at else None,
        "later": keys[at + 1] if at + 1 < len(keys) else None,
    }
