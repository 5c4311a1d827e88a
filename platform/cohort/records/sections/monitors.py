"""The monitors of `grpo_core.monitors.recorded`, over the stored data of a run. Writes nothing."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import get_args

from django.db.models.functions import MD5

from cohort.records.schema_types import Comparison
from cohort.review.models import Group, Sample
from cohort.runs.models import Run
from cohort.runs.transitions import current_rows, current_steps
from grpo_core.config.evaluation import HELDOUT
from grpo_core.monitors.recorded import Flag, HeldOut, KeptGroup, Name, monitor
from grpo_core.monitors.table import title_of

_WATCHED_AS = {"truncation": "cut_off"}
FLAG_WORDS: dict[Name, str] = {
    name: title_of(_WATCHED_AS.get(name, name)) if name != "all_equal_groups" else "groups without signal"
    for name in get_args(Name)
}
"""The title of each flag: that of the monitor which watches the same live."""


def watched(run: Run, compared: Sequence[Comparison]) -> list[Flag]:
    """Every monitor's flag over the current work of the run."""
    rows = current_steps(run).values_list("step", "metrics")
    change = next((comparison.change for comparison in compared if comparison.suite == HELDOUT), None)
    held_out = HeldOut(change.difference, change.interval.low) if change else None
    return monitor(list(rows.iterator(chunk_size=5000)), _kept(run), held_out)


def _kept(run: Run) -> Iterator[KeptGroup]:
    """Completions by their digest: the texts stay in the database."""
    groups = current_rows(Group.objects.filter(run=run))
    rows = Sample.objects.filter(group__in=groups.values("pk"), redacted_at=None).order_by(
        "group__step", "group_id", "index"
    )
    sample_rows = rows.values_list("group_id", "group__step", "reward", "tokens", MD5("completion"))
    for _, samples in groupby(sample_rows.iterator(chunk_size=5000), key=lambda row: row[0]):
        _, steps, rewards, lengths, digests = zip(*samples, strict=True)
        yield KeptGroup(steps[0], rewards, lengths, digests)
