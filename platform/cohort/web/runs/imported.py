"""Runs that other trainers made: the form that imports their completions, their list, and what is known of each."""

from pathlib import Path
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_safe

from cohort.accounts.models import Project, Role
from cohort.audit import services as audit
from cohort.base.scratch import scratch_folder
from cohort.evidence import dsse
from cohort.ingest.imported_runs import imported_run_create
from cohort.review.imports.rows import LARGEST, MAX_SAMPLES, SourceFile
from cohort.review.models import RunImport
from cohort.runs.models import Run, RunOrigin
from cohort.web.access import file_response, form_page, project_for, reviewed_run_for
from cohort.web.accounts.views import person
from cohort.web.catalog.suite_forms import FilesField, plain
from cohort.web.context import listed
from cohort.web.fields import ServiceForm
from cohort.web.runs.header import Header

SENTENCE = (
    "Cohort did not observe how this run was trained. It holds the completions that a person imported from files of "
    "another trainer, as those files state them."
)
PREDICATE_TYPE = "urn:cohort:imported-run:1"
FILES = 50
"""Of a run on one page."""


class RunImportForm(ServiceForm):
    name = forms.CharField(max_length=120, help_text="What the list calls the run.")
    format = forms.ChoiceField(choices=RunImport.Format.choices, label="Format")
    upload = FilesField(
        label="Files",
        allow_empty_file=True,
        help_text="All files of the run at once: completions_….parquet of TRL (log_completions), ….jsonl of verl "
        f"(rollout_data_dir), or one log of Inspect. 256 MiB and {MAX_SAMPLES:,} completions at most.",
    )
    weights = forms.CharField(
        required=False,
        max_length=2000,
        label="Reward weights",
        help_text="Such as accuracy_reward=1, format_reward=0.2. Columns left out count 0. Empty: TRL's columns count "
        "1 each, of verl the score, of Inspect the first scorer.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    right = forms.CharField(
        required=False,
        max_length=100,
        label="Column that means right",
        help_text="Empty: only what Inspect scores as correct or incorrect is right or wrong.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    right_from = forms.FloatField(
        required=False, label="Right from", help_text="Smallest value of that column that counts as right."
    )

    def clean_weights(self) -> dict[str, float]:
        weights: dict[str, float] = {}
        for part in filter(str.strip, self.cleaned_data["weights"].split(",")):
            name, equals, text = part.rpartition("=")
            name = name.strip()
            try:
                weight = float(text)
            except ValueError:
                equals, weight = "", 0.0
            if not equals or not name or not abs(weight) <= LARGEST:
                raise ValidationError(f"{part.strip()[:60]!r} is no weight. Write name=number, with commas between.")
            if name in weights:
                raise ValidationError(f"{name!r} has two weights.")
            weights[name] = weight
        if weights and not any(weights.values()):
            raise ValidationError("At least one weight must be other than 0.")
        return weights


@csrf_exempt
@form_page
def imported_run_new(request: HttpRequest, slug: str) -> HttpResponse:
    """The CSRF check comes after the check of the role, because it reads the upload."""
    return _new(request, project_for(request, slug, at_least=Role.OPERATOR))


@csrf_protect
def _new(request: HttpRequest, project: Project) -> HttpResponse:
    form = RunImportForm(request.POST, request.FILES) if request.method == "POST" else RunImportForm()
    if request.method == "POST" and form.is_valid():
        chosen = dict(form.cleaned_data)
        with scratch_folder("imports") as folder:
            files = [_on_disk(upload, folder, at) for at, upload in enumerate(chosen.pop("upload"))]
            run = form.call(imported_run_create, project=project, actor=person(request), files=files, **chosen)
        if run is not None:
            messages.success(request, f"{run.imported_from.samples:,} completions are imported.")
            return redirect("run_samples", project.slug, run.pk)
    return render(request, "runs/imported_new.html", {"form": form}, status=form.status)


def _on_disk(upload: Any, folder: Path, at: int) -> SourceFile:
    path = folder / str(at)
    with path.open("wb") as written:
        for chunk in upload.chunks():
            written.write(chunk)
    return SourceFile(plain(upload.name, 200), path)


@require_safe
def imported_run_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    rows = Run.every.filter(project=project, origin=RunOrigin.IMPORTED).select_related("imported_from", "created_by")
    runs = listed(request, rows.defer("config", "log_tail").order_by("-pk"))
    return render(request, "runs/imported_list.html", {"runs": runs})


def imported_record(request: HttpRequest, run: Run) -> HttpResponse:
    """The first page of an imported run, in place of the overview of one that was trained here."""
    source = run.imported_from
    context = {"source": source, "files": listed(request, source.files, FILES), "sentence": SENTENCE}
    return render(request, "runs/imported_record.html", Header(run).context("record", **context))


@require_safe
def run_imported_statement(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """What is known of an imported run: an in-toto statement about its files, signed by the key of the log."""
    run = reviewed_run_for(request, slug, run_id)
    source = get_object_or_404(RunImport.objects.select_related("by"), run=run)
    known = {
        "statement": SENTENCE,
        "origin": run.get_origin_display().lower(),
        "run": run.pk,
        "name": run.name,
        "project": run.project.slug,
        "format": source.format,
        "files": source.files,
        "imported_by": source.by.username,
        "imported_at": source.at.isoformat(),
        "steps": source.steps,
        "groups": source.groups,
        "samples": source.samples,
        "reward": source.reward_rule,
        "stated_by_the_files": source.facts,
        "not_stated": source.not_stated,
        "left_out": source.left_out,
    }
    files = {file["name"]: file["sha256"] for file in source.files}
    signed = dsse.envelope(dsse.statement(files, PREDICATE_TYPE, known), dsse.PAYLOAD_TYPE, audit.signing_key())
    return file_response(signed, "application/json", f"imported-run-{run.pk}.dsse.json")
