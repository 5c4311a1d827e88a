"""Forms of the catalog: what people type, turned into the arguments of one service each."""

from typing import Any

from django import forms

from cohort.web.fields import ServiceForm

_FORMATS = [
    ("jsonl", "jsonl: objects with prompt and answer"),
    ("gsm8k", "gsm8k: question, and answer ending in #### n"),
]


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
    format = forms.ChoiceField(choices=_FORMATS, help_text="How each line is read.")
    file = forms.FileField(
        required=False,
        allow_empty_file=True,
        help_text="One JSON object a line, UTF-8, a line at most 1 MiB. Every line is checked before anything is kept.",
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
        return cleaned

    def arguments(self) -> dict[str, Any]:
        """Of `catalog.services.dataset_create`, without project and actor."""
        given = self.cleaned_data
        file = given["file"]
        chunks = [given["lines"].encode()] if file is None else file.chunks()
        file_name = "The pasted text" if file is None else str(file.name)
        return {
            **{name: given[name] for name in ("name", "format", "source")},
            "chunks": chunks,
            "file_name": file_name,
        }
