"""A judged sample as a probe case, a suite's item or part of preference pairs: what will be made is shown first."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Role
from cohort.catalog.models import ProbeCase, Verifier
from cohort.catalog.probe_cases import probe_case_remove
from cohort.lab.models import ChatAnswer
from cohort.records.cards.data_files import line
from cohort.review import uses
from cohort.review.figures import newest_annotations
from cohort.review.models import Sample
from cohort.review.preferences import pairs_by_group, preference_pairs, preferences_dataset_create
from cohort.runs.models import Run
from cohort.web.access import form_page, may, project_for, redirect_to, reviewed_run_for
from cohort.web.accounts.views import person
from cohort.web.audit.selectors import downloaded
from cohort.web.catalog import selectors as catalog
from cohort.web.fields import ServiceForm
from cohort.web.lab.model_forms import SuiteRowForm
from cohort.web.review.judging import shows_samples


class ProbeCaseForm(ServiceForm):
    verifier = forms.ModelChoiceField(Verifier.objects.none(), label="Reward", empty_label="choose")

    def __init__(self, project: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["verifier"]
        field.queryset = Verifier.objects.filter(project=project).order_by("name")


class AnswerCaseForm(ProbeCaseForm):
    target = forms.CharField(label="Right answer", max_length=10_000)


class SampleSuiteForm(SuiteRowForm):
    reason = forms.CharField(
        label="Reason",
        max_length=2000,
        help_text="Why a problem that this run trained on becomes an item: a later score on it may be remembered.",
    )


@form_page
@shows_samples
def sample_use(request: HttpRequest, slug: str, run_id: int, group_id: int, index: int) -> HttpResponse:
    """What can be made of the sample; POST `action` makes it: `case` or `suite`, which needs an operator."""
    run = reviewed_run_for(request, slug, run_id, at_least=Role.REVIEWER)
    samples = Sample.objects.select_related("group__run__project", "group__run__dataset")
    sample = get_object_or_404(samples, group__run=run, group=group_id, index=index)
    action = request.POST.get("action") if request.method == "POST" else None
    verifier = run.verifier_version.verifier_id if run.verifier_version else None
    case = ProbeCaseForm(run.project, request.POST if action == "case" else None, initial={"verifier": verifier})
    suites = catalog.own_suites(run.project)
    suite = SampleSuiteForm(suites, request.POST if action == "suite" else None)
    suite.fields["target"].initial = sample.group.answer
    done: str | None = None
    if action == "case":
        done = _case_made(request, sample, case)
    elif action == "suite":
        reviewed_run_for(request, slug, run_id, at_least=Role.OPERATOR)
        done = _suite_made(request, sample, suite)
    if done is not None:
        messages.success(request, done)
        return redirect("sample_use", slug, run_id, group_id, index)
    context = {
        "run": run,
        "sample": sample,
        "group": sample.group,
        "people": uses.people_say(sample),
        "case_form": case,
        "cases": ProbeCase.objects.filter(source=uses.source_of(sample)).select_related("verifier"),
        "suite_form": suite,
        "suites": suites,
        "may_suite": may(request, run.project, Role.OPERATOR),
        "pairs": _pairs_of(run, sample),
    }
    faulty = bool(case.errors or suite.errors)
    return render(request, "review/sample_use.html", context, status=422 if faulty else 200)


def _case_made(request: HttpRequest, sample: Sample, form: ProbeCaseForm) -> str | None:
    if form.is_valid():
        made = form.call(uses.sample_to_probe_case, sample=sample, actor=person(request), **form.cleaned_data)
        if made is not None:
            return f"Kept as a probe case of {made.verifier.name}. Its next probe holds it to this."
    return None


def _suite_made(request: HttpRequest, sample: Sample, form: SampleSuiteForm) -> str | None:
    if form.is_valid():
        given = {name: form.cleaned_data[name] for name in ("target", "reason")}
        version = form.call(
            uses.sample_to_suite, sample=sample, version=form.cleaned_data["suite"], actor=person(request), **given
        )
        if version is not None:
            return f"Added to {version.suite.name}, now version {version.number}."
    return None


def _pairs_of(run: Run, sample: Sample) -> int:
    """Preference pairs that the sample is part of."""
    chosen, rejected = pairs_by_group(newest_annotations(run)).get(sample.group_id, ([], []))
    return len(rejected) if sample.pk in chosen else len(chosen) if sample.pk in rejected else 0


@require_safe
@shows_samples
def preferences_download(request: HttpRequest, slug: str, run_id: int) -> HttpResponseBase:
    """Every preference pair of the run as JSONL in TRL's format."""
    run = reviewed_run_for(request, slug, run_id, at_least=Role.REVIEWER)
    downloaded(request, kind="preferences_downloaded", subject=f"run:{run.pk}", project=run.project)
    response = StreamingHttpResponse(map(line, preference_pairs(run)), content_type="application/x-ndjson")
    response["Content-Disposition"] = f'attachment; filename="preferences-run-{run.pk}.jsonl"'
    response["Cache-Control"] = "private, no-store"
    return response


@require_POST
@shows_samples
def preferences_dataset(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Make a dataset of the run's preference pairs."""
    run = reviewed_run_for(request, slug, run_id, at_least=Role.OPERATOR)
    try:
        dataset = preferences_dataset_create(run=run, actor=person(request))
    except ValidationError as error:
        messages.error(request, f"No dataset was made. {' '.join(error.messages)}")
        return redirect("run_review", slug, run_id)
    messages.success(request, f"{dataset.name}: {dataset.problems:,} pairs of people's judgements.")
    return redirect("dataset_detail", slug, dataset.pk)


@form_page
def answer_case(request: HttpRequest, slug: str, chat_id: int, answer_id: int) -> HttpResponse:
    """A judged answer of a chat as a probe case (POST)."""
    project = project_for(request, slug, at_least=Role.REVIEWER)
    answers = ChatAnswer.objects.select_related("message__conversation__project")
    of_chat = {"message__conversation__project": project, "message__conversation": chat_id}
    answer = get_object_or_404(answers, **of_chat, pk=answer_id)
    form = AnswerCaseForm(project, request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        made = form.call(uses.answer_to_probe_case, answer=answer, actor=person(request), **form.cleaned_data)
        if made is not None:
            messages.success(request, f"Kept as a probe case of {made.verifier.name}.")
            return redirect("chat_detail", slug, chat_id)
    context = {"conversation": answer.message.conversation, "answer": answer, "form": form}
    return render(request, "lab/answer_case.html", context, status=form.status)


@require_POST
def probe_case_removed(request: HttpRequest, slug: str, pk: int, case_id: int) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.REVIEWER)
    rows = ProbeCase.objects.select_related("verifier__project")
    case = get_object_or_404(rows, verifier__project=project, verifier=pk, pk=case_id)
    probe_case_remove(case=case, actor=person(request))
    messages.success(request, "The probe case is removed. Reports of earlier probes stay as they are.")
    return redirect_to(request, "verifier_detail", slug, pk)
