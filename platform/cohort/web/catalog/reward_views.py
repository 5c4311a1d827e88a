"""Pages of rewards: their list, their form, their versions. Fetch, authorise, call one service, render.

Nothing given by a person or a model is executed here: source is only parsed. Trying a reward is the lab's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Project, Role
from cohort.base.formatting import natural
from cohort.catalog import services
from cohort.catalog.models import Verifier, VerifierVersion
from cohort.lab.models import VerifierProbe
from cohort.runs.trained_rewards import TrainedReward, trained_rewards
from cohort.web.access import form_page, project_for
from cohort.web.accounts.views import person
from cohort.web.catalog import reward_versions, selectors
from cohort.web.catalog.reward_examples import EXAMPLES
from cohort.web.catalog.reward_form import ComponentForm, RewardForm
from cohort.web.context import listed
from grpo_core.data.lines import parse_json
from grpo_core.rewards import KINDS

CASES = 10
"""Probe cases on one page."""


@require_safe
def verifier_list(request: HttpRequest, slug: str) -> HttpResponse:
    verifiers = listed(request, selectors.verifiers(project_for(request, slug)), row=selectors.with_newest)
    return render(request, "catalog/verifiers.html", {"verifiers": verifiers})


@form_page
def verifier_new(request: HttpRequest, slug: str) -> HttpResponse:
    """`?example=` begins with one of the examples; `from_spec` continues with a draft that the lab was shown."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    if "from_spec" in request.POST:
        return _show_form(request, RewardForm(initial=_draft(request.POST["from_spec"])))
    if request.method == "POST":
        form = RewardForm(request.POST)
    else:
        chosen = next((example for example in EXAMPLES if example.id == request.GET.get("example")), None)
        form = RewardForm(initial={"name": chosen.name, "description": chosen.about, **chosen.spec} if chosen else None)
    return _verifier_form(request, project, form)


@form_page
def verifier_version_new(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """`?from=` is the number of the version that the form begins with; else the newest."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    verifier = selectors.verifier(project, pk)
    if request.method == "POST":
        data = request.POST.copy()
        data["name"], data["description"] = verifier.name, verifier.description
        form = RewardForm(data)
    else:
        start = selectors.version_numbered(selectors.versions(verifier), request.GET.get("from"))
        form = RewardForm(initial={"name": verifier.name, "description": verifier.description, **start.spec})
    return _verifier_form(request, project, form, verifier)


def _draft(text: str) -> dict[str, Any]:
    """404 for what is no reward: no page of ours sends it."""
    try:
        return services.checked_rubric(parse_json(text)).config.model_dump(mode="json")
    except (ValueError, RecursionError, services.SpecInvalid):
        raise Http404 from None


def _verifier_form(
    request: HttpRequest, project: Project, form: RewardForm, verifier: Verifier | None = None
) -> HttpResponse:
    """Save what was sent and go to the reward's page; else the form, which shows what is wrong."""
    if request.method == "POST" and not _changes_rows(request, form) and form.is_valid():
        saved = _save_version(request, project, form, verifier)
        if saved is not None:
            return saved
    return _show_form(request, form, verifier)


def _save_version(
    request: HttpRequest, project: Project, form: RewardForm, verifier: Verifier | None
) -> HttpResponse | None:
    """None when the form now shows what is wrong."""
    name = form.head.cleaned_data["name"]
    known = set(Verifier.objects.filter(project=project, name=name).values_list("versions__number", flat=True))
    if known and verifier is None:
        form.head.add_error("name", f"The project has a reward named {name} already. Open it to add a version.")
        return None
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
        messages.info(request, f"Nothing changed: version {version.number} rewards exactly this already.")
    else:
        messages.success(request, f"{name} version {version.number} is saved. It never changes from now on.")
    return redirect("verifier_detail", project.slug, version.verifier_id)


def _changes_rows(request: HttpRequest, form: RewardForm) -> bool:
    """Without JavaScript the buttons that add and remove a component come here, and a kind that was changed."""
    return bool({"add_row", "remove_row", "show_kind"} & request.POST.keys()) or form.other_kinds


def _show_form(request: HttpRequest, form: RewardForm, verifier: Verifier | None = None) -> HttpResponse:
    changed = request.method == "POST" and _changes_rows(request, form)
    other = form.other_kinds
    if changed:
        form.show_kinds()
    if "add_row" in request.POST:
        form.add_row()
    elif "remove_row" in request.POST:
        form.remove_row(request.POST["remove_row"])
    status = 422 if form.errors and not changed else 200
    context = {"form": form, "verifier": verifier, "blank": form.blank(), "examples": EXAMPLES, "other_kind": other}
    return render(request, "catalog/verifier_new.html", context, status=status)


@require_POST
def component_fields(request: HttpRequest, slug: str) -> HttpResponse:
    """One component's row with the fields of the kind that was just chosen; `row` is its number."""
    project_for(request, slug, at_least=Role.OPERATOR)
    row = ComponentForm(request.POST, prefix=f"component-{_row_number(request)}")
    made = row.of_kind(request.POST.get(row.add_prefix("kind"), ""))
    return render(request, "catalog/_component.html", {"row": made})


@require_POST
def component_check(request: HttpRequest, slug: str) -> HttpResponse:
    """What is wrong with the source of one component, as one types; parsed, never run."""
    project_for(request, slug, at_least=Role.OPERATOR)
    row = ComponentForm(request.POST, prefix=f"component-{_row_number(request)}")
    context = {"row": row, "faults": row.source_faults, "checked": True}
    return render(request, "catalog/_source_messages.html", context)


def _row_number(request: HttpRequest) -> str:
    number = request.POST.get("row", "")
    return number if number.isascii() and number.isdecimal() and len(number) <= 6 else "0"


@require_safe
def verifier_detail(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    project = project_for(request, slug)
    verifier = selectors.verifier(project, pk)
    every = selectors.versions(verifier)
    version = selectors.version_numbered(every, request.GET.get("version"))
    context = {
        "verifier": verifier,
        "versions": listed(request, every, row=partial(_with_measures, project)),
        "version": version,
        "trained": trained_rewards(project, [version])[version.pk],
        "older": every.filter(number__lt=version.number).first(),
        "components": reward_versions.components_shown(version),
        "limits": version.spec.get("limits"),
        "kinds": KINDS,
        "probes": selectors.probes_of(version),
        "probe_cases": listed(
            request, verifier.probe_cases.select_related("created_by").order_by("-pk"), CASES, name="cases"
        ),
        "launches": selectors.launches_of(version),
        "used": selectors.runs_with(verifier_version=version),
        "judged": selectors.runs_with(eval_verifier_version=version),
        "used_by_all": selectors.runs_with(verifier_version__verifier=verifier),
    }
    return render(request, "catalog/verifier.html", context)


def _with_measures(
    project: Project, versions: Sequence[VerifierVersion]
) -> list[tuple[VerifierVersion, VerifierProbe | None, list[TrainedReward]]]:
    """Each with its newest probe, and with the reward models in it that runs trained."""
    probed, trained = selectors.newest_probes(versions), trained_rewards(project, versions)
    return [(version, probed.get(version.pk), trained[version.pk]) for version in versions]


@require_safe
def verifier_compare(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Two versions (`from`, `to`) side by side; without them the newest and the one before it."""
    project = project_for(request, slug)
    verifier = selectors.verifier(project, pk)
    every = selectors.versions(verifier)
    after = selectors.version_numbered(every, request.GET.get("to"))
    earlier = every.filter(number__lt=after.number).first() or after
    before = every.filter(number=natural(request.GET.get("from")) or 0).first() or earlier
    context = {
        "verifier": verifier,
        "versions": selectors.offered(every, before, after),
        "before": before,
        "after": after,
        "difference": reward_versions.difference(before, after),
        "used_before": selectors.runs_with(verifier_version=before),
        "used_after": selectors.runs_with(verifier_version=after),
    }
    return render(request, "catalog/verifier_compare.html", context)
