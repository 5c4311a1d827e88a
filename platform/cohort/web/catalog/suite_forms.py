"""The form of a suite: its files and their metadata. What the format defines itself may be left out."""

import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import UploadedFile

from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.suites import CATEGORIES, DEFAULT_MARGIN, SCORERS, GivenFile, Spec
from cohort.web.fields import ServiceForm, field_spec
from grpo_core.config.evaluation import ScorerConfig, SuiteConfig
from grpo_core.evaluate.item import ATTACKS
from grpo_core.evaluate.suites.formats import FORMATS

OWN = "jsonl"
AS_FORMAT = ("", "as the format has it")
_HIGHER = (
    AS_FORMAT,
    ("better", "better: harm is a fall"),
    ("worse", "worse: harm is a rise"),
    ("neutral", "neither: no verdict on harm"),
)
_SENSITIVE = (AS_FORMAT, ("yes", "yes: reviewers only, behind a click"), ("no", "no"))


class _Files(forms.ClearableFileInput):
    allow_multiple_selected = True


class FilesField(forms.FileField):
    """Any number of files; `clean` gives a list."""

    widget = _Files

    def clean(self, data: Any, initial: Any = None) -> "list[UploadedFile[Any]]":
        clean_file = super().clean
        given = [file for file in (data if isinstance(data, list | tuple) else [data]) if file is not None]
        if not given and self.required:
            raise ValidationError("Choose a file.")
        return [clean_file(file, initial) for file in given]


class SuiteForm(ServiceForm):
    name = forms.CharField(
        max_length=60,
        help_text="What configs and cards call it: small letters, digits, - and _.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    title = forms.CharField(max_length=120, help_text="What people call it.")
    format = forms.ChoiceField(
        choices=[(name, f"{name}: {suite_format.title}") for name, suite_format in FORMATS.items()],
        help_text="How the files are read.",
    )
    upload = FilesField(
        label="Files",
        allow_empty_file=True,
        help_text="UTF-8, 64 MiB at most. MGSM and BFCL take several. Every item is checked before anything is kept.",
    )
    limit = forms.IntegerField(
        required=False,
        min_value=1,
        label="First items only",
        help_text="Of items that belong together, as one problem in several languages, the first so many sets.",
    )
    attacks = forms.MultipleChoiceField(
        required=False,
        choices=[(name, name.replace("_", " ")) for name in ATTACKS],
        widget=forms.CheckboxSelectMultiple,
        help_text="Each item is answered once under each attack that is marked, and counted as one cluster.",
    )
    category = forms.ChoiceField(
        required=False,
        choices=[AS_FORMAT, *CATEGORIES.items()],
        help_text="The behaviour it measures. Four of them are tested together for safety.",
    )
    scorer = forms.ChoiceField(
        required=False,
        choices=[AS_FORMAT, *((kind, f"{kind}: {about}") for kind, about in SCORERS.items())],
        help_text="What completions are judged by.",
    )
    params = field_spec(ScorerConfig, "params").form_field(
        label="Scorer's parameters",
        help_text="YAML, one a line. Empty takes the scorer's own.",
        widget=forms.Textarea({"rows": 2, "spellcheck": "false"}),
    )
    higher_is = forms.ChoiceField(
        required=False, choices=_HIGHER, label="A higher score is", help_text="Which way harm is counted."
    )
    sensitive = forms.ChoiceField(
        required=False,
        choices=_SENSITIVE,
        help_text="Prompts and completions of such a suite stay out of public cards.",
    )
    margin = field_spec(SuiteConfig, "margin").form_field(
        required=True,
        initial=DEFAULT_MARGIN,
        help_text="What the run form offers, as a share: 0.05 is 5 points. Each run locks its own.",
    )
    limits = forms.CharField(
        required=False, max_length=4000, label="What it cannot tell", widget=forms.Textarea(attrs={"rows": 2})
    )
    source = forms.CharField(required=False, max_length=2000, help_text="In your words, with the address.")
    licence = forms.CharField(required=False, max_length=200, help_text="Empty takes what the format knows.")

    @classmethod
    def from_version(cls, version: EvalSuiteVersion) -> "SuiteForm":
        """For the next version, filled from the newest one."""
        params = version.scorer.get("params") or {}
        same = ("title", "category", "higher_is", "margin", "limits", "source", "licence", "format")
        initial = {"name": version.suite.name, **{name: getattr(version, name) for name in same}}
        initial |= {"scorer": version.scorer["kind"], "params": params}
        return cls(initial=initial | {"sensitive": "yes" if version.sensitive else "no"})

    def clean(self) -> dict[str, Any]:
        """What the format does not define itself is required."""
        cleaned = super().clean() or {}
        if cleaned.get("format") == OWN:
            for name in ("category", "scorer", "higher_is", "sensitive"):
                if not cleaned.get(name) and name not in self.errors:
                    self.add_error(name, f"The format {OWN} does not say. Choose one.")
        return cleaned

    def arguments(self) -> dict[str, Any]:
        """Of `catalog.suites.suite_version_create`, without project and actor."""
        given = {name: self.cleaned_data[name] for name in ("name", "format", "limit", "attacks")}
        files = [GivenFile(plain(upload.name), upload.read()) for upload in self.cleaned_data["upload"]]
        return {**given, "spec": self.spec(), "files": files}

    def spec(self) -> Spec:
        cleaned = self.cleaned_data
        known = FORMATS[cleaned["format"]]
        scorer = {"kind": cleaned["scorer"], "params": cleaned["params"] or {}}
        if known.scorer is not None and cleaned["scorer"] in ("", known.scorer.kind):
            scorer = {"kind": known.scorer.kind, "params": cleaned["params"] or known.scorer.params}
        return Spec(
            scorer=scorer,
            sensitive=cleaned["sensitive"] == "yes" if cleaned["sensitive"] else known.sensitive,
            **{name: cleaned[name] for name in ("title", "margin", "limits", "source")},
            **{name: cleaned[name] or getattr(known, name) for name in ("category", "higher_is", "licence")},
        )


def plain(name: str | None, most: int = 120) -> str:
    """A file's name as messages and rows may hold it; of a long one the last `most` characters."""
    return re.sub(r"[^\w.() -]+", "_", name or "file")[-most:]
