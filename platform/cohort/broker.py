"""How Celery reaches its broker. Knows no Django, so that the settings can import it."""

from pathlib import Path
from typing import Any


def celery_transport(broker_url: str, folder: Path) -> dict[str, Any]:
    """Celery settings for the address; for filesystem:// the folder is made and used for all messages."""
    if not broker_url.startswith("filesystem:"):
        return {"broker_url": broker_url}
    messages, control = folder / "messages", folder / "control"
    messages.mkdir(parents=True, exist_ok=True)
    control.mkdir(parents=True, exist_ok=True)
    return {
        "broker_url": "filesystem://",
        "broker_transport_options": {
            "data_folder_in": str(messages),
            "data_folder_out": str(messages),
            "control_folder": str(control),
        },
    }
