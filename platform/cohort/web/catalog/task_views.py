"""A dataset made by a task: its form and what it does."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from cohort.accounts.models import Role
from cohort.catalog import tasks
from cohort.web.access import project_for
from cohort.web.accounts.views import person
from cohort.web.catalog.forms import CatalogForm, DatasetForm
from grpo_core.data import gym


class TaskForm(CatalogForm):
    task = forms.ChoiceField(
        choices=[("", "choose"), *((field, [(name, name) for name in names]) for field, names in gym.TASKS.items())],
        help_text="Each has a scorer of its own: the reward kind reasoning_gym.",
    )
    size = forms.IntegerField(min_value=1, max_value=tasks.MOST, initial=1000, label="Problems")
    seed = forms.IntegerField(min_value=0, max_value=2**31 - 1, initial=0, help_text="Another seed, other problems.")


def dataset_page(project: Any, *, form: DatasetForm | None = None, task_form: TaskForm | None = None) -> dict[str, Any]:
    """What the page for a new dataset shows: both ways to one."""
    return {"project": project, "form": form or DatasetForm(), "task_form": task_form or TaskForm()}


@require_POST
def task_dataset_new(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    form = TaskForm(request.POST)
    if form.is_valid():
        try:
            dataset = tasks.dataset_from_task(project=project, actor=person(request), **form.cleaned_data)
        except ValidationError as error:
            form.take(error)
        else:
            messages.success(request, f"{dataset.name}: made and stored.")
            return redirect("dataset_detail", project.slug, dataset.pk)
    return render(request, "catalog/dataset_new.html", dataset_page(project, task_form=form), status=422)
