"""The platform's Celery app: `celery -A cohort.celery worker -B -Q platform`, and `-Q platform.seal` for records.

Sends runs to workers by task name and runs the platform's own short tasks. Never runs a training task.
"""

import os
from typing import Any

from celery import Celery
from celery.signals import beat_embedded_init, beat_init

from cohort import file_broker
from cohort.environment import environment
from cohort.settings import CELERY

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cohort.settings")  # Celery sets Django up when it finds this

_SCHEDULE = environment().home_folder / "beat-schedule"

file_broker.use()
app = Celery("cohort")
app.conf.update(CELERY)
app.conf.beat_schedule_filename = str(_SCHEDULE)
app.autodiscover_tasks()


@beat_init.connect  # type: ignore[untyped-decorator]
@beat_embedded_init.connect  # type: ignore[untyped-decorator]
def _make_home(**_: Any) -> None:
    _SCHEDULE.parent.mkdir(parents=True, exist_ok=True)
