"""The platform's Celery app: sends runs to workers by task name. `cohort.background.worker` runs its tasks."""

import os
import time
import uuid
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import beat_embedded_init, beat_init, worker_init
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps

from cohort.base.environment import environment
from cohort.settings import CELERY
from grpo_core.protocol.queues import WITHOUT_EVENTS


class Channel(filesystem.Channel):
    """kombu's filesystem channel with atomic writes: a reader never sees half of a message."""

    def _put(self, queue: str, payload: Any, **kwargs: Any) -> None:  # type: ignore[override]
        # Readers take names in order, and only those that end in .msg and have the queue's name between that and the
        # first dot.
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        folder = Path(self.data_folder_out)
        temporary = folder / f"{name}.part"
        try:
            temporary.write_text(str(dumps(payload)), encoding="utf-8")  # type: ignore[no-untyped-call]
            os.replace(temporary, folder / name)
        except OSError as error:
            raise ChannelError(f"cannot write the message {folder / name}: {error.strerror}") from error


class Transport(filesystem.Transport):
    Channel = Channel


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cohort.settings")  # Celery sets Django up when it finds this

_SCHEDULE = environment().home_folder / "beat-schedule"

TRANSPORT_ALIASES["filesystem"] = f"{__name__}:{Transport.__name__}"  # in this process, filesystem:// means it
app = Celery("cohort")
app.conf.update(CELERY)
app.conf.beat_schedule_filename = str(_SCHEDULE)
app.conf.imports = ["cohort.background.tasks"]  # imported once Django is set up


@beat_init.connect  # type: ignore[untyped-decorator]
@beat_embedded_init.connect  # type: ignore[untyped-decorator]
def _make_home(**_: Any) -> None:
    _SCHEDULE.parent.mkdir(parents=True, exist_ok=True)


@worker_init.connect  # type: ignore[untyped-decorator]
def _send_no_events(sender: Any, **_: Any) -> None:
    sender.options.update(WITHOUT_EVENTS)
