"""What a project may use at most, as an admin types it. Empty is no limit."""

from django import forms


class LimitsForm(forms.Form):
    max_running = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=32767,
        label="Runs at once",
        help_text="Most runs of this project on workers at the same time; others wait in the queue. Empty: no limit.",
    )
    gpu_hours_limit = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=2147483647,
        label="GPU-hours in 30 days",
        help_text="Counted from claim to end of each attempt, times its GPUs; a run without a GPU counts as one. "
        "Nothing that runs is stopped for it: no new run begins until the last 30 days hold less. Empty: no limit.",
    )
