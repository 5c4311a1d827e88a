"""What platform and worker must agree on to find each other's messages: names, and folders when no broker runs.

Neither may import the other, so the agreement is here. Knows no Celery: it returns settings as plain strings. A
message is a hint that a run waits; nothing breaks when one is lost or doubled.
"""

import re
from pathlib import Path
from typing import Any, Final

TRAIN_QUEUE: Final = "train"
PLATFORM_QUEUE: Final = "platform"
LAB_QUEUE: Final = "lab"
"""Jobs that try a reward. A separate worker process takes them on each host, so that they wait for no run."""
RUN_ATTEMPT_TASK: Final = "worker.run_attempt"
"""The task that a worker runs; its one argument is the run's id."""
LAB_JOB_TASK: Final = "worker.lab_job"
"""The task of the lab's worker; its one argument is the job's id."""

LABEL: Final = re.compile(rf"(?!(?:gpu[0-9]+|{TRAIN_QUEUE}|{PLATFORM_QUEUE})\Z)[a-z0-9][a-z0-9_-]{{0,39}}")
"""What a node may be called where a run says which nodes it may use: part of a queue's name, whose parts have dots
between them. On files, a message's name is a time, a dot and the whole name of its queue."""
LABEL_RULE: Final = (
    f"lower-case letters, digits, - and _, 40 at most, such as a100; not gpu with a number, {TRAIN_QUEUE} or "
    f"{PLATFORM_QUEUE}, which queues are called"
)
"""In words: a label takes …"""


def train_queue(*, label: str, gpus: int) -> str:
    """Queue of the runs that need a node with this label (empty: any) and so many GPUs."""
    return ".".join([TRAIN_QUEUE, *([label] if label else []), *([f"gpu{gpus}"] if gpus else [])])


def train_queues(*, labels: list[str], gpus: int) -> list[str]:
    """Every queue that a node with these labels and GPUs can serve."""
    return [train_queue(label=label, gpus=count) for label in ["", *labels] for count in range(gpus + 1)]


def queue_pattern(*, labels: list[str], gpus: int) -> str:
    """Regular expression of RabbitMQ for the queues that a node with these labels and GPUs reads, and no other."""
    names = [*train_queues(labels=labels, gpus=gpus), LAB_QUEUE]
    return f"^({'|'.join(re.escape(name) for name in names)})$"


WITHOUT_EVENTS: Final = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True}
"""Options of a Celery worker that then sends and reads no events, which take exchanges and queues on the broker."""


def celery_transport(broker_url: str, folder: Path) -> dict[str, Any]:
    """Celery settings for the address; for filesystem:// the folder is made and used for all messages. Remote control
    is off: whoever reaches the broker could end every worker with it."""
    control_off = {"worker_enable_remote_control": False}
    if not broker_url.startswith("filesystem:"):
        return {"broker_url": broker_url, **control_off}
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
        **control_off,
    }
