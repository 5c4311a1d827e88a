"""Forms of the reward lab: what is tried, on what. Each makes the arguments of `lab.services.job_ask`; bounds and
defaults are those of grpo_core.lab.job, whose docstrings are the fields' help."""

from collections.abc import Mapping
from typing import Any

from django import forms

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, PromptDataset
from cohort.web.catalog.forms import CatalogForm
from cohort.web.fields import field_spec
from grpo_core.errors import ConfigError
from grpo_core.lab.job import GivenText, LabKind, ProbeOptions, SampleOptions, TryOptions

ROWS = 20


class TryForm(CatalogForm):
    """One pasted answer."""

    kind: LabKind = "try"
    prompt = field_spec(GivenText, "prompt").form_field(widget=forms.Textarea({"rows": 2}))
    answer = field_spec(GivenText, "answer").form_field(label="Reference answer", help_text="")
    completion = field_spec(GivenText, "completion").form_field(help_text="", widget=forms.Textarea({"rows": 4}))
    meta = field_spec(GivenText, "meta").form_field(
        label="Further fields of the problem", help_text='As JSON, such as {"tests": ["assert add(2, 3) == 5"]}.'
    )

    def text(self) -> dict[str, Any]:
        texts = {name: self.cleaned_data[name] or "" for name in ("prompt", "answer", "completion")}
        return {**texts, "meta": self.cleaned_data["meta"] or {}}

    def job_arguments(self) -> dict[str, Any]:
        return {"options": {"texts": [self.text()]}}


class _Job(CatalogForm):
    """A job over a dataset of the project."""

    kind: LabKind
    dataset = forms.ModelChoiceField(PromptDataset.objects.none(), empty_label="choose")

    def __init__(self, project: Project, data: Any = None, *, initial: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, prefix=self.kind_name, initial=dict(initial or {}))
        chosen: Any = self.fields["dataset"]
        chosen.queryset = PromptDataset.objects.filter(project=project).order_by("-id")
        chosen.label_from_instance = _named

    kind_name = ""
    options: tuple[str, ...] = ()

    def job_arguments(self) -> dict[str, Any]:
        given = {name: self.cleaned_data[name] for name in self.options}
        return {"dataset": self.cleaned_data.get("dataset"), "options": given}

    def take_config(self, error: ConfigError) -> None:
        for problem in error.problems:
            self.add_problem(problem, problem.path.removeprefix("options.").split("."))
        if not error.problems:
            self.add_error(None, str(error))


def _named(row: PromptDataset) -> str:
    return f"{row.name} · {row.problems:,} problems"


class RowsForm(_Job):
    kind: LabKind = "try"
    kind_name = "rows"
    options = ("rows",)
    rows = field_spec(TryOptions, "rows").form_field(
        required=True, initial=ROWS, help_text="The first so many problems of the file."
    )


class SampleForm(_Job):
    kind: LabKind = "sample"
    kind_name = "sample"
    options = ("problems", "group_size", "temperature", "top_p", "max_completion_tokens", "template", "seed")
    base_model = forms.ModelChoiceField(BaseModel.objects.none(), empty_label="choose")
    problems = field_spec(SampleOptions, "problems").form_field(required=True)
    group_size = field_spec(SampleOptions, "group_size").form_field(required=True)
    temperature = field_spec(SampleOptions, "temperature").form_field(required=True)
    top_p = field_spec(SampleOptions, "top_p").form_field(required=True)
    max_completion_tokens = field_spec(SampleOptions, "max_completion_tokens").form_field(required=True)
    template = field_spec(SampleOptions, "template").form_field(required=True)
    seed = field_spec(SampleOptions, "seed").form_field(required=True)

    def __init__(self, project: Project, data: Any = None, *, initial: Mapping[str, Any] | None = None) -> None:
        super().__init__(project, data, initial=initial)
        models: Any = self.fields["base_model"]
        models.queryset = BaseModel.objects.filter(project=project).order_by("-id")

    @property
    def advanced(self) -> list[forms.BoundField]:
        return [self[name] for name in ("top_p", "template", "seed")]

    @property
    def advanced_faults(self) -> bool:
        return any(field.errors for field in self.advanced)

    def job_arguments(self) -> dict[str, Any]:
        return {**super().job_arguments(), "base_model": self.cleaned_data["base_model"]}


class ProbeForm(_Job):
    kind: LabKind = "probe"
    kind_name = "probe"
    options = ("problems", "seed")
    dataset = forms.ModelChoiceField(
        PromptDataset.objects.none(), required=False, empty_label="the probe’s own problems"
    )
    problems = field_spec(ProbeOptions, "problems").form_field(required=True)
    seed = field_spec(ProbeOptions, "seed").form_field(required=True)


FORMS: dict[str, type[_Job]] = {"rows": RowsForm, "sample": SampleForm, "probe": ProbeForm}
"""By the name that their button sends."""
