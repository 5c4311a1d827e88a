"""Pages of base models and datasets. Fetch, authorise, call one service, render."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_POST, require_safe
from pydantic import ValidationError as PydanticError

from cohort.accounts.models import Project, Role
from cohort.base.environment import environment
from cohort.catalog import services, tasks
from cohort.catalog.dataset_files import check_file, layout_title
from cohort.catalog.model_folder import folders_with_models
from cohort.catalog.models import BaseModel, DatasetContent, PromptDataset
from cohort.catalog.pretraining import origin_of, pretraining_state, published_original, stated_original
from cohort.contamination.selectors import of_dataset
from cohort.lab.evaluations import evaluations_of
from cohort.lab.services import doctor_request
from cohort.runs.models import Run
from cohort.web.access import call_service, form_page, project_for, redirect_to
from cohort.web.accounts.views import person
from cohort.web.catalog import selectors
from cohort.web.context import listed
from cohort.web.fields import FieldSpec, ServiceForm, leaves
from cohort.web.lab.preview_shown import doctor_shown
from grpo_core.data import gym
from grpo_core.data.containers import TITLES
from grpo_core.data.layouts import LAYOUTS
from grpo_core.errors import ConfigError
from grpo_core.specs.fields import DataColumns

_FORMATS = [("auto", "as the first row says"), *((name, layout.title) for name, layout in LAYOUTS.items())]
_CONTENTS = [("auto", "as the first row says"), *DatasetContent.choices]
_LAYOUTS = [layout.title for layout in LAYOUTS.values()]


FOLDERS_SHOWN = 200
EVALUATIONS_SHOWN = 10
KINDS_FOR = {
    DatasetContent.PROBLEMS: (("grpo", "GRPO"), ("sample", "Sampling")),
    DatasetContent.CONVERSATIONS: (("sft", "Fine-tuning"),),
    DatasetContent.PREFERENCES: (("reward_model", "Reward model"),),
}
"""Content → kinds of run whose form a dataset's page opens, with their titles."""
COLUMN = "column-"
"""Of the names of the inputs that say which column is what."""
NONE = "-"
"""Chosen for a column: the file has none."""


class BaseModelForm(ServiceForm):
    name = forms.CharField(max_length=120, help_text="What the run form lists it as, such as Qwen2.5-0.5B.")
    path = forms.CharField(
        max_length=300,
        label="Folder or Hub repository",
        help_text="A folder below the server's models folder, or owner/name of a Hugging Face repository.",
        widget=forms.TextInput(attrs={"list": "model-folders", "autocomplete": "off", "spellcheck": "false"}),
    )
    revision = forms.CharField(
        max_length=80,
        required=False,
        help_text="Only for a Hub repository: the commit's 40 hex digits, so that the run can be repeated.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )


class DatasetForm(ServiceForm):
    name = forms.CharField(max_length=120, help_text="What the run form lists it as.")
    content = forms.ChoiceField(
        choices=_CONTENTS,
        label="What its rows are",
        required=False,
        help_text="Problems are answered and scored; conversations are learned from as they are; preferences train a "
        "reward model.",
    )
    format = forms.ChoiceField(choices=_FORMATS, label="Layout of problems", help_text="How each row is read.")
    file = forms.FileField(
        required=False,
        allow_empty_file=True,
        help_text="JSON lines, a JSON list, CSV (also in gzip) or Parquet, as the set is published. Every row is read "
        "before anything is kept.",
    )
    lines = forms.CharField(
        required=False,
        strip=False,
        label="Or paste lines",
        widget=forms.Textarea(
            attrs={"rows": 5, "placeholder": '{"prompt": "what is 37 + 45?", "answer": "82"}', "spellcheck": "false"}
        ),
    )
    source = forms.CharField(
        required=False,
        max_length=2000,
        label="Where the problems come from",
        help_text="In your words, with licence and address. It goes into the record of every run that uses them.",
        widget=forms.TextInput(),
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        given = (cleaned.get("file") is not None) + bool((cleaned.get("lines") or "").strip())
        if given != 1 and "file" not in self.errors:
            self.add_error("file", "Choose a file or paste lines, one of the two.")
        chosen = {role: self.data.get(COLUMN + role, "") for role in DataColumns.model_fields}
        try:
            cleaned["columns"] = DataColumns(**{k: "" if path == NONE else path for k, path in chosen.items() if path})
        except PydanticError:
            self.add_error(None, "A column's name is longer than 300 characters, or holds one that cannot be stored.")
        return cleaned

    def upload(self) -> dict[str, Any]:
        """Of `catalog.dataset_files.check_file`; also after the file was refused."""
        given, file = self.cleaned_data, self.files.get("file")
        chunks = [given["lines"].encode()] if file is None else file.chunks()
        file_name = "The pasted text" if file is None else str(file.name)
        content = given["content"] or "auto"
        return {
            "content": content,
            "format": given["format"],
            "columns": given["columns"],
            "chunks": chunks,
            "file_name": file_name,
        }

    def arguments(self) -> dict[str, Any]:
        """Of `catalog.services.dataset_create`, without project and actor."""
        return {**self.upload(), **{name: self.cleaned_data[name] for name in ("name", "source")}}


class TaskForm(ServiceForm):
    task = forms.ChoiceField(
        choices=[("", "choose"), *((field, [(name, name) for name in names]) for field, names in gym.TASKS.items())],
        help_text="Each has its own scorer: the reward kind reasoning_gym.",
    )
    size = forms.IntegerField(min_value=1, max_value=tasks.MOST, initial=1000, label="Problems")
    seed = forms.IntegerField(min_value=0, max_value=2**31 - 1, initial=0, help_text="Another seed, other problems.")


@require_POST
def task_dataset_new(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    form = TaskForm(request.POST)
    if form.is_valid():
        actor = person(request)
        if dataset := form.call(tasks.dataset_from_task, project=project, actor=actor, **form.cleaned_data):
            messages.success(request, f"{dataset.name}: made and stored.")
            return redirect("dataset_detail", project.slug, dataset.pk)
    context = {"form": DatasetForm(), "task_form": form, "layouts": _LAYOUTS}
    return render(request, "catalog/dataset_new.html", context, status=422)


# ---------------------------------------------------------------- base models


@require_safe
def base_model_list(request: HttpRequest, slug: str) -> HttpResponse:
    """`archived`: those that are archived."""
    project, archived = project_for(request, slug), "archived" in request.GET
    models = listed(request, selectors.base_models(project, archived=archived))
    there_are = selectors.base_models(project, archived=not archived).exists()
    context = {"models": models, "archived": archived, "others": there_are}
    return render(request, "catalog/base_models.html", context)


@form_page
def base_model_new(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    form = BaseModelForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        actor = person(request)
        if model := form.call(services.base_model_register, project=project, actor=actor, **form.cleaned_data):
            messages.success(request, f"{model.name} is registered.")
            if not model.revision:  # a Hub model is not fetched before somebody wants it
                request_doctor(request, model)
            return redirect("base_model_detail", slug, model.pk)
    folder = environment().models_folder
    folders = folders_with_models(folder)
    shown = {"folders": folders[:FOLDERS_SHOWN], "folders_found": len(folders), "models_folder": folder}
    return render(request, "catalog/base_model_new.html", {"form": form, **shown}, status=form.status)


def request_doctor(request: HttpRequest, model: BaseModel) -> None:
    """Have a worker look at a model that was just registered; a message where that cannot be."""
    try:
        doctor_request(base_model=model, actor=person(request))
    except ConfigError as error:
        messages.warning(request, f"No worker looks at it yet: {error}")


@require_POST
def base_model_archive(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """`archived`: 1 or 0."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    model = get_object_or_404(BaseModel, project=project, pk=pk)
    archived = request.POST.get("archived") == "1"
    services.base_model_archive(model=model, actor=person(request), archived=archived)
    done = "is archived: no new run or job can choose it" if archived else "is offered again"
    messages.success(request, f"{model.name} {done}.")
    return redirect_to(request, "base_model_detail", slug, pk)


@require_POST
def base_model_pretraining(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """`flop` and `source`; both empty take the statement back."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    model = get_object_or_404(BaseModel, project=project, pk=pk)
    given = {name: request.POST.get(name, "") for name in ("flop", "source")}
    done = f"What training {model.name} took is {'stated' if any(map(str.strip, given.values())) else 'withdrawn'}."
    call_service(request, pretraining_state, done, refused="Nothing was changed. ", model=model, **given)
    return redirect_to(request, "base_model_detail", slug, pk)


@require_safe
def base_model_detail(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    related = ("created_by", "checkpoint__run__base_model", "checkpoint__attempt__node")
    models = BaseModel.objects.select_related(*related).defer(
        "checkpoint__attempt__manifest", "checkpoint__attempt__outcome"
    )
    model = get_object_or_404(models, project=project_for(request, slug), pk=pk)
    context = {
        "model": model,
        "checkpoint": model.checkpoint,
        "read": selectors.read_by_run(model),
        "origin": origin_of(model),
        "stated": (stated := stated_original(model)),
        "stated_flop": f"{stated.flop:g}" if stated else "",
        "published": published_original(origin_of(model)),
        "used": selectors.runs_with(base_model=model),
        "doctor": doctor_shown(model),
        "evaluations": listed(request, evaluations_of(model), EVALUATIONS_SHOWN, name="evaluations"),
    }
    return render(request, "catalog/base_model.html", context)


# ---------------------------------------------------------------- datasets


@require_safe
def dataset_list(request: HttpRequest, slug: str) -> HttpResponse:
    datasets = listed(request, selectors.datasets(project_for(request, slug)))
    return render(request, "catalog/datasets.html", {"datasets": datasets})


@csrf_exempt
@form_page
def dataset_new(request: HttpRequest, slug: str) -> HttpResponse:
    """The CSRF check comes after the check of the role, because it reads the upload."""
    return _dataset_new(request, project_for(request, slug, at_least=Role.OPERATOR))


@csrf_protect
def _dataset_new(request: HttpRequest, project: Project) -> HttpResponse:
    """With `action` check, what the file is and how it is read; else it is stored. The page's own script sends both
    from the page as it is, so that the chosen file stays chosen."""
    form = DatasetForm(request.POST or None, request.FILES or None)
    checking = request.POST.get("action") == "check"
    if checking:
        del form.fields["name"]
    checked = None
    if request.method == "POST" and form.is_valid():
        if checking:
            checked = form.call(check_file, **form.upload())
        elif dataset := form.call(services.dataset_create, project=project, actor=person(request), **form.arguments()):
            messages.success(
                request, f"{dataset.name} is stored: {dataset.problems:,} {dataset.content}, every row read."
            )
            return redirect_to(request, "dataset_detail", project.slug, dataset.pk)
        elif not form.errors.get("name"):
            checked = form.call(check_file, **form.upload())
    unchosen = checking and checked is None and set(form.errors) == {"file"} and not request.FILES
    context = {"form": form, "checked": checked, "roles": _roles(request), "unchosen": unchosen, "layouts": _LAYOUTS}
    if request.htmx:  # type: ignore[attr-defined]
        return render(request, "catalog/_dataset_reading.html", context, status=form.status)
    return render(request, "catalog/dataset_new.html", {**context, "task_form": TaskForm()}, status=form.status)


def _roles(request: HttpRequest) -> list[tuple[FieldSpec, str]]:
    """Each column that a person may choose, with what was chosen."""
    return [(spec, request.POST.get(COLUMN + spec.path, "")) for spec in leaves(DataColumns)]


@require_safe
def dataset_detail(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    project = project_for(request, slug)
    rows = PromptDataset.objects.select_related("created_by", "sampled_by")
    dataset = get_object_or_404(rows, project=project, pk=pk)
    further = Run.objects.filter(run_datasets__dataset=dataset)
    used = selectors.runs_with(Q(dataset=dataset) | Q(eval_dataset=dataset) | Q(pk__in=further), project=project)
    files = dataset.files.select_related("run").order_by("-pk")
    read = {
        "layout": layout_title(dataset),
        "container": TITLES[dataset.container],
        "kinds": KINDS_FOR[DatasetContent(dataset.content)],
        "sampled": files.first() if dataset.sampled_by_id is not None else None,
    }
    return render(
        request, "catalog/dataset.html", {"dataset": dataset, "used": used, "overlaps": of_dataset(dataset), **read}
    )
