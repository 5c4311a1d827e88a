"""Pages of base models, datasets and rewards. Fetch, authorise, call one service, render."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from cohort.access import project_for
from cohort.accounts.models import Project, Role
from cohort.accounts.views import person
from cohort.catalog import selectors, services
from cohort.catalog.forms import BaseModelForm, DatasetForm, RewardForm, TryForm
from cohort.catalog.model_folder import folders_with_models
from cohort.catalog.models import Verifier, VerifierVersion
from cohort.contamination.selectors import of_dataset
from cohort.environment import environment
from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.rewards import Runner, Scored

FOLDERS_SHOWN = 200

form_page = require_http_methods(["GET", "HEAD", "POST"])


def _status(form: Any) -> int:
    return 422 if form.errors else 200


# ---------------------------------------------------------------- base models


@require_safe
def base_model_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    return render(request, "catalog/base_models.html", {"project": project, "models": selectors.base_models(project)})


@form_page
def base_model_new(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    form = BaseModelForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            model = services.base_model_register(project=project, actor=person(request), **form.cleaned_data)
        except ValidationError as error:
            form.take(error)
        else:
            messages.success(request, f"{model.name} is registered.")
            return redirect("base_model_detail", slug, model.pk)
    models_folder = environment().models_folder
    folders = folders_with_models(models_folder)
    context = {
        "project": project,
        "form": form,
        "folders": folders[:FOLDERS_SHOWN],
        "folders_found": len(folders),
        "models_folder": models_folder,
    }
    return render(request, "catalog/base_model_new.html", context, status=_status(form))


@require_safe
def base_model_detail(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    project = project_for(request, slug)
    model = selectors.base_model(project, pk)
    context = {
        "project": project,
        "model": model,
        "read": selectors.read_by_run(model),
        "used": selectors.runs_with(base_model=model),
    }
    return render(request, "catalog/base_model.html", context)


# ---------------------------------------------------------------- datasets


@require_safe
def dataset_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    return render(request, "catalog/datasets.html", {"project": project, "datasets": selectors.datasets(project)})


@csrf_exempt
@form_page
def dataset_new(request: HttpRequest, slug: str) -> HttpResponse:
    """The check for a forged form comes after that of the role, because it reads the upload."""
    return _dataset_new(request, project_for(request, slug, at_least=Role.OPERATOR))


@csrf_protect
def _dataset_new(request: HttpRequest, project: Project) -> HttpResponse:
    form = DatasetForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        try:
            dataset = services.dataset_create(
                project=project,
                actor=person(request),
                name=form.cleaned_data["name"],
                format=form.cleaned_data["format"],
                source=form.cleaned_data["source"],
                chunks=form.chunks(),
                file_name=form.file_name(),
            )
        except ValidationError as error:
            form.take(error)
        else:
            messages.success(request, f"{dataset.name} is stored: {dataset.problems:,} problems, every line read.")
            return redirect("dataset_detail", project.slug, dataset.pk)
    return render(request, "catalog/dataset_new.html", {"project": project, "form": form}, status=_status(form))


@require_safe
def dataset_detail(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    project = project_for(request, slug)
    dataset = selectors.dataset(project, pk)
    used, overlaps = selectors.runs_with_dataset(dataset), of_dataset(dataset)
    context = {"project": project, "dataset": dataset, "used": used, "overlaps": overlaps}
    return render(request, "catalog/dataset.html", context)


# ---------------------------------------------------------------- rewards


@require_safe
def verifier_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    return render(request, "catalog/verifiers.html", {"project": project, "verifiers": selectors.verifiers(project)})


@form_page
def verifier_new(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    form = RewardForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and not _changes_rows(request) and form.is_valid():
        name = form.head.cleaned_data["name"]
        if Verifier.objects.filter(project=project, name=name).exists():
            form.head.add_error("name", f"The project has a reward named {name} already. Open it to add a version.")
        elif (saved := _save_version(request, project, form)) is not None:
            return saved
    return _verifier_form(request, project, form)


@form_page
def verifier_version_new(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    verifier = selectors.verifier(project, pk)
    if request.method == "POST":
        data = request.POST.copy()
        data["name"], data["description"] = verifier.name, verifier.description
        form = RewardForm(data)
    else:
        newest = selectors.versions(verifier)[0]
        form = RewardForm(initial={"name": verifier.name, "description": verifier.description, **newest.spec})
    if request.method == "POST" and not _changes_rows(request) and form.is_valid():
        saved = _save_version(request, project, form)
        if saved is not None:
            return saved
    return _verifier_form(request, project, form, verifier)


def _save_version(request: HttpRequest, project: Project, form: RewardForm) -> HttpResponse | None:
    """Save and go to the reward's page; None when the form now shows what is wrong."""
    name = form.head.cleaned_data["name"]
    before = Verifier.objects.filter(project=project, name=name).values_list("versions__number", flat=True)
    known = set(before)
    try:
        version = services.verifier_version_create(
            project=project,
            actor=person(request),
            name=name,
            description=form.head.cleaned_data["description"],
            spec=form.spec(),
        )
    except ValidationError as error:
        form.take(error)
        return None
    if version.number in known:
        messages.info(request, f"Nothing changed: version {version.number} pays for exactly this already.")
    else:
        messages.success(request, f"{name} version {version.number} is saved. It never changes from now on.")
    return redirect("verifier_detail", project.slug, version.verifier_id)


def _changes_rows(request: HttpRequest) -> bool:
    """Without JavaScript the buttons that add and remove a component come here."""
    return "add_row" in request.POST or "remove_row" in request.POST


def _verifier_form(
    request: HttpRequest, project: Project, form: RewardForm, verifier: Verifier | None = None
) -> HttpResponse:
    if "add_row" in request.POST:
        form.add_row()
    elif "remove_row" in request.POST:
        form.remove_row(request.POST["remove_row"])
    context = {
        "project": project,
        "form": form,
        "verifier": verifier,
        "blank": RewardForm.blank(),
        "kinds": selectors.reward_kinds(),
    }
    return render(
        request, "catalog/verifier_new.html", context, status=200 if _changes_rows(request) else _status(form)
    )


@require_safe
def verifier_detail(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    project = project_for(request, slug)
    verifier = selectors.verifier(project, pk)
    return render(request, "catalog/verifier.html", _verifier_context(request, project, verifier))


@require_POST
def verifier_try(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Score one completion with one version.

    Here in the web process, which runs no code of users or models, only because the kinds that exist are our own
    pure functions of text and refuse what is costly. A kind that runs given code must be tried on a worker.
    """
    project = project_for(request, slug, at_least=Role.OPERATOR)
    verifier = selectors.verifier(project, pk)
    form = TryForm(request.POST)
    if "version" in form.errors:
        raise Http404
    scored = None
    if form.is_valid():
        version = verifier.versions.filter(number=form.cleaned_data["version"]).first()
        if version is None:
            raise Http404
        problem = Problem(id="tried", prompt=form.cleaned_data["prompt"], answer=form.cleaned_data["answer"])
        try:
            result = Runner(services.checked_rubric(version.spec)).one(problem, form.cleaned_data["completion"])
        except RewardError as error:
            form.add_error(None, str(error))
        else:
            scored = _scored(result, version)
    context = {"project": project, "verifier": verifier, "try_form": form, "scored": scored}
    if request.headers.get("HX-Request"):
        return render(request, "catalog/_try.html", context)
    return render(
        request, "catalog/verifier.html", _verifier_context(request, project, verifier) | context, status=_status(form)
    )


def _scored(result: Scored, version: VerifierVersion) -> dict[str, Any]:
    """A scored completion as the page shows it: the sum, and each component with its weight."""
    rows = [{"component": one, "score": result.components[one["name"]]} for one in version.spec["components"]]
    return {"reward": result.reward, "rows": rows, "on_error": version.spec["on_error"]}


def _verifier_context(request: HttpRequest, project: Project, verifier: Verifier) -> dict[str, Any]:
    every = selectors.versions(verifier)
    wanted = request.GET.get("version", "")
    version = next((one for one in every if str(one.number) == wanted), every[0])
    return {
        "project": project,
        "verifier": verifier,
        "versions": every,
        "version": version,
        "try_form": TryForm(initial={"version": version.number}),
        "scored": None,
        "used": selectors.runs_with(verifier_version=version),
    }
