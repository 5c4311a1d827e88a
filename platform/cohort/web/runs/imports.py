"""Uploading what other evaluation tools measured of a run's weights."""

import re

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods

from cohort.accounts.models import Role
from cohort.evaluations.imports import Upload
from cohort.evaluations.services import results_import
from cohort.runs.models import ImportedResult, Run
from cohort.web.access import run_for
from cohort.web.accounts.views import person
from cohort.web.catalog.forms import CatalogForm
from cohort.web.catalog.suite_forms import FilesField
from cohort.web.runs.header import run_header


class ImportForm(CatalogForm):
    phase = forms.ChoiceField(
        choices=[("", "choose"), *ImportedResult.Phase.choices],
        label="Weights that were measured",
        help_text="Cohort cannot see which weights the tool loaded: this is your word, and is shown as such.",
    )
    upload = FilesField(
        label="Files",
        allow_empty_file=True,
        help_text="A log of Inspect (.eval or .json), or results_….json of lm-evaluation-harness with any of its "
        "samples_….jsonl. 64 MiB at most.",
    )


@csrf_exempt
@require_http_methods(["GET", "HEAD", "POST"])
def run_import(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """The check for a forged form comes after that of the role, because it reads the upload."""
    return _import(request, run_for(request, slug, run_id, at_least=Role.OPERATOR))


@csrf_protect
def _import(request: HttpRequest, run: Run) -> HttpResponse:
    form = ImportForm(request.POST, request.FILES) if request.method == "POST" else ImportForm()
    if request.method == "POST" and form.is_valid():
        given = [Upload(_plain(upload.name), upload.read()) for upload in form.cleaned_data["upload"]]
        try:
            rows = results_import(run=run, actor=person(request), phase=form.cleaned_data["phase"], uploads=given)
        except ValidationError as error:
            form.take(error)
        else:
            count = f"{len(rows):,} result{'s are' if len(rows) != 1 else ' is'}"
            messages.success(request, f"{count} imported, as stated.")
            return redirect("run_evaluations", run.project.slug, run.pk)
    context = {"project": run.project, "run": run, "header": run_header(run), "tab": "evaluations", "form": form}
    return render(request, "runs/import.html", context, status=422 if form.errors else 200)


def _plain(name: str | None) -> str:
    """A file's name as messages and rows may hold it."""
    return re.sub(r"[^\w.() -]+", "_", name or "file")[-200:]
