"""Re-scores of a run: their list with the form that requests one, and the page of one: how far it is, then both
rewards against each other."""

from typing import Any

from django import forms
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Role
from cohort.catalog.models import VerifierVersion
from cohort.catalog.services import checked_rubric
from cohort.lab.gate import gate
from cohort.lab.models import OPEN, JobState
from cohort.review.models import Change, Rescore
from cohort.review.ready_filters import rescore_filters
from cohort.review.rescores import MAX_REASON_CHARS, costs, rescore_request, stored_samples
from cohort.runs.models import Run
from cohort.runs.transitions import WITH_A_RECORD
from cohort.web.access import STOP_POLLING, form_page, may, redirect_to, run_for
from cohort.web.accounts.views import person
from cohort.web.catalog.selectors import OFFERED, Offered
from cohort.web.context import listed, version_of
from cohort.web.lab.estimate_shown import why_waits
from cohort.web.lab.model_forms import ConfigForm
from cohort.web.review.judging import shows_samples
from cohort.web.review.rescore_shown import WORDS, confusion_rows, curves, seconds_left
from cohort.web.runs.header import Header
from grpo_core.errors import ConfigError

ROWS = 50


class RescoreForm(ConfigForm):
    version = forms.ModelChoiceField(
        VerifierVersion.objects.none(), label="Second reward", empty_label="choose a version of a reward"
    )
    reason = forms.CharField(
        label="Why", required=False, max_length=MAX_REASON_CHARS, widget=forms.Textarea({"rows": 2}), strip=True
    )

    def __init__(self, run: Run, data: Any = None, *, version: str = "", find: str = "") -> None:
        """`version`: id of the one chosen before; `find`: part of a name, where there are too many to offer."""
        super().__init__(data, initial={"version": version})
        versions: Offered[Any] = Offered(
            VerifierVersion.objects.filter(verifier__project=run.project).select_related("verifier"),
            find,
            name="verifier__name",
        )
        self.more = versions.more
        self.chosen: VerifierVersion | None = versions.row(str(self["version"].value() or ""))
        field: Any = self.fields["version"]
        field.queryset = versions.every
        rows = versions.rows_with(self.chosen)
        field.choices = [("", field.empty_label), *((row.pk, str(row)) for row in rows)]


@form_page
@shows_samples
def run_rescores(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """`version` shows what scoring by it takes, before anything is started."""
    post = request.method == "POST"
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR if post else Role.VIEWER)
    find = request.GET.get("find", "")
    form = RescoreForm(run, request.POST if post else None, version=request.GET.get("version", ""), find=find)
    if post and form.is_valid():
        try:
            rescore = rescore_request(run=run, actor=person(request), **form.cleaned_data)
        except ConfigError as error:
            form.take_config(error)
        else:
            return redirect_to(request, "run_rescore", slug, run_id, rescore.pk)
    rows = Rescore.objects.filter(run=run).select_related("version__verifier", "by", "job")
    rescores = rows.defer("job__result", "figures").annotate(agreement=F("figures__agreement__share"))
    offers = run.state in WITH_A_RECORD and may(request, run.project, Role.OPERATOR)
    context = Header(run).context(
        "", rescores=listed(request, rescores, ROWS), form=form, find=find, offered=OFFERED, offers=offers
    )
    if offers:
        samples = stored_samples(run).count()
        version = form.chosen
        context |= {
            "samples": samples,
            "version": version,
            "costs": costs(checked_rubric(version.spec), samples) if version else [],
            "gate": gate(version, run.dataset) if version else None,
        }
    return render(request, "review/rescores.html", context, status=form.status)


@require_safe
@shows_samples
def run_rescore(request: HttpRequest, slug: str, run_id: int, rescore_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id)
    rescore = _rescore(run, rescore_id)
    context = Header(run).context("", **_frame(rescore))
    figures = rescore.figures
    if figures is not None:
        context |= {
            "figures": figures,
            "confusion": confusion_rows(figures),
            "words": list(WORDS.values()),
            "curves": curves(figures),
            "ready": rescore_filters(rescore.pk),
            "parting": sum(figures["changes"][change.name.lower()] for change in Change if change != Change.SAME),
        }
    return render(request, "review/rescore.html", context)


@require_safe
@shows_samples
def run_rescore_live(request: HttpRequest, slug: str, run_id: int, rescore_id: int) -> HttpResponse:
    """The head of one that is not done: 204 while nothing changed since `v`. Once it has figures, or has ended
    otherwise, the page reloads."""
    run = run_for(request, slug, run_id)
    context = _frame(_rescore(run, rescore_id))
    if not context["live"]:
        return HttpResponse(status=STOP_POLLING, headers={"HX-Refresh": "true"})
    if request.GET.get("v") == context["seen"]:
        return HttpResponse(status=204)
    return render(request, "review/_rescore_head.html", {"run": run, **context})


def _rescore(run: Run, pk: int) -> Rescore:
    rows = Rescore.objects.select_related("run__project", "version__verifier", "by", "job__node", "job__version")
    return get_object_or_404(rows.defer("job__result"), run=run, pk=pk)


def _frame(rescore: Rescore) -> dict[str, Any]:
    job = rescore.job
    settling = job.state == JobState.DONE and rescore.figures is None
    why = why_waits(job)
    parts = (job.state, job.fence, rescore.done, (job.progress or {}).get("phase"), job.cancel_asked, why)
    return {
        "rescore": rescore,
        "job": job,
        "live": job.state in OPEN or settling,
        "settling": settling,
        "seen": version_of(parts),
        "why": why,
        "left": seconds_left(rescore),
        "errors": sorted(rescore.errors.items(), key=lambda error: -error[1]["count"]),
    }
