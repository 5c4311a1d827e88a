"""Forms of the reward lab: what is tried, on what. Each makes the arguments of `lab.services.job_request`; bounds and
defaults are those of grpo_core.lab.job, whose docstrings are the fields' help."""

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from pydantic import BaseModel

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel as CatalogModel
from cohort.catalog.models import PromptDataset, VerifierVersion
from cohort.web.catalog.selectors import Offered, base_models_offered
from cohort.web.fields import ServiceForm, field_spec
from grpo_core.errors import ConfigError
from grpo_core.lab.job import BestOfNOptions, GivenText, LabKind, ProbeOptions, SampleOptions, TryOptions

ROWS = 20


class TryForm(ServiceForm):
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

    @property
    def chars(self) -> int:
        """Of all that was given."""
        given = self.text()
        return len(json.dumps(given["meta"])) + sum(len(given[name]) for name in ("prompt", "answer", "completion"))

    def job_arguments(self) -> dict[str, Any]:
        return {"options": {"texts": [self.text()]}}


class _Job(ServiceForm):
    """A job over a dataset of the project."""

    kind: LabKind
    kind_name = ""
    model: type[BaseModel]
    options: tuple[str, ...]
    """Fields of `model` that the form has."""
    dataset = forms.ModelChoiceField(PromptDataset.objects.none(), empty_label="choose")

    def __init__(
        self, project: Project, data: Any = None, *, initial: Mapping[str, Any] | None = None, find: str = ""
    ) -> None:
        """`find`: part of a name, to choose from lists that are too long to be offered whole."""
        super().__init__(data, prefix=self.kind_name, initial=dict(initial or {}))
        fields: dict[str, Any] = self.fields
        self.more = False
        """Whether a list is too long to be offered whole."""
        fields["dataset"].label_from_instance = lambda row: f"{row.name} · {row.problems:,} problems"
        for name in {"dataset", "base_model"} & fields.keys():
            field = fields[name]
            every: Any = PromptDataset.objects.filter(project=project)
            offered: Offered[Any] = Offered(base_models_offered(project) if name == "base_model" else every, find)
            field.queryset, self.more = offered.every, self.more or offered.more
            rows = offered.rows_with(offered.row(str(self[name].value())))
            field.choices = [("", field.empty_label), *((row.pk, field.label_from_instance(row)) for row in rows)]
        for name in self.options:
            self.fields.setdefault(name, field_spec(self.model, name).form_field(required=True))

    def job_arguments(self) -> dict[str, Any]:
        given = {name: value for name in self.options if (value := self.cleaned_data[name]) is not None}
        return {"dataset": self.cleaned_data.get("dataset"), "options": given}

    def take_config(self, error: ConfigError) -> None:
        for problem in error.problems:
            self.add_problem(problem, problem.path.removeprefix("options.").split("."))
        if not error.problems:
            self.add_error(None, str(error))


class RowsForm(_Job):
    kind: LabKind = "try"
    kind_name = "rows"
    model = TryOptions
    options = ("rows",)
    rows = field_spec(TryOptions, "rows").form_field(
        required=True, initial=ROWS, help_text="The first so many problems of the file."
    )


class SampleForm(_Job):
    kind: LabKind = "sample"
    kind_name = "sample"
    model = SampleOptions
    options = (
        *("problems", "group_size", "temperature", "top_p", "max_completion_tokens", "seed"),
        *("template", "chat", "system", "prefill"),
    )
    chat = field_spec(SampleOptions, "chat").form_field()
    system = field_spec(SampleOptions, "system").form_field()
    prefill = field_spec(SampleOptions, "prefill").form_field()
    base_model = forms.ModelChoiceField(CatalogModel.objects.none(), empty_label="choose")

    @property
    def advanced(self) -> list[forms.BoundField]:
        return [self[name] for name in ("top_p", "seed", "template", "chat", "system", "prefill")]

    @property
    def advanced_faults(self) -> bool:
        return any(field.errors for field in self.advanced)

    def job_arguments(self) -> dict[str, Any]:
        return {**super().job_arguments(), "base_model": self.cleaned_data["base_model"]}


class ProbeForm(_Job):
    kind: LabKind = "probe"
    kind_name = "probe"
    model = ProbeOptions
    options = ("problems", "seed")
    dataset = forms.ModelChoiceField(
        PromptDataset.objects.none(), required=False, empty_label="the probe’s own problems"
    )


class BestOfNForm(SampleForm):
    """As `SampleForm`, with the version of a reward that is taken for the truth."""

    kind: LabKind = "best_of_n"
    kind_name = "best"
    model = BestOfNOptions
    ground_truth = forms.ModelChoiceField(
        VerifierVersion.objects.none(),
        empty_label="choose",
        label="Taken for the truth",
        help_text="A version of a reward, such as a rule, that says how good a completion is.",
    )

    def __init__(
        self, project: Project, data: Any = None, *, initial: Mapping[str, Any] | None = None, find: str = ""
    ) -> None:
        super().__init__(project, data, initial=initial, find=find)
        every = VerifierVersion.objects.filter(verifier__project=project).select_related("verifier")
        offered: Offered[Any] = Offered(every, find, name="verifier__name")
        field: Any = self.fields["ground_truth"]
        field.queryset, self.more = offered.every, self.more or offered.more
        rows = offered.rows_with(offered.row(str(self["ground_truth"].value())))
        field.choices = [("", field.empty_label), *((row.pk, str(row)) for row in rows)]

    def job_arguments(self) -> dict[str, Any]:
        return {**super().job_arguments(), "ground_truth": self.cleaned_data["ground_truth"]}


FORMS: dict[str, type[_Job]] = {"rows": RowsForm, "sample": SampleForm, "probe": ProbeForm, "best": BestOfNForm}
"""By the name that their button sends."""
