"""/readyz with its reasons, and a disk that is nearly full or full: uploads are refused in words, and nothing is half
stored. Full disks are real ones."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.core.files import uploadhandler
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client

from cohort.background.outages import AWAY
from cohort.background.tasks import seal
from cohort.base.celery_app import app
from cohort.base.environment import environment
from cohort.base.scratch import scratch_folder
from cohort.catalog.models import EvalSuite, PromptDataset
from cohort.records.models import Card
from cohort.runs.models import CheckpointFile, Run, ServiceBeat
from grpo_core.errors import DiskFullError
from tests.disks import small_disk
from tests.factories import sealed_run
from tests.factories.suites import ITEMS
from tests.factories.suites import upload as suite_upload
from tests.web.test_checkpoints import registers, run, sends, worker
from tests.web.test_dataset import upload
from tests.web.worker_calls import AttemptCaller, refused

__all__ = ["run", "worker"]

pytestmark = pytest.mark.django_db
KB = 1024


@pytest.fixture(autouse=True)
def looked_at_anew() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that /readyz looks at works."""
    monkeypatch.setattr(environment(), "home", tmp_path)
    monkeypatch.setattr(environment(), "min_free_bytes", 0)
    ServiceBeat.objects.create(name="reconciler", beat_at=Now())


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The artifacts' own, of 256 KiB, of which all may be used."""
    with small_disk(tmp_path / "disk", 256 * KB) as folder:
        monkeypatch.setattr(environment(), "artifacts", f"file://{folder}")
        monkeypatch.setattr(environment(), "min_free_bytes", 0)
        yield folder


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# ---------------------------------------------------------------------- /readyz


def reasons(client: Client) -> tuple[int, list[str]]:
    cache.clear()
    reply = client.get("/readyz")
    assert reply.json()["ready"] == (reply.status_code == 200)
    return reply.status_code, reply.json()["reasons"]


def test_ready_when_all_works_and_nothing_is_left_of_the_look(client: Client, ready: None, tmp_path: Path) -> None:
    assert reasons(client) == (200, [])
    assert [path for path in files(tmp_path) if path.name != ".lock"] == []


def no_artifacts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "artifacts").write_text("in the way")


def little_room(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment(), "min_free_bytes", 2**62)


def no_scratch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "scratch").write_text("in the way")


def no_broker(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.conf, "broker_write_url", "amqp://guest:guest@127.0.0.1:1//")


def no_reconciler(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ServiceBeat.objects.update(beat_at=F("beat_at") - 2 * AWAY)


def no_database(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (no_artifacts, "the artifacts cannot be written"),
        (little_room, "nearly full: uploads are refused"),
        (no_scratch, "scratch/ of the home cannot be written"),
        (no_broker, "the broker does not answer"),
        (no_reconciler, "has not looked for lost workers lately"),
        (no_database, "the database does not answer"),
    ],
)
def test_each_part_that_does_not_work_is_named(
    client: Client,
    ready: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Path, pytest.MonkeyPatch], None],
    words: str,
) -> None:
    fault(tmp_path, monkeypatch)
    status, [reason] = reasons(client)
    assert status == 503
    assert words in reason
    assert client.get("/healthz").status_code == 200, "the server itself answers"


# ---------------------------------------------------------------------- a disk that is nearly full


def test_people_who_are_signed_in_see_it_and_uploads_are_refused(
    client: Client, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "disk is nearly full: uploads are refused"
    assert words not in operator.get("/p/ours/datasets/").content.decode()
    cache.clear()
    monkeypatch.setattr(environment(), "min_free_bytes", 2**62)
    assert words in operator.get("/p/ours/datasets/").content.decode()
    assert words not in client.get("/login/").content.decode()
    operator.raise_request_exception = False
    reply = upload(operator, b'{"prompt": "5 + 5?", "answer": "10"}\n')
    assert reply.status_code == 507
    assert "Nothing of this was stored" in reply.content.decode()
    assert not PromptDataset.objects.filter(name="set").exists()


# ---------------------------------------------------------------------- a disk that is full


def many(prompt: str) -> bytes:
    return b"".join(b'{"prompt": "%d %s", "answer": "1"}\n' % (number, prompt.encode()) for number in range(4000))


def test_an_upload_that_finds_no_room_leaves_nothing(operator: Client, disk: Path) -> None:
    operator.raise_request_exception = False
    large = many("a prompt that takes its place on the disk, like all the others")
    for reply in (
        upload(operator, large),
        suite_upload(operator, ("items.jsonl", ITEMS + b"".join(large_items())), name="large"),
    ):
        assert reply.status_code == 507
        assert "disk is full" in reply.content.decode()
    assert files(disk) == []
    assert not PromptDataset.objects.filter(name="set").exists()
    assert not EvalSuite.objects.filter(name="large").exists()
    assert upload(operator, b'{"prompt": "5 + 5?", "answer": "10"}\n').status_code == 302, "what fits is taken"


def large_items() -> Iterator[bytes]:
    for number in range(4000):
        yield b'{"id": "more-%d", "prompt": "A question that takes its place on the disk", "target": "yes"}\n' % number


class OnFullDisk(uploadhandler.FileUploadHandler):
    """Where an uploaded file goes before any view has it, on a disk without room."""

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        with open("/dev/full", "wb") as device:
            device.write(raw_data)

    def file_complete(self, file_size: int) -> None:
        raise AssertionError("it was not written")


def test_a_form_whose_temporary_file_finds_no_room_is_refused_too(operator: Client, settings: Any) -> None:
    """It is read before the view, by the CSRF check."""
    settings.FILE_UPLOAD_HANDLERS = [f"{__name__}.{OnFullDisk.__name__}"]
    browser = Client(enforce_csrf_checks=True, raise_request_exception=False)
    browser.cookies = operator.cookies
    assert browser.get("/p/ours/datasets/new/").cookies["csrftoken"].value  # so that the check reads the form
    reply = upload(browser, b'{"prompt": "5 + 5?", "answer": "10"}\n')
    assert reply.status_code == 507
    assert not PromptDataset.objects.filter(name="set").exists()


def test_a_worker_s_part_of_a_checkpoint_is_refused_and_taken_once_there_is_room(
    worker: AttemptCaller, disk: Path
) -> None:
    weights = bytes(range(256)) * 4 * 64
    digest = hashlib.sha256(weights).hexdigest()
    worker.client.raise_request_exception = False
    (disk / "other").write_bytes(bytes(230 * KB))
    registers(worker, 1, {"model.safetensors": weights})
    assert refused(worker.upload(digest, weights, offset=0)) == (507, "disk_full")
    assert worker.upload(digest).json() == {"received": 0, "done": False}
    assert files(disk) == [disk / "other"]
    (disk / "other").unlink()
    sends(worker, weights)
    assert CheckpointFile.objects.get().received == len(weights)


def test_a_record_that_finds_no_room_says_so_on_its_run_and_is_sealed_later(
    launch: Callable[..., Run], disk: Path
) -> None:
    this = sealed_run.finished(launch())
    for dataset in (this.dataset, this.eval_dataset):
        assert dataset is not None
        stored = environment().home_folder / "artifacts" / dataset.artifact
        (disk / dataset.artifact).parent.mkdir(exist_ok=True)
        (disk / dataset.artifact).write_bytes(stored.read_bytes())
    before = files(disk)
    (disk / "other").write_bytes(bytes(200 * KB))
    with pytest.raises(DiskFullError):
        seal(this.pk)
    this.refresh_from_db()
    assert "could not be sealed: The server's disk is full" in this.reason
    assert not Card.objects.filter(record__run=this).exists()
    (disk / "other").unlink()
    assert files(disk) == before


def test_work_in_a_scratch_folder_says_so_too(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment(), "home", disk)
    """Without the folder's path, since anyone may read it on the page that checks cards."""
    with pytest.raises(DiskFullError) as caught, scratch_folder("cards") as folder:
        (folder / "pack").write_bytes(bytes(512 * KB))
    assert str(disk) not in str(caught.value)
    assert [path for path in files(disk) if path.name != ".lock"] == []
