"""Checkpoints on the platform: files sent in parts that may be cut, doubled or wrong, what counts as stored and what is
let go of; which of them the next attempt is offered, and which a node need not keep.
"""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from cohort.base import artifacts
from cohort.base.environment import environment
from cohort.nodes.services import node_create
from cohort.runs.checkpoints import needless as needless_of
from cohort.runs.checkpoints import offers, pinned, resumable
from cohort.runs.models import Attempt, Checkpoint, CheckpointFile, Run, RunEvent
from grpo_core.protocol.messages import UploadReply
from grpo_core.records import types as records
from tests.factories.runs import Maker, add_checkpoint
from tests.factories.worker import envelopes, packed, phase, step
from tests.web.batches import saved
from tests.web.conftest import PROBLEMS
from tests.web.worker_calls import AttemptCaller, Caller, claim, refused

pytestmark = pytest.mark.django_db

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
    """Claimed, and at step 8 of its training; nothing is written down of a checkpoint."""
    caller = AttemptCaller(claim(node, run))
    caller.records(packed(envelopes([phase("training", 9), *(step(number) for number in range(1, 9))])))
    return caller


def registers(worker: AttemptCaller, number: int, files: dict[str, bytes], *, final: bool = False) -> None:
    """The trainer wrote a checkpoint, and its record has arrived."""
    entries = {name: records.FileEntry(size=len(content), sha256=sha(content)) for name, content in files.items()}
    path = "checkpoints/final" if final else f"checkpoints/step-{number:06d}"
    body = records.CheckpointManifest(step=number, path=path, files=entries, final=final, seconds=0.1)
    seq = Attempt.objects.get(pk=worker.at.rpartition("/")[2]).acked_seq + 1
    assert worker.records(packed(envelopes([body], first=seq))).json() == {"acked_seq": seq}


def sends(worker: AttemptCaller, *contents: bytes) -> None:
    for content in contents:
        if not worker.upload(sha(content)).json()["done"]:
            reply = worker.upload(sha(content), content, offset=0)
            assert reply.json() == {"received": len(content), "done": True}


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


def test_only_what_was_registered_is_taken(worker: AttemptCaller, run: Run, maker: Maker, settings: Any) -> None:
    """The manifest comes from a machine that runs untrusted code: no size or digest of it is trusted either."""
    other = maker.attempt(maker.run("other"), state="finished")
    theirs = next(iter(add_checkpoint(other, 1).files.values()))["sha256"]
    for digest in (DIGEST, "..", "g" * 64, DIGEST.upper(), DIGEST[:63], theirs):
        assert refused(worker.upload(digest, WEIGHTS, offset=0)) == (404, "unknown_file")
    registers(worker, 1, {"model.safetensors": WEIGHTS}, final=True)
    assert refused(worker.upload(DIGEST, WEIGHTS, offset=0)) == (404, "unknown_file"), "final weights stay there"
    assert not CheckpointFile.objects.exists()
    registers(worker, 2, {"state.json": STATE})
    assert refused(worker.upload(sha(STATE), STATE, offset=0, fence=2)) == (409, "stale_fence")
    assert refused(worker.upload(sha(STATE), STATE + b" ", offset=0)) == (422, "bad_file"), "more than was announced"
    sizes = {"../../x": 3, sha(b"b"): -1, sha(b"c"): 10**30}
    files = {name: {"size": size, "sha256": name} for name, size in sizes.items()}
    Checkpoint.objects.filter(step=2).update(files=files)
    assert worker.upload("..%2F..%2Fx", b"abc", offset=0).status_code == 404
    for content in (b"b", b"c"):
        assert refused(worker.upload(sha(content), content, offset=0)) == (422, "bad_file")
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    assert refused(worker.upload(DIGEST, WEIGHTS, offset=0)) == (413, "too_large")
    assert on_disk(run) == {}


# ---------------------------------------------------------------------- whole checkpoints


def test_a_checkpoint_is_stored_when_its_last_file_is(worker: AttemptCaller, run: Run) -> None:
    """A file that the run has is not sent again, but asked for."""
    registers(worker, 1, {"config.json": SHARED, "state.json": STATE})
    sends(worker, SHARED)
    assert stored_steps(run) == []
    sends(worker, STATE)
    worker.upload(sha(STATE))
    assert stored_steps(run) == [1]
    event = RunEvent.objects.get(kind="checkpoint_stored")
    assert (event.actor, event.data["step"], event.data["bytes"]) == ("node:gpu-1", 1, len(SHARED) + len(STATE))
    registers(worker, 2, {"config.json": SHARED, "state.json": b"2"})
    assert reply(worker.upload(sha(SHARED))) == (len(SHARED), True)
    sends(worker, b"2")
    registers(worker, 3, {"config.json": SHARED})
    assert stored_steps(run) == [1, 2]
    worker.upload(sha(SHARED))
    assert stored_steps(run) == [2, 3]


def test_the_newest_two_the_best_and_the_pinned_stay(worker: AttemptCaller, run: Run, committed: Any) -> None:
    artifacts.put(f"checkpoints/run-{run.pk}/{sha(b'gone')}/{0:020d}", [b"gone"])  # as a crash leaves it
    with committed():
        for number in range(1, 7):
            registers(worker, number, {"config.json": SHARED, "state.json": str(number).encode()})
            Checkpoint.objects.filter(step=1).update(pinned=True)
            Checkpoint.objects.filter(step=2).update(best=True)
            sends(worker, SHARED, str(number).encode())
    assert stored_steps(run) == [1, 2, 5, 6]
    held = {sha(str(number).encode()) for number in (1, 2, 5, 6)} | {sha(SHARED)}
    assert set(on_disk(run)) == held
    assert set(CheckpointFile.objects.values_list("sha256", flat=True)) == held


def test_requested_final_weights_stay_and_so_does_what_has_arrived_of_them(
    worker: AttemptCaller, node: Caller, run: Run, committed: Any
) -> None:
    first, second = b"the first file", b"the second file"
    with committed():
        registers(worker, 1, {"model.safetensors": first, "config.json": second}, final=True)
        final = Checkpoint.objects.get(final=True)
        Checkpoint.objects.filter(pk=final.pk).update(requested_at=timezone.now())

        def sends_final(content: bytes) -> None:
            path = f"node/checkpoints/{final.pk}/uploads/{sha(content)}"
            assert node.post(path, content, **{"X-Cohort-Offset": "0"}).json()["done"]

        sends_final(first)
        for number in (2, 3, 4):
            registers(worker, number, {"state.json": str(number).encode()})
            sends(worker, str(number).encode())
        sends_final(second)
        for number in (5, 6):
            registers(worker, number, {"state.json": str(number).encode()})
            sends(worker, str(number).encode())
    assert stored_steps(run) == [1, 5, 6]
    assert set(on_disk(run)) == {sha(content) for content in (first, second, b"5", b"6")}
    assert [offer.step for offer in offers(run)] == [6, 5, 4, 3, 2], "no run resumes from final weights"


def test_the_files_of_a_checkpoint_on_its_way_stay_too(worker: AttemptCaller, run: Run, committed: Any) -> None:
    with committed():
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


def test_another_node_is_offered_and_fetches_what_is_stored(worker: AttemptCaller, run: Run) -> None:
    content = {"weights.safetensors": WEIGHTS, "state.json": STATE, "nothing.json": b""}
    registers(worker, 1, content)
    sends(worker, WEIGHTS, STATE)
    assert reply(worker.upload(sha(b""))) == (0, True), "an empty file needs no part"
    assert worker.finish("preempted", last_seq=3, code="worker_shutdown").status_code == 204
    for part, offset in ((WEIGHTS, 0), (b"", None)):
        assert refused(worker.upload(DIGEST, part, offset=offset)) == (409, "stale_fence")
    claimed = claim(Caller(node_create(name="gpu-2")[1]), run)
    (offer,) = claimed.resume
    assert (offer.step, offer.fence, offer.path, offer.stored) == (1, 1, "checkpoints/step-000001", True)
    second, dataset = AttemptCaller(claimed), claimed.files[0].sha256

    def fetched(sha256: str) -> bytes:
        return b"".join(second.get(f"{second.at}/files/{sha256}").streaming_content)

    assert {name: fetched(entry.sha256) for name, entry in offer.files.items()} == content
    assert fetched(dataset) == PROBLEMS
    assert refused(worker.get(f"{worker.at}/files/{dataset}")) == (409, "stale_fence"), "an ended attempt reads nothing"


# ---------------------------------------------------------------------- no longer needed


def trains(
    worker: AttemptCaller, *steps: int, first: int = 1, resumed: int | None = None, best: int | None = None
) -> None:
    """The steps, each with its checkpoint."""
    bodies: list[records.Body] = [phase("training", 20)] if first == 1 else []
    if resumed is not None:
        bodies.append(records.Resumed(step=resumed, checkpoint=f"checkpoints/step-{resumed:06d}", best=best))
    for number in steps:
        bodies += [step(number), saved(number)]
    answer = worker.records(packed(envelopes(bodies, first=first)))
    assert answer.json() == {"acked_seq": first - 1 + len(bodies)}


def needless(worker: AttemptCaller, *removed: int) -> list[int]:
    """Steps of the first attempt that the answer to a beat names, which says that those of `removed` are gone."""
    gone = [{"fence": 1, "path": f"checkpoints/step-{number:06d}"} for number in removed]
    answer = worker.post(f"{worker.at}/heartbeat", {"fence": worker.fence, "removed": gone})
    named = answer.json()["needless"]
    assert all(row["fence"] == 1 for row in named)
    return [int(row["path"].removeprefix("checkpoints/step-")) for row in named]


def moved(node: Caller, run: Run, worker: AttemptCaller, last: int) -> AttemptCaller:
    assert worker.finish("preempted", last_seq=last, code="worker_shutdown").status_code == 204
    return AttemptCaller(claim(node, run))


def removed_steps() -> list[int]:
    gone = Checkpoint.objects.filter(removed_at__isnull=False)
    return list(gone.order_by("step").values_list("step", flat=True))


@pytest.fixture
def first(run: Run, node: Caller) -> AttemptCaller:
    return AttemptCaller(claim(node, run))


def test_an_earlier_attempts_go_once_two_of_its_own_are_there(node: Caller, run: Run, first: AttemptCaller) -> None:
    trains(first, 1, 2, 3, 4, 5)
    assert needless(first) == [], "the first attempt's own"
    Checkpoint.objects.filter(step=2).update(pinned=True)
    Checkpoint.objects.filter(step=3).update(best=True)
    later = moved(node, run, first, 11)
    trains(later, 5, resumed=4, best=3)
    assert needless(later) == [], "with one of its own it might still need an older one"
    trains(later, 6, first=5)
    assert needless(later) == [1, 4, 5], "all but the pinned and the best, the superseded one too"
    assert needless(later, 1, 4) == [5]
    assert removed_steps() == [1, 4]


def test_what_lies_on_another_node_is_not_named_and_cannot_be_marked(run: Run, first: AttemptCaller) -> None:
    trains(first, 1, 2)
    Checkpoint.objects.update(stored_at=timezone.now())  # so that another node may take it
    later = moved(Caller(node_create(name="gpu-2")[1]), run, first, 5)
    trains(later, 3, 4, resumed=2)
    assert needless(later, 1) == []
    assert removed_steps() == []


def test_a_beat_reads_few_of_many_checkpoints(node: Caller, run: Run, first: AttemptCaller) -> None:
    """Rows that the database reads, by its own count, for what a beat asks of 5,000 checkpoints, of which 3 are still
    on the node and one of them is pinned."""
    trains(first, 1, 2, 3)
    moved(node, run, first, 7)
    attempt, now, count = Attempt.objects.get(fence=2), timezone.now(), 5_000
    fields = {"attempt": attempt, "run": run, "at": now, "files": {}}
    Checkpoint.objects.bulk_create(
        Checkpoint(
            **fields,
            seq=100 + number,
            step=number,
            path=f"checkpoints/step-{number:06d}",
            removed_at=None if number > count - 3 else now,
            pinned=number == count,
        )
        for number in range(1, count + 1)
    )
    counted = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'runs_checkpoint'"
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE runs_checkpoint")
        cursor.execute(counted)
        before = cursor.fetchone()[0]
        assert pinned(run) == [count]
        assert len(needless_of(attempt)) == 3, "those of the first attempt, now that the second has enough"
        newest = resumable(run).first()
        assert newest is not None
        assert newest.step == count
        cursor.execute(counted)
        assert 0 < cursor.fetchone()[0] - before < 100
