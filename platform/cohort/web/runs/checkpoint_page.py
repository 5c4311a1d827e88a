"""One checkpoint: its files, where it lies, and what it is used for. Registered as a base model, trained further as a
new run, downloaded; and where the platform does not hold it, requested of its node.
"""

from collections.abc import Callable
from typing import TypeVar

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Role
from cohort.catalog.models import BaseModel
from cohort.evidence.model_signing import KEY, WEIGHTS_BUNDLE
from cohort.records.cards.weights import signatures_of
from cohort.runs.base_models import (
    checkpoint_model,
    checkpoint_register,
    checkpoint_request,
    checkpoint_zip,
    download_folder,
    suggested_name,
)
from cohort.runs.models import Checkpoint, Run
from cohort.runs.services import NotPossible
from cohort.runs.stored_files import FileMissing
from cohort.web.access import form_page, run_for, streamed
from cohort.web.accounts.views import person
from cohort.web.catalog.views import request_doctor
from cohort.web.fields import ServiceForm
from cohort.web.runs.header import Header
from cohort.web.runs.tries import checkpoint_rows

Done = TypeVar("Done")


class RegisterForm(ServiceForm):
    name = forms.CharField(max_length=120, help_text="What the run form and the lab list it as.")


@form_page
def checkpoint_detail(request: HttpRequest, slug: str, run_id: int, checkpoint_id: int) -> HttpResponse:
    """Sent, it is registered as a base model under the name given."""
    sent = request.method == "POST"
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR if sent else Role.VIEWER)
    checkpoint = _checkpoint(run, checkpoint_id)
    if not sent:
        return _page(request, run, checkpoint, RegisterForm(initial={"name": suggested_name(checkpoint)}))
    form = RegisterForm(request.POST)
    if form.is_valid():
        model = _tried(
            request, lambda: form.call(_register, checkpoint=checkpoint, request=request, **form.cleaned_data)
        )
        if model is not None:
            messages.success(request, f"{model.name} is registered.{_under_way(checkpoint)}")
            if checkpoint.stored_at is not None:
                request_doctor(request, model)
            return redirect("base_model_detail", slug, model.pk)
        if not form.errors:
            return redirect("checkpoint_detail", slug, run_id, checkpoint_id)
    return _page(request, run, checkpoint, form)


@require_POST
def checkpoint_further(request: HttpRequest, slug: str, run_id: int, checkpoint_id: int) -> HttpResponse:
    """Open the form of a new run like this one that begins from the checkpoint, registered for it where it is not."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    checkpoint = _checkpoint(run, checkpoint_id)
    known = BaseModel.objects.filter(checkpoint=checkpoint).exists()
    model = _tried(request, lambda: checkpoint_model(checkpoint=checkpoint, actor=person(request)))
    if model is None:
        return redirect("checkpoint_detail", slug, run_id, checkpoint_id)
    if not known:
        messages.success(request, f"It is registered as the base model {model.name}.{_under_way(checkpoint)}")
    return redirect(f"{reverse('run_new', args=[slug])}?model={model.pk}")


@require_POST
def checkpoint_wanted(request: HttpRequest, slug: str, run_id: int, checkpoint_id: int) -> HttpResponse:
    """Request its files of the node that wrote it."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    checkpoint = _checkpoint(run, checkpoint_id)

    def requested() -> bool:
        checkpoint_request(checkpoint=checkpoint, actor=person(request))
        return True

    if _tried(request, requested):
        messages.success(request, f"Requested.{_under_way(checkpoint)}")
    return redirect("checkpoint_detail", slug, run_id, checkpoint_id)


@require_safe
def checkpoint_download(request: HttpRequest, slug: str, run_id: int, checkpoint_id: int) -> HttpResponseBase:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    checkpoint = _checkpoint(run, checkpoint_id)
    try:
        name, chunks = checkpoint_zip(checkpoint, signatures_of(checkpoint))
    except FileMissing as error:
        messages.error(request, f"There is nothing to download: {error}. Request the files first.")
        return redirect("checkpoint_detail", slug, run_id, checkpoint_id)
    return streamed(chunks, "application/zip", name)


def _checkpoint(run: Run, checkpoint_id: int) -> Checkpoint:
    rows = Checkpoint.objects.select_related("run__project", "run__base_model", "attempt__node")
    return get_object_or_404(rows.defer("attempt__manifest", "attempt__outcome"), run=run, pk=checkpoint_id)


def _register(*, checkpoint: Checkpoint, request: HttpRequest, name: str) -> BaseModel:
    return checkpoint_register(checkpoint=checkpoint, actor=person(request), name=name)


def _tried(request: HttpRequest, service: Callable[[], Done | None]) -> Done | None:
    """None where the service refused, which is then a message."""
    try:
        return service()
    except NotPossible as error:
        messages.error(request, f"Nothing was done: {error}.")
    return None


def _under_way(checkpoint: Checkpoint) -> str:
    checkpoint.refresh_from_db(fields=["stored_at", "requested_at"])
    if checkpoint.stored_at is not None or checkpoint.requested_at is None:
        return ""
    return f" {checkpoint.attempt.node.name} sends its files; they are here once its row says so."


def _page(request: HttpRequest, run: Run, checkpoint: Checkpoint, form: RegisterForm) -> HttpResponse:
    (row,) = checkpoint_rows([checkpoint])
    context = Header(run).context(
        "attempts",
        row=row,
        checkpoint=checkpoint,
        files=sorted(checkpoint.files.items()),
        model=BaseModel.objects.filter(checkpoint=checkpoint).first(),
        form=form,
        folder=download_folder(checkpoint),
        signed=bool(signatures_of(checkpoint)) if checkpoint.final else None,
        key_file=KEY,
        bundle_file=WEIGHTS_BUNDLE,
    )
    return render(request, "runs/checkpoint.html", context, status=form.status)
