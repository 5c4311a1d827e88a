"""What platform and worker must agree on to find each other's messages: names, and folders when no broker runs.

Neither may import the other, so the agreement lies here, beside `wire`. Knows no Celery: it returns settings as plain
strings. A message is a hint that a run waits; nothing breaks when one is lost or doubled.
"""

from pathlib import Path
from typing import Any, Final

TRAIN_QUEUE: Final = "train"
PLATFORM_QUEUE: Final = "platform"
RUN_ATTEMPT_TASK: Final = "worker.run_attempt"
"""The task that a worker runs; its one argument is the run's id."""


def celery_transport(broker_url: str, folder: Path) -> dict[str, Any]:
    """Celery settings for the address; for filesystem:// the folder is made and used for all messages."""
    if not broker_url.startswith("filesystem:"):
        return {"broker_url": broker_url}
    messages, control = folder / "messages", folder / "control"
    messages.mkdir(parents=True, exist_ok=True)
    control.mkdir(parents=True, exist_ok=True)
    return {
        "broker_url": "filesystem://localhost//",  # a host that means nothing, or kombu warns at every start
        "broker_transport_options": {
            "data_folder_in": str(messages),
            "data_folder_out": str(messages),
            "control_folder": str(control),
        },
    }
