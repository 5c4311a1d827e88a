"""A worker by hand whose trainer writes checkpoints: it registers them and sends their files."""

import hashlib

import pytest

from cohort import artifacts
from cohort.runs.models import Attempt, Run
from grpo_core import records
from tests.web.run_rows import Maker
from tests.web.worker_calls import AttemptCaller, Caller, claim
from tests.worker.making import envelopes, packed, phase, step

WEIGHTS = bytes(range(256)) * 40
STATE = b'{"step": 2}'


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def run(maker: Maker) -> Run:
    """Nothing is stored of it, also where an earlier test's run had the same number in a database of its own."""
    run = maker.run(state="queued")
    artifacts.remove_folder(f"checkpoints/run-{run.pk}")
    return run


@pytest.fixture
def worker(run: Run, node: Caller) -> AttemptCaller:
    """Claimed, and at step 1 of its training; nothing is written down of a checkpoint."""
    caller = AttemptCaller(claim(node, run))
    caller.records(packed(envelopes([phase("training", 4), step(1)])))
    return caller


def registers(worker: AttemptCaller, number: int, files: dict[str, bytes], *, final: bool = False) -> None:
    """The trainer wrote a checkpoint, and its record has arrived."""
    entries = {name: records.FileEntry(size=len(content), sha256=sha(content)) for name, content in files.items()}
    path = "checkpoints/final" if final else f"checkpoints/step-{number:06d}"
    body = records.CheckpointManifest(step=number, path=path, files=entries, final=final, seconds=0.1)
    seq = Attempt.objects.latest("fence").acked_seq + 1
    assert worker.records(packed(envelopes([body], first=seq))).json() == {"acked_seq": seq}


def sends(worker: AttemptCaller, *contents: bytes) -> None:
    for content in contents:
        if not worker.upload(sha(content)).json()["done"]:
            reply = worker.upload(sha(content), content, offset=0)
            assert reply.json() == {"received": len(content), "done": True}
