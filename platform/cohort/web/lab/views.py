"""Pages of the reward lab where jobs are requested. Fetch, authorise, call one service, render.

One completion is scored here in the web process where the reward is made of our own rules alone; everything else is a
job of a worker.
"""

import json
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Project, Role
from cohort.base.formatting import natural
from cohort.catalog.models import VerifierVersion
from cohort.catalog.services import SpecInvalid, checked_rubric
from cohort.lab import services
from cohort.lab.models import ChatAnswer, LabJob
from cohort.web.access import form_page, project_for, redirect_to
from cohort.web.accounts.views import person
from cohort.web.catalog import selectors as catalog
from cohort.web.catalog.reward_examples import EXAMPLES
from cohort.web.catalog.reward_form import RewardForm
from cohort.web.context import listed
from cohort.web.lab.forms import FORMS, BestOfNForm, ProbeForm, RowsForm, SampleForm, TryForm
from cohort.web.lab.job_views import JOB_ROWS
from grpo_core.data.lines import parse_json
from grpo_core.data.problem import Problem
from grpo_core.errors import ConfigError, RewardError
from grpo_core.rewards import Rubric, Runner, Scored

JOBS_SHOWN = 25
SCORED_HERE = 8_000
"""Most characters of a try that the web process itself scores, by rules alone, which take time linear in the text and
in the number of references; a longer one is a job."""


@dataclass(frozen=True)
class Subject:
    rubric: Rubric
    version: VerifierVersion | None

    @property
    def spec(self) -> dict[str, Any]:
        return self.version.spec if self.version else self.rubric.config.model_dump(mode="json")

    @property
    def hidden(self) -> tuple[str, str]:
        """Name and value of the hidden field that identifies in a form what is tried."""
        return ("version", str(self.version.pk)) if self.version else ("spec", json.dumps(self.spec))


def of_version(version: VerifierVersion) -> Subject:
    return Subject(checked_rubric(version.spec), version)


def posted(request: HttpRequest, project: Project) -> Subject:
    """What a form of the lab sent: the id of a version of this project, or a whole spec. 404 for anything else: no
    page of ours sends it."""
    if "version" in request.POST:
        versions = VerifierVersion.objects.filter(verifier__project=project).select_related("verifier")
        return of_version(get_object_or_404(versions, pk=natural(request.POST["version"]) or 0))
    try:
        spec = parse_json(request.POST.get("spec", ""))
        return Subject(checked_rubric(spec), None)
    except (ValueError, RecursionError, SpecInvalid):
        raise Http404 from None


@require_safe
def lab_home(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    rewards = listed(request, catalog.verifiers(project), row=catalog.with_newest)
    context = {"rewards": rewards, "jobs": jobs_of(project), "examples": EXAMPLES, "answer": _answer(request, project)}
    return render(request, "lab/home.html", context)


def _answer(request: HttpRequest, project: Project) -> ChatAnswer | None:
    """The answer of a chat that is to be scored, which the address names by `answer`."""
    rows = ChatAnswer.objects.filter(message__conversation__project=project, message__redacted_at=None, error="")
    return rows.select_related("message").filter(pk=natural(request.GET.get("answer")) or 0).first()


@require_safe
def verifier_lab(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """The lab of a version (`version`, else the newest); `dataset` is what the forms begin with, `answer` one of a chat
    that is to be scored, `find` a part of the names that long lists offer."""
    project = project_for(request, slug)
    verifier = catalog.verifier(project, pk)
    every = catalog.versions(verifier)
    version = catalog.version_numbered(every, request.GET.get("version"))
    answer = _answer(request, project)
    given = {"prompt": answer.message.text, "completion": answer.text} if answer is not None else {}
    return _lab(
        request, project, of_version(version), try_form=TryForm(initial=given), find=request.GET.get("find", "")
    )


@form_page
def lab_draft(request: HttpRequest, slug: str) -> HttpResponse:
    """The lab of a draft: the fields of the reward's form, or a whole `spec`."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    if request.method != "POST":
        return redirect("verifier_new", slug)
    if "spec" in request.POST:
        return _lab(request, project, posted(request, project), find=request.POST.get("find", ""))
    data = request.POST.copy()
    data["name"] = data.get("name", "") or "draft"
    form = RewardForm(data)
    if not form.other_kinds and form.is_valid():
        try:
            return _lab(request, project, Subject(checked_rubric(form.spec()), None))
        except SpecInvalid as error:
            form.take(error)
    form.show_kinds()
    verifier = catalog.verifiers(project).filter(pk=natural(request.POST.get("verifier", "")) or 0).first()
    context = {"form": form, "verifier": verifier, "blank": form.blank(), "examples": EXAMPLES}
    return render(request, "catalog/verifier_new.html", context, status=422)


@require_POST
def verifier_try(request: HttpRequest, slug: str) -> HttpResponse:
    """Score one pasted completion: at once with rules alone, else as a job."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    chosen = posted(request, project)
    form = TryForm(request.POST)
    scored = None
    if form.is_valid():
        if not chosen.rubric.rules_alone or form.chars > SCORED_HERE:
            return _submit_job(request, project, chosen, "try", form)
        try:
            scored = _scored(chosen, form.text())
        except RewardError as error:
            form.add_error(None, str(error))
    return _tried(request, project, chosen, form, scored)


def _tried(
    request: HttpRequest, project: Project, chosen: Subject, form: TryForm, scored: dict[str, Any] | None
) -> HttpResponse:
    if request.htmx:  # type: ignore[attr-defined]
        return render(request, "lab/_try.html", {"subject": chosen, "try_form": form, "scored": scored})
    return _lab(request, project, chosen, try_form=form, scored=scored, status=form.status)


def _scored(chosen: Subject, text: dict[str, Any]) -> dict[str, Any]:
    """A scored completion as the page shows it: the sum, and each component with its weight."""
    problem = Problem(id="tried", prompt=text["prompt"], answer=text["answer"], meta=text["meta"])
    result: Scored = Runner(chosen.rubric).score_one(problem, text["completion"])
    components = chosen.spec["components"]
    rows = [
        {"component": component, "score": result.components[component["name"]]}
        for component in components
        if component["name"] in result.components
    ]
    return {"reward": result.reward, "rows": rows}


@require_POST
def lab_ask(request: HttpRequest, slug: str) -> HttpResponse:
    """A job: `what` is rows, sample, probe or best."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    chosen = posted(request, project)
    what = request.POST.get("what", "")
    if what not in FORMS:
        return redirect("lab_home", slug)
    form = FORMS[what](project, request.POST)
    if not form.is_valid():
        return _lab(request, project, chosen, status=422, faulty=(what, form))
    return _submit_job(request, project, chosen, what, form)


def _submit_job(request: HttpRequest, project: Project, chosen: Subject, what: str, form: Any) -> HttpResponse:
    """Request the job and go to its page; back to the form where it is refused."""
    try:
        given = {**form.job_arguments(), **({"version": chosen.version} if chosen.version else {"spec": chosen.spec})}
        job = services.job_request(project=project, actor=person(request), kind=form.kind, **given)
    except ConfigError as error:
        if isinstance(form, TryForm):
            for problem in error.problems:
                form.add_error(None, problem.message)
            return _tried(request, project, chosen, form, None)
        form.take_config(error)
        return _lab(request, project, chosen, status=422, faulty=(what, form))
    return redirect_to(request, "lab_job", project.slug, job.pk)


def _lab(
    request: HttpRequest,
    project: Project,
    chosen: Subject,
    *,
    status: int = 200,
    scored: dict[str, Any] | None = None,
    try_form: TryForm | None = None,
    faulty: tuple[str, Any] | None = None,
    find: str = "",
) -> HttpResponse:
    """`faulty`: name and form of what was refused, shown again with what is wrong."""
    version = chosen.version
    versions = catalog.offered(catalog.versions(version.verifier), version) if version is not None else []
    initial = {"dataset": natural(request.GET.get("dataset", "")) or _newest(catalog.datasets(project))}
    sampled = {**initial, "base_model": _newest(catalog.base_models(project))}
    context = {
        "subject": chosen,
        "versions": versions,
        "probes": catalog.probes_of(version) if version else [],
        "jobs": jobs_of(project, version) if version else None,
        "scored": scored,
        "try_form": try_form or TryForm(),
        "rows_form": RowsForm(project, initial=initial, find=find),
        "sample_form": SampleForm(project, initial=sampled, find=find),
        "best_form": BestOfNForm(project, initial=sampled, find=find),
        "probe_form": ProbeForm(project, initial=initial, find=find),
        "find": find,
        "offered": catalog.OFFERED,
        **({f"{faulty[0]}_form": faulty[1]} if faulty else {}),
    }
    return render(request, "lab/lab.html", context, status=status)


def jobs_of(project: Project, version: VerifierVersion | None = None) -> dict[str, Any]:
    """The newest jobs, and how many there are in all."""
    rows = LabJob.objects.filter(project=project)
    if version is not None:
        rows = rows.filter(version=version)
    light = rows.defer("result", "options", "log_tail").select_related(*JOB_ROWS)
    return {"rows": list(light.order_by("-id")[:JOBS_SHOWN]), "total": rows.count()}


def _newest(rows: QuerySet[Any]) -> int | None:
    return rows.order_by("-id").values_list("pk", flat=True).first()
