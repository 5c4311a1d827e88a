"""What a trainer says that it waits for: its watchdog's word, until it is over or the attempt has ended."""

from cohort.runs.models import RunEvent
from cohort.web.runs.header import Header

KIND = "waiting"
"""Of the trainer's event (grpo_core.runtime.watchdog)."""


def awaits(header: Header) -> RunEvent | None:
    """The newest such event of the attempt that runs, unless it says that it is over."""
    if not header.live or header.attempt is None or header.attempt.ended_at is not None:
        return None
    newest = RunEvent.objects.filter(run=header.run, attempt=header.attempt, kind=KIND).order_by("-id").first()
    return None if newest is None or newest.data.get("over") else newest
