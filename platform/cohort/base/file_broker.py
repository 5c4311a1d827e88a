"""Messages as files, for one machine: kombu's own transport, but that a message appears whole or not at all.

kombu writes a message under the name that readers look for, and a reader that comes between finds an empty file, takes
it, and its process ends. Only the platform sends messages, so only the platform needs this.
"""

import os
import time
import uuid
from pathlib import Path
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    def _put(self, queue: str, payload: Any, **kwargs: Any) -> None:  # type: ignore[override]
        # Readers take names in order, and only those that end in .msg and have the queue's name between that and the
        # first dot.
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        folder = Path(self.data_folder_out)
        aside = folder / f"{name}.part"
        try:
            aside.write_text(str(dumps(payload)), encoding="utf-8")  # type: ignore[no-untyped-call]
            os.replace(aside, folder / name)
        except OSError as error:
            raise ChannelError(f"cannot write the message {folder / name}: {error.strerror}") from error


class Transport(filesystem.Transport):
    Channel = Channel


def use() -> None:
    """From now on `filesystem://` means this transport in this process."""
    TRANSPORT_ALIASES["filesystem"] = f"{__name__}:{Transport.__name__}"
