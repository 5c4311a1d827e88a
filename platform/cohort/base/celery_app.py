"""The platform's Celery app: sends runs to workers by task name. `cohort.background.worker` runs its tasks."""

import os
from typing import Any

from celery import Celery
from celery.signals import beat_embedded_init, beat_init

from cohort.base import file_broker
from cohort.base.environment import environment
from cohort.settings import CELERY

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cohort.settings")  # Celery sets Django up when it finds this

_SCHEDULE = environment().home_folder / "beat-schedule"

file_broker.use()
app = Celery("cohort")
app.conf.update(CELERY)
app.conf.beat_schedule_filename = str(_SCHEDULE)
app.conf.imports = ["cohort.background.tasks"]  # imported once Django is set up


@beat_init.connect  # type: ignore[untyped-decorator]
@beat_embedded_init.connect  # type: ignore[untyped-decorator]
def _make_home(**_: Any) -> None:
    _SCHEDULE.parent.mkdir(parents=True, exist_ok=True)
