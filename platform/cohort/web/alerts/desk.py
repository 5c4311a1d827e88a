"""The desk: alerts of a project, filtered, a page at a time from an edge on, answered one by one or many at once."""

from functools import cached_property

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Project, Role
from cohort.alerts import desk
from cohort.alerts.models import Alert, AlertRule
from cohort.alerts.selectors import STATES, alerts_of
from cohort.base.formatting import natural
from cohort.base.storable import storable
from cohort.web.access import project_for
from cohort.web.accounts.views import person
from cohort.web.context import query_without

PAGE = 50
_PAGES = {"alert": "alert_detail", "run": "run_detail"}
"""By what a form names as its page: the page's URL."""
ACTIONS = {
    "acknowledge": (desk.alerts_acknowledge, "acknowledged"),
    "close": (desk.alerts_close, "closed"),
}
"""Action → (service, what was done)."""


class DeskPage:
    """One page of the alerts that the address selects by `state`, `rule` (its id) and `run` (id, or part of its
    name)."""

    def __init__(self, project: Project, params: QueryDict) -> None:
        self.project = project
        self.state = params.get("state", "")
        if self.state not in STATES:
            self.state = next(iter(STATES))
        self.rule = natural(params.get("rule"))
        self.run = storable(params.get("run", "").strip())
        self._before = natural(params.get("before"))

    @property
    def states(self) -> list[str]:
        return list(STATES)

    @cached_property
    def rules(self) -> list[AlertRule]:
        return list(AlertRule.objects.filter(project=self.project).order_by("pk"))

    @property
    def filtered(self) -> bool:
        return bool(self.rule or self.run or self.state != next(iter(STATES)))

    @cached_property
    def _alerts(self) -> QuerySet[Alert]:
        rows = alerts_of(self.project, state=self.state)
        if self.rule is not None:
            rows = rows.filter(rule=self.rule)
        if (pk := natural(self.run)) is not None:
            rows = rows.filter(run=pk)
        elif self.run:
            rows = rows.filter(run__name__icontains=self.run)
        return rows

    @cached_property
    def total(self) -> int:
        return self._alerts.count()

    @cached_property
    def _read(self) -> list[Alert]:
        rows = self._alerts if self._before is None else self._alerts.filter(pk__lt=self._before)
        rows = rows.select_related("run", "acknowledged_by", "closed_by").prefetch_related("deliveries")
        return list(rows.defer("run__config", "run__log_tail", "run__first_metrics", "advice")[: PAGE + 1])

    @property
    def rows(self) -> list[Alert]:
        return self._read[:PAGE]

    @property
    def following(self) -> int | None:
        """Edge of the next page."""
        return self._read[PAGE - 1].pk if len(self._read) > PAGE else None

    @property
    def first(self) -> bool:
        return self._before is None

    @property
    def at_once(self) -> int:
        return desk.MOST_AT_ONCE


@require_safe
def alert_list(request: HttpRequest, slug: str) -> HttpResponse:
    page = DeskPage(project_for(request, slug), request.GET)
    context = {"page": page, "query": query_without(request, "before"), "here": query_without(request)}
    return render(request, "alerts/desk.html", context)


@require_safe
def alert_detail(request: HttpRequest, slug: str, alert_id: int) -> HttpResponse:
    """What it reports, who answered it, and what became of each delivery."""
    project = project_for(request, slug)
    rows = Alert.objects.select_related("run", "rule", "acknowledged_by", "closed_by")
    alert = get_object_or_404(rows.defer("run__config", "run__log_tail"), project=project, pk=alert_id)
    context = {"alert": alert, "deliveries": alert.deliveries.select_related("channel")}
    return render(request, "alerts/alert.html", context)


@require_POST
def alerts_answer(request: HttpRequest, slug: str) -> HttpResponse:
    """`action` on the alerts `alert`, with a `note`. Back to where the form was."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    back = _back(request, project)
    action = ACTIONS.get(request.POST.get("action", ""))
    if action is None:
        messages.error(request, "Nothing was done: choose to acknowledge or to close.")
        return redirect(back)
    numbers = [pk for text in request.POST.getlist("alert") if (pk := natural(text)) is not None]
    if not 0 < len(numbers) <= desk.MOST_AT_ONCE:
        words = f"at most {desk.MOST_AT_ONCE} are answered at once" if numbers else "choose alerts first"
        messages.error(request, f"Nothing was done: {words}.")
        return redirect(back)
    service, done = action
    alerts = list(Alert.objects.filter(project=project, pk__in=numbers))
    try:
        count = service(alerts=alerts, actor=person(request), note=request.POST.get("note", ""))
    except ValidationError as error:
        messages.error(request, "Nothing was done: " + " ".join(error.messages))
        return redirect(back)
    if count:
        messages.success(request, f"{count:,} alert{'' if count == 1 else 's'} {done}.")
    else:
        messages.info(request, f"Nothing was changed: {'it was' if len(numbers) == 1 else 'they were'} {done} already.")
    return redirect(back)


def _back(request: HttpRequest, project: Project) -> str:
    """Only ever a page of the project."""
    origin, _, number = request.POST.get("from", "").partition("-")
    if origin == "home":
        return reverse("project_home", args=[project.slug])
    if origin in _PAGES and (pk := natural(number)) is not None:
        return reverse(_PAGES[origin], args=[project.slug, pk])
    query = storable(request.POST.get("query", "")).replace("\n", "").replace("\r", "")
    return f"{reverse('alert_list', args=[project.slug])}{f'?{query}' if query else ''}"
