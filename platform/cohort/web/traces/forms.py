"""Forms about the texts of samples: which to delete and why, and how long they are kept."""

from typing import Any

from django import forms

from cohort.records.traces.retention import LONGEST_DAYS
from cohort.review.models import Group, Sample


class _Samples(forms.ModelMultipleChoiceField):  # type: ignore[type-arg]  # generic in the stubs alone
    def label_from_instance(self, obj: Sample) -> str:
        return f"sample {obj.index + 1}, {obj.tokens:,} tokens"


class RedactForm(forms.Form):
    samples = _Samples(
        queryset=Sample.objects.none(),
        widget=forms.CheckboxSelectMultiple,
        label="Samples",
        help_text="Their text and salt are deleted for good. Rewards, advantages and the hash in the run's tree stay.",
        error_messages={"required": "Choose at least one sample."},
    )
    reason = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3}),
        label="Reason",
        help_text="Stands in the audit log for ever. Do not repeat here what is to be deleted.",
        error_messages={"required": "A reason is needed: it stands in the audit log and on the record."},
    )

    def __init__(self, *args: Any, group: Group, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["samples"]
        assert isinstance(field, _Samples)
        field.queryset = Sample.objects.filter(group=group, redacted_at=None).order_by("index")


class RetentionForm(forms.Form):
    days = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=LONGEST_DAYS,
        label="Days",
        help_text="After the end of a run its samples' texts are kept for so many days, then deleted for good. "
        "Cards are issued again without them and still verify. Empty: kept.",
    )
