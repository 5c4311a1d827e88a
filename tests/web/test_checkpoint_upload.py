"""Checkpoints on the platform: files sent in parts that may be cut, doubled or wrong, what counts as stored, and what
is let go of."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from cohort import artifacts
from cohort.environment import environment
from cohort.runs.models import Attempt, Checkpoint, CheckpointFile, Run, RunEvent
from cohort.runs.nodes import node_create
from grpo_core.wire import UploadReply
from tests.web.checkpoint_calls import STATE, WEIGHTS, registers, run, sends, sha, worker
from tests.web.run_rows import Maker, add_checkpoint
from tests.web.worker_calls import AttemptCaller, Caller, claim, node, refused

__all__ = ["node", "run", "worker"]  # fixtures

pytestmark = pytest.mark.django_db

SHARED = b'{"model_type": "tiny"}'
DIGEST = sha(WEIGHTS)


def reply(answer: Any) -> tuple[int, bool]:
    assert answer.status_code == 200, answer.content
    received = UploadReply.model_validate_json(answer.content)
    return received.received, received.done


def on_disk(run: Run) -> dict[str, list[int]]:
    """Sizes of the parts that lie in the artifacts, by file."""
    folder = environment().home_folder / "artifacts" / "checkpoints" / f"run-{run.pk}"
    if not folder.exists():
        return {}
    return {file.name: [part.stat().st_size for part in sorted(file.iterdir())] for file in folder.iterdir()}


def fetched(worker: AttemptCaller, content: bytes) -> bytes:
    return b"".join(worker.get(f"{worker.at}/files/{sha(content)}").streaming_content)


def stored_steps(run: Run) -> list[int]:
    return list(run.checkpoints.filter(stored_at__isnull=False).order_by("step").values_list("step", flat=True))


@pytest.fixture
def weights(worker: AttemptCaller) -> AttemptCaller:
    """The worker, which has registered the weights of step 1."""
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    return worker


# ---------------------------------------------------------------------- one file


def test_a_file_in_parts_goes_on_where_it_was_cut(weights: AttemptCaller, run: Run) -> None:
    for part, offset, answer in (
        (b"", None, (0, False)),
        (WEIGHTS[:4000], 0, (4000, False)),
        (b"", None, (4000, False)),  # an answer was lost, so it asks
        (WEIGHTS[4000:9000], 4000, (9000, False)),
        (WEIGHTS[9000:], 9000, (len(WEIGHTS), True)),
        (b"", None, (len(WEIGHTS), True)),
        (b"more", 9000, (len(WEIGHTS), True)),  # it has all it wants
    ):
        assert reply(weights.upload(DIGEST, part, offset=offset)) == answer
    assert on_disk(run) == {DIGEST: [4000, 5000, 1240]}
    assert fetched(weights, WEIGHTS) == WEIGHTS


@pytest.mark.parametrize("offset", [0, 3999, 4001, 10**17])
def test_a_part_at_the_wrong_byte_changes_nothing(weights: AttemptCaller, run: Run, offset: int) -> None:
    weights.upload(DIGEST, WEIGHTS[:4000], offset=0)
    answer = weights.upload(DIGEST, WEIGHTS[4000:], offset=offset)
    assert refused(answer) == (409, "wrong_offset")
    assert "begins at byte 4000" in answer.json()["message"]
    assert reply(weights.upload(DIGEST)) == (4000, False)
    assert on_disk(run) == {DIGEST: [4000]}


def test_a_part_left_by_a_crash_is_written_over(weights: AttemptCaller, run: Run) -> None:
    """The part was stored, and the server died before the row said so."""
    weights.upload(DIGEST, WEIGHTS[:4000], offset=0)
    artifacts.put(f"checkpoints/run-{run.pk}/{DIGEST}/{4000:020d}", [b"half a part"])
    assert reply(weights.upload(DIGEST)) == (4000, False)
    assert reply(weights.upload(DIGEST, WEIGHTS[4000:], offset=4000)) == (len(WEIGHTS), True)
    assert fetched(weights, WEIGHTS) == WEIGHTS


def test_wrong_bytes_are_found_at_the_end_and_thrown_away(weights: AttemptCaller, run: Run) -> None:
    flipped = bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:]
    weights.upload(DIGEST, flipped[:4000], offset=0)
    answer = weights.upload(DIGEST, flipped[4000:], offset=4000)
    assert refused(answer) == (422, "bad_file")
    assert sha(flipped) in answer.json()["message"]
    assert reply(weights.upload(DIGEST)) == (0, False)
    assert on_disk(run) == {}
    assert stored_steps(run) == []
    assert reply(weights.upload(DIGEST, WEIGHTS, offset=0)) == (len(WEIGHTS), True)


def test_more_than_announced_is_refused_and_not_stored(weights: AttemptCaller, run: Run) -> None:
    sends(weights, WEIGHTS)  # so that what follows is no matter of this file
    registers(weights, 2, {"state.json": STATE})
    assert refused(weights.upload(sha(STATE), STATE + b" ", offset=0)) == (422, "bad_file")
    assert set(on_disk(run)) == {DIGEST}


def test_an_empty_file_needs_no_part(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"nothing.json": b""})
    assert reply(worker.upload(sha(b""))) == (0, True)
    assert stored_steps(run) == [1]
    assert fetched(worker, b"") == b""


def test_only_what_the_attempt_registered_is_taken(worker: AttemptCaller, run: Run, maker: Maker) -> None:
    other = maker.attempt(maker.run("other"), state="finished")
    theirs = next(iter(add_checkpoint(other, 1).files.values()))["sha256"]
    for digest in (DIGEST, "..", "g" * 64, DIGEST.upper(), DIGEST[:63], theirs):
        assert refused(worker.upload(digest, WEIGHTS, offset=0)) == (404, "unknown_file")
    registers(worker, 1, {"model.safetensors": WEIGHTS}, final=True)
    assert refused(worker.upload(DIGEST, WEIGHTS, offset=0)) == (404, "unknown_file"), "final weights stay there"
    assert on_disk(run) == {}
    assert not CheckpointFile.objects.exists()


def test_a_digest_or_size_that_cannot_be_is_no_address(worker: AttemptCaller, run: Run) -> None:
    """The manifest comes from a machine that runs untrusted code."""
    add_checkpoint(Attempt.objects.get(), 1)
    sizes = {"../../x": 3, sha(b"b"): -1, sha(b"c"): 10**30}
    Checkpoint.objects.update(files={name: {"size": size, "sha256": name} for name, size in sizes.items()})
    assert worker.upload("..%2F..%2Fx", b"abc", offset=0).status_code == 404
    for content in (b"b", b"c"):
        assert refused(worker.upload(sha(content), content, offset=0)) == (422, "bad_file")
    assert on_disk(run) == {}


def test_headers_and_size_are_checked(weights: AttemptCaller, settings: Any) -> None:
    address, fence = f"{weights.at}/uploads/{DIGEST}", {"X-Cohort-Fence": "1"}
    for headers in ({}, fence, fence | {"X-Cohort-Offset": "-1"}, {"X-Cohort-Fence": "x"}):
        assert refused(weights.post(address, WEIGHTS, **headers)) == (422, "bad_request")
    assert weights.get(address).status_code == 405
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    assert refused(weights.upload(DIGEST, WEIGHTS, offset=0)) == (413, "too_large")


# ---------------------------------------------------------------------- whose file


def test_another_attempt_s_token_opens_nothing(weights: AttemptCaller, maker: Maker, node: Caller) -> None:
    other = Caller(node_create(name="gpu-2")[1])
    theirs = AttemptCaller(claim(other, maker.run("other", state="queued")))
    headers = {"X-Cohort-Fence": "1", "X-Cohort-Offset": "0"}
    for caller in (theirs, Caller("guess"), node):
        answer = caller.post(f"{weights.at}/uploads/{DIGEST}", WEIGHTS, **headers)
        assert refused(answer) == (401, "unknown_token")
    sends(weights, WEIGHTS)
    assert refused(theirs.get(f"{theirs.at}/files/{DIGEST}")) == (404, "unknown_file"), "another run's"


def test_a_stale_fence_stores_nothing(weights: AttemptCaller, run: Run) -> None:
    assert refused(weights.upload(DIGEST, WEIGHTS, offset=0, fence=2)) == (409, "stale_fence")
    weights.finish("preempted", last_seq=0, code="worker_shutdown")
    for part, offset in ((WEIGHTS, 0), (b"", None)):
        assert refused(weights.upload(DIGEST, part, offset=offset)) == (409, "stale_fence")
    assert on_disk(run) == {}


# ---------------------------------------------------------------------- whole checkpoints


def test_a_checkpoint_is_stored_when_its_last_file_is(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"config.json": SHARED, "state.json": STATE})
    sends(worker, SHARED)
    assert stored_steps(run) == []
    sends(worker, STATE)
    worker.upload(sha(STATE))
    assert stored_steps(run) == [1]
    event = RunEvent.objects.get(kind="checkpoint_stored")
    assert (event.actor, event.data["step"], event.data["bytes"]) == ("node:gpu-1", 1, len(SHARED) + len(STATE))


def test_a_file_that_the_run_has_is_not_sent_again(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"config.json": SHARED})
    sends(worker, SHARED)
    registers(worker, 2, {"config.json": SHARED, "state.json": b"2"})
    assert reply(worker.upload(sha(SHARED))) == (len(SHARED), True)
    sends(worker, b"2")
    registers(worker, 3, {"config.json": SHARED})
    assert stored_steps(run) == [1, 2]
    worker.upload(sha(SHARED))
    assert stored_steps(run) == [2, 3], "by asking, since all its files are here"


def test_the_newest_two_the_best_and_the_pinned_stay(
    worker: AttemptCaller, run: Run, django_capture_on_commit_callbacks: Any
) -> None:
    artifacts.put(f"checkpoints/run-{run.pk}/{sha(b'gone')}/{0:020d}", [b"gone"])  # as a crash leaves it
    with django_capture_on_commit_callbacks(execute=True):
        for number in range(1, 7):
            registers(worker, number, {"config.json": SHARED, "state.json": str(number).encode()})
            Checkpoint.objects.filter(step=1).update(pinned=True)
            Checkpoint.objects.filter(step=2).update(best=True)
            sends(worker, SHARED, str(number).encode())
    assert stored_steps(run) == [1, 2, 5, 6]
    held = {sha(str(number).encode()) for number in (1, 2, 5, 6)} | {sha(SHARED)}
    assert set(on_disk(run)) == held
    assert set(CheckpointFile.objects.values_list("sha256", flat=True)) == held


def test_the_files_of_a_checkpoint_on_its_way_stay_too(
    worker: AttemptCaller, run: Run, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        for number in (1, 2, 3):
            registers(worker, number, {"state.json": str(number).encode()})
            if number < 3:
                sends(worker, str(number).encode())
        registers(worker, 4, {"weights.safetensors": WEIGHTS, "state.json": b"4"})
        worker.upload(DIGEST, WEIGHTS[:100], offset=0)
        sends(worker, b"3")
    assert stored_steps(run) == [2, 3]
    assert on_disk(run) == {sha(b"2"): [1], sha(b"3"): [1], DIGEST: [100]}
    assert reply(worker.upload(DIGEST, WEIGHTS[100:], offset=100)) == (len(WEIGHTS), True)


def test_a_held_file_that_is_gone_is_said_before_the_answer(weights: AttemptCaller, run: Run) -> None:
    weights.upload(DIGEST, WEIGHTS[:100], offset=0)
    assert refused(weights.get(f"{weights.at}/files/{DIGEST}")) == (404, "unknown_file"), "not whole yet"
    weights.upload(DIGEST, WEIGHTS[100:], offset=100)
    artifacts.remove(f"checkpoints/run-{run.pk}/{DIGEST}/{0:020d}")
    assert refused(weights.get(f"{weights.at}/files/{DIGEST}")) == (404, "file_missing")


@pytest.mark.django_db(transaction=True)
def test_four_at_once_leave_no_gap_and_no_double(weights: AttemptCaller, run: Run) -> None:
    """Four senders of the same file in parts of their own sizes: each asks, sends, and is told when it was late."""
    start = threading.Barrier(4)

    def send(size: int) -> None:
        start.wait()
        while True:
            received, done = reply(weights.upload(DIGEST))
            if done:
                break
            answer = weights.upload(DIGEST, WEIGHTS[received : received + size], offset=received)
            if answer.status_code != 200:
                assert refused(answer) == (409, "wrong_offset")
        connection.close()

    with ThreadPoolExecutor(4) as senders:
        list(senders.map(send, (700, 900, 1100, 1300)))  # what one of them raises is raised here
    assert fetched(weights, WEIGHTS) == WEIGHTS
    assert sum(on_disk(run)[DIGEST]) == len(WEIGHTS)
    assert stored_steps(run) == [1]
    assert RunEvent.objects.filter(kind="checkpoint_stored").count() == 1
