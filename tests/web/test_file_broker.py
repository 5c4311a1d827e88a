"""Messages as files: whoever looks into the folder while they are sent finds whole ones only."""

import json
import re
import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest
from kombu import Connection
from kombu.exceptions import ChannelError

from cohort.base.celery_app import app
from grpo_core.protocol.queues import celery_transport


def test_a_message_is_whole_from_the_moment_it_is_there(tmp_path: Path) -> None:
    settings = celery_transport("filesystem://", tmp_path)
    folder = Path(settings["broker_transport_options"]["data_folder_in"])
    torn: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for file in folder.glob("*.msg"):
                try:
                    content = file.read_bytes()
                except FileNotFoundError:
                    continue  # taken
                try:
                    json.loads(content)
                except ValueError:
                    torn.append(f"{file.name}: {len(content)} bytes")

    onlooker = threading.Thread(target=look)
    onlooker.start()
    try:
        with Connection(settings["broker_url"], transport_options=settings["broker_transport_options"]) as connection:
            assert type(connection.transport).__module__ == "cohort.base.celery_app", app.conf.broker_url
            with closing(connection.SimpleQueue("much")) as queue:
                for number in range(60):
                    queue.put({"number": number, "much": "x" * 100_000})
                messages = [queue.get(block=False) for _ in range(60)]
                for message in messages:
                    message.ack()
    finally:
        done.set()
        onlooker.join()
    assert torn == []
    assert sorted(message.payload["number"] for message in messages) == list(range(60))
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    settings = celery_transport("filesystem://", tmp_path)
    folder = Path(settings["broker_transport_options"]["data_folder_in"])
    options = settings["broker_transport_options"]
    with (
        Connection(settings["broker_url"], transport_options=options) as connection,
        closing(connection.SimpleQueue("lost")) as queue,
    ):
        queue.put({"number": 1})
        shutil.rmtree(folder)
        with pytest.raises(ChannelError, match=re.escape(str(folder))):
            queue.put({"number": 2})
