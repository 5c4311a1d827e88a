"""Pipelines of a project: listed and shown to all, made, started, paused and changed by operators; their cards are
requested by reviewers and taken away by all."""

from functools import cached_property
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Role
from cohort.base import artifacts
from cohort.evaluations.stages import StageChange, run_changes
from cohort.evidence.stage_changes import TRAINED
from cohort.pipelines import services
from cohort.pipelines.models import Pipeline, PipelineStage
from cohort.pipelines.states import LIVE, pipeline_states
from cohort.records.models import PipelineCardRequest
from cohort.records.pipeline_requests import CardStages, card_stages, pipeline_card_request
from cohort.runs.models import Run
from cohort.web.access import call_service, file_response, form_page, project_for, redirect_to, streamed
from cohort.web.accounts.views import person
from cohort.web.audit.selectors import downloaded
from cohort.web.context import listed, render_polled, version_of
from cohort.web.fields import ServiceForm
from cohort.web.pipelines.picture import picture
from cohort.web.pipelines.scores import stage_scores
from grpo_core.errors import ConfigError
from grpo_core.pipeline.presets import pipeline_preset, pipeline_presets

MOST_TEXT = 200_000
"""Characters."""


class PipelineForm(ServiceForm):
    text = forms.CharField(
        label="Pipeline",
        max_length=MOST_TEXT,
        strip=False,
        help_text="YAML. Base models and datasets stand by their names in the project, rewards and suites as "
        "NAME@VERSION, outputs of earlier stages as stage: NAME (docs/pipeline.md).",
        widget=forms.Textarea(attrs={"rows": 28, "spellcheck": "false", "class": "mono"}),
    )


class StageForm(ServiceForm):
    text = forms.CharField(
        label="Fields",
        max_length=MOST_TEXT,
        strip=False,
        help_text="YAML of this stage alone. Changed, it is out of date with all that hang on it, until run again.",
        widget=forms.Textarea(attrs={"rows": 18, "spellcheck": "false", "class": "mono"}),
    )
    seen = forms.CharField(widget=forms.HiddenInput, max_length=64)
    """Digest of the pipeline that the page showed."""


def pipeline_for(request: HttpRequest, slug: str, pipeline_id: int, *, at_least: Role = Role.VIEWER) -> Pipeline:
    """Of the project, when the person's role reaches."""
    project = project_for(request, slug, at_least=at_least)
    rows = Pipeline.objects.select_related("created_by", "started_by", "project")
    return get_object_or_404(rows, project=project, pk=pipeline_id)


def stage_for(
    request: HttpRequest, slug: str, pipeline_id: int, stage: str, *, at_least: Role = Role.VIEWER
) -> PipelineStage:
    """Of the pipeline, when the person's role reaches."""
    pipeline = pipeline_for(request, slug, pipeline_id, at_least=at_least)
    row = get_object_or_404(PipelineStage, pipeline=pipeline, slug=stage)
    row.pipeline = pipeline
    return row


class PipelinePage:
    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.states = pipeline_states(pipeline)
        self._scores = stage_scores(self.states)

    @cached_property
    def picture(self) -> Any:
        first = {slug: scores[0].words for slug, scores in self._scores.items() if scores}
        return picture(self.pipeline.parsed_config, self.states, first)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        inputs = self.pipeline.parsed_config.inputs
        return [
            {"now": now, "inputs": inputs[slug], "scores": self._scores.get(slug, ())}
            for slug, now in self.states.items()
        ]

    @property
    def finished(self) -> bool:
        """Whether every stage has run, of what it is now: there is nothing to start or to pause."""
        return all(now.state == "finished" for now in self.states.values())

    @cached_property
    def ready(self) -> CardStages:
        return card_stages(self.states)

    @cached_property
    def cards(self) -> list[PipelineCardRequest]:
        """Every request for a card, the newest first."""
        return list(self.pipeline.card_requests.select_related("card", "by"))

    @property
    def pending(self) -> bool:
        return any(request.waits for request in self.cards)

    @cached_property
    def trained(self) -> dict[str, Run]:
        """By stage, the runs whose weights can be compared."""
        return {
            slug: now.run
            for slug, now in self.states.items()
            if now.run is not None and now.state == "finished" and now.run.kind in TRAINED
        }

    @cached_property
    def changes(self) -> list[StageChange]:
        """What each finished stage of a chain of weights changed, and each chain from its beginning to its end."""
        config, runs = self.pipeline.parsed_config, self.trained
        begins_from = {
            run.pk: runs[reference.stage].pk
            for slug, run in runs.items()
            for reference in config.stage(slug).references
            if reference.path == "model.stage" and reference.stage in runs
        }
        return run_changes(list(runs.values()), begins_from) if runs else []

    @property
    def live(self) -> int:
        return sum(now.state in LIVE for now in self.states.values())

    @property
    def version(self) -> str:
        """Changes when anything that is shown has changed."""
        parts: list[Any] = [self.pipeline.active, self.pipeline.digest, self.ready.lacks]
        parts += [(request.pk, request.card_id, request.fault) for request in self.cards]
        for slug, now in self.states.items():
            run, output = now.run, now.output
            shown = None if run is None else (run.pk, run.state, run.desired, run.step, run.steps_total)
            parts.append((slug, now.state, now.reason, shown, output.words if output else "", self._scores.get(slug)))
        return version_of(parts)


@require_safe
def pipeline_list(request: HttpRequest, slug: str) -> HttpResponse:
    """Newest first."""
    project = project_for(request, slug)
    rows = Pipeline.objects.filter(project=project).select_related("created_by").annotate(count=Count("stages"))
    return render(request, "pipelines/list.html", {"pipelines": listed(request, rows.order_by("-pk"))})


@form_page
def pipeline_new(request: HttpRequest, slug: str) -> HttpResponse:
    """From a preset, whose YAML the form begins with, or from a text; nothing is launched."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    preset = None
    if name := request.GET.get("preset"):
        try:
            preset = pipeline_preset(name)
        except ConfigError as error:
            messages.error(request, str(error))
    if request.method == "POST":
        form = PipelineForm(request.POST)
        if form.is_valid():
            pipeline = form.call(services.pipeline_create, project=project, actor=person(request), **form.cleaned_data)
            if pipeline is not None:
                messages.success(request, f"The pipeline {pipeline.name} is made. Nothing runs until it is started.")
                return redirect("pipeline_detail", slug, pipeline.pk)
    else:
        form = PipelineForm(initial={"text": preset.text if preset else ""})
    context = {"form": form, "presets": pipeline_presets(), "preset": preset}
    return render(request, "pipelines/new.html", context, status=form.status)


@require_safe
def pipeline_detail(request: HttpRequest, slug: str, pipeline_id: int) -> HttpResponse:
    """The picture and the table of stages. With `v` these alone, for a poll."""
    page = PipelinePage(pipeline_for(request, slug, pipeline_id))
    context = {"page": page, "pipeline": page.pipeline}
    return render_polled(request, "pipelines/page.html", "pipelines/_live.html", context)


@require_safe
def pipeline_file(request: HttpRequest, slug: str, pipeline_id: int) -> HttpResponse:
    """Its YAML."""
    pipeline = pipeline_for(request, slug, pipeline_id)
    return file_response(pipeline.parsed_config.to_yaml(), "application/yaml", f"pipeline-{pipeline.pk}.yaml")


@require_POST
def pipeline_start(request: HttpRequest, slug: str, pipeline_id: int) -> HttpResponse:
    pipeline = pipeline_for(request, slug, pipeline_id, at_least=Role.OPERATOR)
    done = f"{pipeline.name} is started: each stage begins once its inputs are there."
    override = request.POST.get("override", "")
    call_service(request, services.pipeline_start, done, pipeline=pipeline, override=override)
    return redirect_to(request, "pipeline_detail", slug, pipeline.pk)


@require_POST
def pipeline_pause(request: HttpRequest, slug: str, pipeline_id: int) -> HttpResponse:
    pipeline = pipeline_for(request, slug, pipeline_id, at_least=Role.OPERATOR)
    done = f"{pipeline.name} is paused: no stage begins, and its runs stop at a checkpoint."
    call_service(request, services.pipeline_pause, done, pipeline=pipeline)
    return redirect_to(request, "pipeline_detail", slug, pipeline.pk)


@require_POST
def pipeline_card_make(request: HttpRequest, slug: str, pipeline_id: int) -> HttpResponse:
    pipeline = pipeline_for(request, slug, pipeline_id, at_least=Role.REVIEWER)
    done = "The pipeline's card is being made. It is shown here once it is."
    call_service(request, pipeline_card_request, done, pipeline=pipeline)
    return redirect_to(request, "pipeline_detail", slug, pipeline_id)


@require_safe
def pipeline_card_download(request: HttpRequest, slug: str, pipeline_id: int, card_id: int) -> HttpResponseBase:
    """The zip. It holds public cards alone, so that every member may have it."""
    pipeline = pipeline_for(request, slug, pipeline_id)
    made = get_object_or_404(PipelineCardRequest.objects.select_related("card"), pipeline=pipeline, card=card_id)
    card = made.card
    if card is None or not artifacts.exists(card.artifact):
        raise Http404("the file of this card is no longer stored")
    downloaded(
        request,
        kind="pipeline_card_downloaded",
        subject=f"pipeline:{pipeline.pk}",
        project=pipeline.project,
        data={"seal": card.seal, "sha256": card.sha256},
    )
    name = f"pipeline-{pipeline.pk}-{card.seal[:16]}.zip"
    response = streamed(artifacts.read_chunks(card.artifact), "application/zip", name)
    response["Content-Length"] = str(card.size)
    return response


@form_page
def stage_detail(request: HttpRequest, slug: str, pipeline_id: int, stage: str) -> HttpResponse:
    """Every member sees a stage's fields, state and runs; an operator changes the fields."""
    least = Role.OPERATOR if request.method == "POST" else Role.VIEWER
    row = stage_for(request, slug, pipeline_id, stage, at_least=least)
    first = {"text": services.stage_text(row), "seen": row.pipeline.digest}
    form = StageForm(request.POST) if request.method == "POST" else StageForm(initial=first)
    if request.method == "POST" and form.is_valid():
        form.call(services.stage_change, stage=row, actor=person(request), **form.cleaned_data)
        if form.is_valid():
            messages.success(request, f"{row.slug} has other fields now.")
            return redirect("stage_detail", slug, pipeline_id, row.slug)
    page = PipelinePage(row.pipeline)
    context = {
        "form": form,
        "stage": row,
        "pipeline": row.pipeline,
        "now": page.states[row.slug],
        "below": [name for name in row.pipeline.parsed_config.below(row.slug) if name != row.slug],
        "runs": row.runs.select_related("run").order_by("-pk"),
    }
    return render(request, "pipelines/stage.html", context, status=form.status)


@require_POST
def stage_start(request: HttpRequest, slug: str, pipeline_id: int, stage: str) -> HttpResponse:
    row = stage_for(request, slug, pipeline_id, stage, at_least=Role.OPERATOR)
    call_service(request, services.stage_start, f"{row.slug} is launched.", stage=row)
    return redirect_to(request, "pipeline_detail", slug, pipeline_id)


@require_POST
def stage_retry(request: HttpRequest, slug: str, pipeline_id: int, stage: str) -> HttpResponse:
    row = stage_for(request, slug, pipeline_id, stage, at_least=Role.OPERATOR)
    call_service(request, services.stage_retry, f"{row.slug} is tried again.", stage=row)
    return redirect_to(request, "pipeline_detail", slug, pipeline_id)


@require_POST
def stage_again(request: HttpRequest, slug: str, pipeline_id: int, stage: str) -> HttpResponse:
    row = stage_for(request, slug, pipeline_id, stage, at_least=Role.OPERATOR)
    done = f"{row.slug} and all that hang on it are run again; earlier runs stay."
    call_service(request, services.stage_again, done, stage=row)
    return redirect_to(request, "pipeline_detail", slug, pipeline_id)
