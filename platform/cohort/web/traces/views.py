"""Pages about the texts of samples: one shown with its proof, some deleted, how long all are kept."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Role
from cohort.records.traces.disclosure import NoProof, disclose
from cohort.records.traces.redaction import LONGEST_DAYS, retention_set, samples_redact
from cohort.review.models import Group, Sample
from cohort.runs import dispatch
from cohort.web.access import form_page, project_for, run_for
from cohort.web.accounts.views import person
from cohort.web.fields import ServiceForm
from cohort.web.review.judging import shows_samples


@require_safe
@shows_samples
def sample_proof(request: HttpRequest, slug: str, run_id: int, group_id: int, index: int) -> HttpResponse:
    """The sample with the proof that it is in the run's tree, for `cohort verify --trace`."""
    run = run_for(request, slug, run_id, at_least=Role.REVIEWER)
    samples = Sample.objects.select_related("group__run")
    sample = get_object_or_404(samples, group__run=run, group=group_id, index=index)
    try:
        proof = disclose(sample=sample, actor=person(request))
    except NoProof as why:
        messages.error(request, f"There is no proof of sample {index + 1} to download: {why}.")
        return redirect("group_detail", slug, run_id, group_id)
    name = f"sample-run-{run.pk}-step-{sample.group.step}-group-{sample.group.index}-{index}.json"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-store"}
    return JsonResponse(proof, json_dumps_params={"indent": 2, "ensure_ascii": False}, headers=headers)


@form_page
def samples_redact_page(request: HttpRequest, slug: str, run_id: int, group_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    group = get_object_or_404(Group, run=run, pk=group_id)
    form = RedactForm(request.POST or None, group=group)
    if request.method == "POST" and form.is_valid():
        samples, reason = list(form.cleaned_data["samples"]), form.cleaned_data["reason"]
        deleted = form.call(samples_redact, run=run, samples=samples, actor=person(request), reason=reason)
        if deleted is not None:
            dispatch.renew_cards(run_id=run.pk)
            count = "1 sample" if deleted == 1 else f"{deleted} samples"
            messages.success(request, f"The text of {count} is deleted. Cards that held it are being issued again.")
            return redirect("group_detail", slug, run_id, group_id)
    return render(request, "traces/redact.html", {"run": run, "group": group, "form": form}, status=form.status)


@form_page
def retention(request: HttpRequest, slug: str) -> HttpResponse:
    """Every member sees how long texts are kept; an admin sets it."""
    project = project_for(request, slug, at_least=Role.ADMIN if request.method == "POST" else Role.VIEWER)
    form = RetentionForm(request.POST or None, initial={"days": project.traces_keep_days})
    if request.method == "POST" and form.is_valid():
        form.call(retention_set, project=project, actor=person(request), days=form.cleaned_data["days"])
        if not form.errors:
            messages.success(request, f"How long {project.name} keeps the texts of samples is set.")
            return redirect("retention", slug)
    return render(request, "traces/retention.html", {"form": form}, status=form.status)


class RedactForm(ServiceForm):
    samples = forms.ModelMultipleChoiceField(
        queryset=Sample.objects.none(),
        widget=forms.CheckboxSelectMultiple,
        label="Samples",
        help_text="Their text and salt are deleted for good. Rewards, advantages and the hash in the run's tree stay.",
        error_messages={"required": "Choose at least one sample."},
    )
    reason = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3}),
        label="Reason",
        help_text="Kept in the audit log for ever. Do not repeat here what is to be deleted.",
        error_messages={"required": "A reason is needed: it is kept in the audit log and on the record."},
    )

    def __init__(self, *args: Any, group: Group, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["samples"]
        field.queryset = Sample.objects.filter(group=group, redacted_at=None).order_by("index")
        field.label_from_instance = lambda sample: f"sample {sample.index + 1}, {sample.tokens:,} tokens"


class RetentionForm(ServiceForm):
    days = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=LONGEST_DAYS,
        label="Days",
        help_text="After the end of a run its samples' texts are kept for so many days, then deleted for good. "
        "Cards are issued again without them and still verify. Empty: kept.",
    )
