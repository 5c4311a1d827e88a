"""Pages of evaluation suites. Fetch, authorise, call one service, render."""

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Project, Role
from cohort.catalog import suites
from cohort.catalog.models import EvalSuite
from cohort.catalog.suites import CATEGORIES, HARM, SAFETY, SCORERS
from cohort.web.access import form_page, may, project_for
from cohort.web.accounts.views import person
from cohort.web.catalog import selectors
from cohort.web.catalog.suite_forms import SuiteForm
from cohort.web.context import listed
from grpo_core.evaluate.suites.formats import FORMATS


@require_safe
def suite_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    context = {
        "suites": listed(request, selectors.suites(project), row=selectors.newest_suite_versions),
        "starters": selectors.starters_missing(project),
        "categories": CATEGORIES,
    }
    return render(request, "catalog/suites.html", context)


@require_POST
def suite_starters(request: HttpRequest, slug: str) -> HttpResponse:
    """`name`, any number of times: those starter suites; without one, all."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    try:
        done = suites.starters_add(project=project, actor=person(request), names=request.POST.getlist("name") or None)
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
        return redirect("suite_list", slug)
    if done.added:
        items = sum(version.items for version in done.added)
        count = len(done.added)
        messages.success(request, f"{count} starter suite{'s are' if count > 1 else ' is'} added, {items:,} items.")
    else:
        messages.info(request, "Nothing changed: the project has these starter suites already.")
    if done.in_the_way:
        named = ", ".join(done.in_the_way)
        messages.warning(request, f"Not added, because suites of your own have these names: {named}.")
    return redirect("suite_list", slug)


@require_safe
def suite_detail(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    project = project_for(request, slug)
    suite = selectors.suite(project, pk)
    every = selectors.suite_versions(suite)
    version = selectors.version_numbered(every, request.GET.get("version"))
    context = {
        "suite": suite,
        "versions": listed(request, every),
        "version": version,
        "category": CATEGORIES.get(version.category, version.category),
        "scorer_about": SCORERS.get(version.scorer["kind"], ""),
        "harm": HARM[version.higher_is],
        "safety": version.category in SAFETY,
        "may_read": not version.sensitive or may(request, project, Role.REVIEWER),
        "used": selectors.runs_with(suites=version),
    }
    return render(request, "catalog/suite.html", context)


@csrf_exempt
@form_page
def suite_new(request: HttpRequest, slug: str) -> HttpResponse:
    """The CSRF check comes after the check of the role, because it reads the upload."""
    return _new(request, project_for(request, slug, at_least=Role.OPERATOR), None)


@csrf_exempt
@form_page
def suite_version_new(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    return _new(request, project, selectors.suite(project, pk))


@csrf_protect
def _new(request: HttpRequest, project: Project, suite: EvalSuite | None) -> HttpResponse:
    form: SuiteForm
    if request.method == "POST":
        data = request.POST.copy()
        if suite is not None:
            data["name"] = suite.name
        form = SuiteForm(data, request.FILES)
        if form.is_valid() and (saved := _saved(request, project, suite, form)) is not None:
            return saved
    else:
        form = SuiteForm.from_version(selectors.suite_versions(suite)[0]) if suite is not None else SuiteForm()
    context = {"form": form, "suite": suite, "formats": FORMATS}
    return render(request, "catalog/suite_new.html", context, status=form.status)


def _saved(request: HttpRequest, project: Project, suite: EvalSuite | None, form: SuiteForm) -> HttpResponse | None:
    """Save and go to the suite's page; None when the form now shows what is wrong."""
    name = form.cleaned_data["name"]
    before = suites.newest_version(project, name)
    if suite is None and before is not None:
        form.add_error("name", f"The project has a suite named {name} already. Open it to add a version.")
        return None
    version = form.call(suites.suite_version_create, project=project, actor=person(request), **form.arguments())
    if version is None:
        return None
    if before is not None and version.pk == before.pk:
        messages.info(request, f"Nothing changed: version {version.number} is exactly this already.")
    else:
        messages.success(
            request, f"{version.title} version {version.number} is stored: {version.items:,} items, every one read."
        )
    return redirect("suite_detail", project.slug, version.suite_id)
