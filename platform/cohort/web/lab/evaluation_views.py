"""Evaluations of base models: the form that requests one, and what a page shows of one that is done."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from cohort.accounts.models import Role
from cohort.base.formatting import natural
from cohort.catalog.models import BaseModel
from cohort.lab.evaluations import (
    ITEM_SHOWS,
    Measured,
    comparable,
    measured,
    of_reference,
    results_of,
    shown_items,
)
from cohort.lab.models import LabJob, ModelEvalItem
from cohort.lab.services import evaluation_request
from cohort.web.access import form_page, may, project_for, redirect_to
from cohort.web.accounts.views import person
from cohort.web.catalog.selectors import OFFERED
from cohort.web.context import listed
from cohort.web.lab.model_forms import EvaluateForm
from grpo_core.errors import ConfigError

ITEMS = 50
"""Of one page."""


@form_page
def base_model_evaluate(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """The form, and the request of a job (POST)."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    model = get_object_or_404(BaseModel.objects.select_related("project"), project=project, pk=pk)
    find = request.GET.get("find", "")
    form = EvaluateForm(project, request.POST if request.method == "POST" else None, find=find)
    if request.method == "POST" and form.is_valid():
        try:
            job = evaluation_request(base_model=model, actor=person(request), **form.arguments())
        except ConfigError as error:
            form.take_config(error)
        else:
            return redirect_to(request, "lab_job", slug, job.pk)
    context = {"model": model, "form": form, "find": find, "offered": OFFERED}
    return render(request, "lab/evaluate.html", context, status=form.status)


@dataclass(frozen=True)
class ItemShown:
    own: ModelEvalItem
    other: ModelEvalItem | None
    """The same item in the evaluation that this one is compared with."""

    @property
    def pair(self) -> list[ModelEvalItem | None]:
        return [self.own, self.other]


def evaluation_context(request: HttpRequest, job: LabJob) -> dict[str, Any]:
    """Of a job that is done: every suite, next to the evaluation `against` (a job's number; by default the newest of
    the model's reference), and the items of one `suite`, of which `show` takes a part. `texts` opens those of a
    sensitive suite to reviewers and above."""
    results = results_of(job)
    others = comparable(job, results)
    wanted = request.GET.get("against")
    assert job.base_model is not None
    chosen = next((other for other in others if other.job.pk == natural(wanted)), None)
    if wanted is None:
        chosen = of_reference(job.base_model, others)
    against = chosen.results if chosen is not None else {}
    suites = [measured(result, against.get(result.suite)) for result in results]
    opened = next((suite for suite in suites if suite.result.suite == request.GET.get("suite")), suites[0])
    show = request.GET.get("show", "all")
    show = show if show in ITEM_SHOWS else "all"
    may_read = not opened.sensitive or may(request, job.project, Role.REVIEWER)
    return {
        "suites": suites,
        "others": others[:OFFERED],
        "others_total": len(others),
        "against": chosen,
        "suite": opened,
        "show": show,
        "shows": ITEM_SHOWS,
        "items": listed(request, shown_items(opened.result, show), ITEMS, name="items", row=_with_others(opened)),
        "may_read": may_read,
        "texts": may_read and (not opened.sensitive or bool(request.GET.get("texts"))),
    }


def _with_others(opened: Measured) -> Any:
    def rows(items: list[ModelEvalItem]) -> list[ItemShown]:
        if opened.against is None or opened.reason:
            return [ItemShown(item, None) for item in items]
        same = opened.against.items.filter(problem_id__in=[item.problem_id for item in items])
        by_problem = {item.problem_id: item for item in same}
        return [ItemShown(item, by_problem.get(item.problem_id)) for item in items]

    return rows
