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
from tests.worker.making import envelopes, packed, phase, step

__all__ = ["node", "run", "worker"]  # fixtures

pytestmark = pytest.mark.django_db

SHARED = b'{"model_type": "tiny"}'


def reply(answer: Any) -> tuple[int, bool]:
    assert answer.status_code == 200, answer.content
    told = UploadReply.model_validate_json(answer.content)
    return told.received, told.done


def on_disk(run: Run) -> dict[str, list[int]]:
    """Sizes of the parts that lie in the artifacts, by file."""
    folder = environment().home_folder / "artifacts" / "checkpoints" / f"run-{run.pk}"
    if not folder.exists():
        return {}
    return {file.name: [part.stat().st_size for part in sorted(file.iterdir())] for file in folder.iterdir()}


# ---------------------------------------------------------------------- one file


def test_a_file_in_parts_goes_on_where_it_was_cut(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    digest = sha(WEIGHTS)
    assert reply(worker.upload(digest)) == (0, False)
    assert reply(worker.upload(digest, WEIGHTS[:4000], offset=0)) == (4000, False)
    assert reply(worker.upload(digest)) == (4000, False)  # its answer was lost, so it asks
    assert reply(worker.upload(digest, WEIGHTS[4000:9000], offset=4000)) == (9000, False)
    assert reply(worker.upload(digest, WEIGHTS[9000:], offset=9000)) == (len(WEIGHTS), True)
    assert reply(worker.upload(digest)) == (len(WEIGHTS), True)
    assert reply(worker.upload(digest, b"more", offset=9000)) == (len(WEIGHTS), True), "it has all it wants"
    assert on_disk(run) == {digest: [4000, 5000, 1240]}
    answer = worker.get(f"{worker.at}/files/{digest}")
    assert b"".join(answer.streaming_content) == WEIGHTS
    assert answer.headers["Content-Length"] == str(len(WEIGHTS))


@pytest.mark.parametrize("offset", [0, 3999, 4001, 10**17])
def test_a_part_at_the_wrong_byte_changes_nothing(worker: AttemptCaller, run: Run, offset: int) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    worker.upload(sha(WEIGHTS), WEIGHTS[:4000], offset=0)
    answer = worker.upload(sha(WEIGHTS), WEIGHTS[4000:], offset=offset)
    assert refused(answer) == (409, "wrong_offset")
    assert "begins at byte 4000" in answer.json()["message"]
    assert reply(worker.upload(sha(WEIGHTS))) == (4000, False)
    assert on_disk(run) == {sha(WEIGHTS): [4000]}


def test_a_part_left_by_a_crash_is_written_over(worker: AttemptCaller, run: Run) -> None:
    """The part was stored, and the server died before the row said so."""
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    worker.upload(sha(WEIGHTS), WEIGHTS[:4000], offset=0)
    artifacts.put(f"checkpoints/run-{run.pk}/{sha(WEIGHTS)}/{4000:020d}", [b"half a part"])
    assert reply(worker.upload(sha(WEIGHTS))) == (4000, False)
    assert reply(worker.upload(sha(WEIGHTS), WEIGHTS[4000:], offset=4000)) == (len(WEIGHTS), True)
    assert b"".join(worker.get(f"{worker.at}/files/{sha(WEIGHTS)}").streaming_content) == WEIGHTS


def test_wrong_bytes_are_found_at_the_end_and_thrown_away(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    flipped = bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:]
    worker.upload(sha(WEIGHTS), flipped[:4000], offset=0)
    answer = worker.upload(sha(WEIGHTS), flipped[4000:], offset=4000)
    assert refused(answer) == (422, "bad_file")
    assert f"have the SHA-256 {sha(flipped)}" in answer.json()["message"]
    assert reply(worker.upload(sha(WEIGHTS))) == (0, False)
    assert on_disk(run) == {}
    assert not Checkpoint.objects.filter(stored_at__isnull=False).exists()
    assert reply(worker.upload(sha(WEIGHTS), WEIGHTS, offset=0)) == (len(WEIGHTS), True)


def test_more_than_announced_is_refused_and_not_stored(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    worker.upload(sha(WEIGHTS), WEIGHTS, offset=0)  # so that what follows is no matter of this file
    registers(worker, 2, {"state.json": STATE})
    answer = worker.upload(sha(STATE), STATE + b" ", offset=0)
    assert refused(answer) == (422, "bad_file")
    assert "ends at byte 12" in answer.json()["message"]
    assert "11 bytes" in answer.json()["message"]
    assert set(on_disk(run)) == {sha(WEIGHTS)}


def test_an_empty_file_needs_no_part(worker: AttemptCaller) -> None:
    registers(worker, 1, {"nothing.json": b""})
    assert reply(worker.upload(sha(b""))) == (0, True)
    assert Checkpoint.objects.get().stored_at is not None
    assert b"".join(worker.get(f"{worker.at}/files/{sha(b'')}").streaming_content) == b""


def test_only_what_the_attempt_registered_is_taken(worker: AttemptCaller, run: Run, maker: Maker) -> None:
    assert refused(worker.upload(sha(WEIGHTS), WEIGHTS, offset=0)) == (404, "unknown_file")
    registers(worker, 1, {"model.safetensors": WEIGHTS}, final=True)
    assert refused(worker.upload(sha(WEIGHTS), WEIGHTS, offset=0)) == (404, "unknown_file"), "final weights stay there"
    for digest in ("..", "g" * 64, sha(WEIGHTS).upper(), sha(WEIGHTS)[:63]):
        assert refused(worker.upload(digest, WEIGHTS, offset=0)) == (404, "unknown_file")
    other = maker.attempt(maker.run("other"), state="finished")
    theirs = next(iter(add_checkpoint(other, 1).files.values()))["sha256"]
    assert refused(worker.upload(theirs, WEIGHTS, offset=0)) == (404, "unknown_file")
    assert on_disk(run) == {}
    assert not CheckpointFile.objects.exists()


def test_a_digest_or_size_that_cannot_be_is_no_address(worker: AttemptCaller, run: Run) -> None:
    """The manifest comes from a machine that runs untrusted code."""
    attempt = Attempt.objects.get()
    add_checkpoint(attempt, 1)
    sizes = {"../../x": 3, sha(b"b"): -1, sha(b"c"): 10**30}
    Checkpoint.objects.update(files={name: {"size": size, "sha256": name} for name, size in sizes.items()})
    assert worker.upload("..%2F..%2Fx", b"abc", offset=0).status_code == 404
    assert refused(worker.upload(sha(b"b"), b"b", offset=0)) == (422, "bad_file")
    assert refused(worker.upload(sha(b"c"), b"c", offset=0)) == (422, "bad_file")
    assert on_disk(run) == {}


def test_headers_are_checked(worker: AttemptCaller) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    at = f"{worker.at}/uploads/{sha(WEIGHTS)}"
    for headers in ({}, {"X-Cohort-Fence": "1"}, {"X-Cohort-Fence": "1", "X-Cohort-Offset": "-1"}):
        assert refused(worker.post(at, WEIGHTS, **headers)) == (422, "bad_request")
    assert refused(worker.post(at, b"", **{"X-Cohort-Fence": "x"})) == (422, "bad_request")
    assert worker.get(at).status_code == 405


def test_a_part_of_more_than_the_limit_is_refused_unread(worker: AttemptCaller, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    assert refused(worker.upload(sha(WEIGHTS), WEIGHTS, offset=0)) == (413, "too_large")


# ---------------------------------------------------------------------- whose file


def test_another_attempt_s_token_opens_nothing(worker: AttemptCaller, maker: Maker, node: Caller) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    other = Caller(node_create(name="gpu-2")[1])
    maker.run("other", state="queued")
    theirs = AttemptCaller(claim(other, maker.run("third", state="queued")))
    mine = theirs.at
    theirs.at = worker.at
    for caller in (theirs, Caller("guess"), node):
        at = f"{worker.at}/uploads/{sha(WEIGHTS)}"
        answer = caller.post(at, WEIGHTS, **{"X-Cohort-Fence": "1", "X-Cohort-Offset": "0"})
        assert refused(answer) == (401, "unknown_token")
    sends(worker, WEIGHTS)
    theirs.at = mine
    assert refused(theirs.get(f"{mine}/files/{sha(WEIGHTS)}")) == (404, "unknown_file"), "another run's"


def test_a_stale_fence_stores_nothing(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    assert refused(worker.upload(sha(WEIGHTS), WEIGHTS, offset=0, fence=2)) == (409, "stale_fence")
    worker.finish("preempted", last_seq=0, code="worker_shutdown")
    assert refused(worker.upload(sha(WEIGHTS), WEIGHTS, offset=0)) == (409, "stale_fence")
    assert refused(worker.upload(sha(WEIGHTS))) == (409, "stale_fence")
    assert on_disk(run) == {}


# ---------------------------------------------------------------------- whole checkpoints


def stored_steps(run: Run) -> list[int]:
    return list(run.checkpoints.filter(stored_at__isnull=False).order_by("step").values_list("step", flat=True))


def test_a_checkpoint_is_stored_when_its_last_file_is(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS, "state.json": STATE})
    sends(worker, WEIGHTS)
    assert stored_steps(run) == []
    sends(worker, STATE)
    assert stored_steps(run) == [1]
    event = RunEvent.objects.get(kind="checkpoint_stored")
    assert (event.actor, event.data["step"], event.data["bytes"]) == ("node:gpu-1", 1, len(WEIGHTS) + len(STATE))
    assert event.message.startswith("The checkpoint at step 1 is on the platform")
    worker.upload(sha(STATE))
    assert RunEvent.objects.filter(kind="checkpoint_stored").count() == 1


def test_a_file_that_the_run_has_is_not_sent_again(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"config.json": SHARED, "state.json": b"1"})
    sends(worker, SHARED, b"1")
    registers(worker, 2, {"config.json": SHARED, "state.json": b"2"})
    assert reply(worker.upload(sha(SHARED))) == (len(SHARED), True)
    assert stored_steps(run) == [1]
    sends(worker, b"2")
    assert stored_steps(run) == [1, 2]


def test_a_checkpoint_of_files_that_are_all_here_is_stored_by_asking(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"config.json": SHARED})
    sends(worker, SHARED)
    registers(worker, 2, {"config.json": SHARED})
    assert stored_steps(run) == [1]
    worker.upload(sha(SHARED))
    assert stored_steps(run) == [1, 2]


def test_the_newest_two_the_best_and_the_pinned_stay(
    worker: AttemptCaller, run: Run, django_capture_on_commit_callbacks: Any
) -> None:
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


def test_the_files_of_one_on_its_way_stay_too(
    worker: AttemptCaller, run: Run, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        for number in (1, 2):
            registers(worker, number, {"state.json": str(number).encode()})
            sends(worker, str(number).encode())
        registers(worker, 3, {"state.json": b"3"})
        registers(worker, 4, {"weights.safetensors": WEIGHTS, "state.json": b"4"})
        worker.upload(sha(WEIGHTS), WEIGHTS[:100], offset=0)
        sends(worker, b"3")
    assert stored_steps(run) == [2, 3]
    assert on_disk(run) == {sha(b"2"): [1], sha(b"3"): [1], sha(WEIGHTS): [100]}
    assert reply(worker.upload(sha(WEIGHTS), WEIGHTS[100:], offset=100)) == (len(WEIGHTS), True)


def test_what_a_crash_left_behind_is_swept_with_the_next(
    worker: AttemptCaller, run: Run, django_capture_on_commit_callbacks: Any
) -> None:
    artifacts.put(f"checkpoints/run-{run.pk}/{sha(b'gone')}/{0:020d}", [b"gone"])
    registers(worker, 1, {"state.json": b"1"})
    with django_capture_on_commit_callbacks(execute=True):
        sends(worker, b"1")
    assert on_disk(run) == {sha(b"1"): [1]}


def test_a_held_file_that_is_gone_is_said_before_the_answer(worker: AttemptCaller, run: Run) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    worker.upload(sha(WEIGHTS), WEIGHTS[:100], offset=0)
    assert refused(worker.get(f"{worker.at}/files/{sha(WEIGHTS)}")) == (404, "unknown_file"), "not whole yet"
    worker.upload(sha(WEIGHTS), WEIGHTS[100:], offset=100)
    artifacts.remove(f"checkpoints/run-{run.pk}/{sha(WEIGHTS)}/{0:020d}")
    assert refused(worker.get(f"{worker.at}/files/{sha(WEIGHTS)}")) == (404, "file_missing")


@pytest.mark.django_db(transaction=True)
def test_four_at_once_leave_no_gap_and_no_double(run: Run, node: Caller) -> None:
    """Four senders of the same file in parts of their own sizes: each asks, sends, and is told when it was late."""
    worker = AttemptCaller(claim(node, run))
    worker.records(packed(envelopes([phase("training", 4), step(1)])))
    registers(worker, 1, {"weights.safetensors": WEIGHTS})
    start = threading.Barrier(4)

    def send(size: int) -> None:
        start.wait()
        while True:
            received, done = reply(worker.upload(sha(WEIGHTS)))
            if done:
                break
            answer = worker.upload(sha(WEIGHTS), WEIGHTS[received : received + size], offset=received)
            if answer.status_code != 200:
                assert refused(answer) == (409, "wrong_offset")
        connection.close()

    with ThreadPoolExecutor(4) as senders:
        list(senders.map(send, (70, 90, 110, 130)))  # what one of them raises is raised here
    assert b"".join(worker.get(f"{worker.at}/files/{sha(WEIGHTS)}").streaming_content) == WEIGHTS
    assert sum(on_disk(run)[sha(WEIGHTS)]) == len(WEIGHTS)
    assert stored_steps(run) == [1]
    assert RunEvent.objects.filter(kind="checkpoint_stored").count() == 1
