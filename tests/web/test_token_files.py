"""Token arrays on the platform: files sent in parts, hostile ones, rows that go with their sample's text."""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import transaction

from cohort.background.tasks import expire_traces
from cohort.base import artifacts
from cohort.base.environment import environment
from cohort.records.traces.redaction import samples_redact
from cohort.review import token_files
from cohort.review.models import Sample, TokenFile
from cohort.review.token_files import TokensUnreadable, token_files_sweep, token_row
from cohort.runs.models import Attempt, Run
from grpo_core.files.token_file import TokenRow
from grpo_core.records import types as records
from tests.factories.runs import Maker
from tests.factories.token_rows import SALT, columns, content_of, named, with_tokens
from tests.factories.worker import envelopes, packed, phase, step
from tests.web.worker_calls import AttemptCaller, Caller, claim, refused

pytestmark = pytest.mark.django_db(transaction=True)

SECRET, OTHER = ["my", " secret", " is", " seven"], ["nothing", " to", " hide"]
ROWS = [TokenRow(0, 0, SALT, columns(SECRET)), TokenRow(0, 1, SALT[::-1], columns(OTHER))]


def group(number: int = 1) -> records.Group:
    samples = tuple(
        records.Sample(
            index=index,
            completion="".join(pieces),
            tokens=len(pieces),
            finish_reason="eos",
            reward=float(index),
            components={},
            advantage=float(index),
        )
        for index, pieces in enumerate((SECRET, OTHER))
    )
    texts = {"problem_id": "p", "prompt": "say", "answer": "", "reward_mean": 0.5, "reward_std": 0.5}
    return records.Group(step=number, index=0, signal="mixed", samples=samples, **texts)


@pytest.fixture
def run(maker: Maker) -> Run:
    run = maker.run(state="queued")
    artifacts.remove_folder(f"tokens/run-{run.pk}")
    return run


@pytest.fixture
def worker(run: Run, node: Caller) -> AttemptCaller:
    caller = AttemptCaller(claim(node, run))
    caller.records(packed(envelopes([phase("training", 9), step(1)])))
    return caller


def registers(worker: AttemptCaller, *bodies: Any) -> Any:
    seq = Attempt.objects.get(pk=worker.at.rpartition("/")[2]).acked_seq + 1
    return worker.records(packed(envelopes(bodies, first=seq)))


@pytest.fixture
def content(worker: AttemptCaller) -> bytes:
    """The file of step 1, which was announced and not sent."""
    bodies, content = with_tokens([group()], ROWS)
    assert registers(worker, *bodies).status_code == 200
    return content


def sends(worker: AttemptCaller, content: bytes, *, at: int = 0, upto: int | None = None) -> Any:
    return worker.tokens(hashlib.sha256(content).hexdigest(), content[at:upto], offset=at)


def sample(index: int) -> Sample:
    return Sample.objects.select_related("group__run").get(index=index)


def stored(run: Run) -> list[Path]:
    folder = environment().home_folder / "artifacts" / "tokens" / f"run-{run.pk}"
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


def texts_in(path: Path) -> str:
    """Every text of a Parquet file, whatever its columns."""
    return str(pq.read_table(path).to_pydict()) if path.suffix == ".parquet" else str(path.read_bytes())


def redact(run: Run, *samples: Sample, actor: Any = None) -> int:
    return samples_redact(run=run, samples=list(samples), actor=actor, reason="a person asked")


def test_a_file_sent_in_parts_gives_each_samples_arrays(worker: AttemptCaller, content: bytes, run: Run) -> None:
    with pytest.raises(TokensUnreadable, match="have not reached"):
        token_row(sample(0))
    assert sends(worker, content, upto=100).json() == {"received": 100, "done": False}
    assert refused(sends(worker, content, at=50)) == (409, "wrong_offset")
    assert worker.tokens(hashlib.sha256(content).hexdigest()).json() == {"received": 100, "done": False}
    assert sends(worker, content, at=100).json() == {"received": len(content), "done": True}
    assert sends(worker, content).json() == {"received": len(content), "done": True}  # a doubled call
    assert [token_row(sample(index)).columns["piece"] for index in (0, 1)] == [SECRET, OTHER]
    assert token_row(sample(0)).columns["clipped"] == [False] * 4
    assert len(stored(run)) == 1  # and nothing of its parts


def test_only_a_named_file_is_taken(worker: AttemptCaller, content: bytes) -> None:
    assert refused(worker.tokens("ab" * 32, b"x", offset=0)) == (404, "unknown_file")
    wrong = content[:-1] + b"x"
    assert refused(worker.tokens(hashlib.sha256(content).hexdigest(), wrong, offset=0)) == (422, "bad_file")
    assert refused(worker.tokens(hashlib.sha256(content).hexdigest(), content, offset=0, fence=7))[1] == "stale_fence"
    again = named(content, 1, [(0, 0)])
    assert refused(registers(worker, again)) == (422, "bad_record")
    assert sends(worker, content).json()["done"]


HOSTILE = {
    "no Parquet": b"PAR1" + bytes(100) + b"PAR1",
    "cut": content_of(ROWS)[:-20],
    "a row too few": content_of(ROWS[:1]),
    "another sample": content_of([ROWS[0], TokenRow(0, 5, SALT, columns(OTHER))]),
    "other tokens": content_of([ROWS[0], TokenRow(0, 1, SALT, columns(["never", " was", " said"]))]),
    "more tokens": content_of([TokenRow(0, 0, SALT, columns(["x"] * 5000)), ROWS[1]]),
    "lengths": content_of([TokenRow(0, 0, SALT, columns(SECRET, clipped=[True])), ROWS[1]]),
    "holes": content_of([TokenRow(0, 0, SALT, columns(SECRET, ratio=[1.0, None, 1.0, 1.0])), ROWS[1]]),
    "flipped": bytes(byte ^ (1 if 200 < at < 260 else 0) for at, byte in enumerate(content_of(ROWS))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_dropped_and_the_page_says_why(
    name: str, worker: AttemptCaller, run: Run, viewer: Any
) -> None:
    hostile = HOSTILE[name]
    (*bodies, _), _ = with_tokens([group()], ROWS)
    assert registers(worker, *bodies, named(hostile, 1, [(0, 0), (0, 1)])).status_code == 200
    assert sends(worker, hostile).json()["done"]  # sending it again would mend nothing
    with pytest.raises(TokensUnreadable, match="are not kept"):
        token_row(sample(0))
    assert stored(run) == []
    page = viewer.get(f"/p/ours/runs/{run.pk}/groups/{sample(0).group_id}/samples/0/")
    assert page.status_code == 200
    assert "are not kept: the file" in page.content.decode()


def test_a_file_that_needs_too_much_memory_is_dropped(
    worker: AttemptCaller, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "COMMAND", ["-c", "raise MemoryError"])
    assert sends(worker, content).json()["done"]
    with pytest.raises(TokensUnreadable, match="too much memory"):
        token_row(sample(0))


def test_a_deleted_text_is_in_no_stored_file_and_the_other_row_still_fits(
    worker: AttemptCaller, content: bytes, run: Run
) -> None:
    sends(worker, content)
    (before,) = stored(run)
    assert "secret" in texts_in(before)
    assert redact(run, sample(0)) == 1
    (after,) = stored(run)
    assert after != before
    assert "secret" not in texts_in(after)
    assert pq.read_table(after)["token_id"].to_pylist() == [[100, 101, 102]]
    with pytest.raises(TokensUnreadable, match="was deleted"):
        token_row(sample(0))
    assert token_row(sample(1)).columns["piece"] == OTHER
    assert redact(run, sample(1)) == 1
    assert stored(run) == []


def test_a_text_deleted_before_its_file_came_is_never_stored(worker: AttemptCaller, content: bytes, run: Run) -> None:
    assert sends(worker, content, upto=len(content) - 5).json()["done"] is False
    assert stored(run) != []
    redact(run, sample(0))
    assert stored(run) == []  # not the part that came before either
    assert worker.tokens(hashlib.sha256(content).hexdigest()).json() == {"received": 0, "done": False}
    assert sends(worker, content).json()["done"]
    (kept,) = stored(run)
    assert "secret" not in texts_in(kept)
    assert token_row(sample(1)).columns["piece"] == OTHER


def test_a_deletion_that_is_undone_keeps_the_file_and_one_cut_short_is_swept(
    worker: AttemptCaller, content: bytes, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends(worker, content)
    with transaction.atomic():
        redact(run, sample(0))
        transaction.set_rollback(True)
    assert token_row(sample(0)).columns["piece"] == SECRET
    monkeypatch.setattr(token_files, "_sweep", lambda pk: None)  # killed after its commit
    redact(run, sample(0))
    monkeypatch.undo()
    assert any("secret" in texts_in(path) for path in stored(run))
    expire_traces()
    assert token_files_sweep() == 0
    (kept,) = stored(run)
    assert "secret" not in texts_in(kept)


def test_a_copy_that_cannot_be_read_is_dropped_whole_when_a_row_is_deleted(
    worker: AttemptCaller, content: bytes, run: Run
) -> None:
    sends(worker, content)
    (path,) = stored(run)
    path.write_bytes(b"damaged secret")
    redact(run, sample(0))
    assert stored(run) == []
    with pytest.raises(TokensUnreadable, match="was dropped whole"):
        token_row(sample(1))


def test_arrays_changed_in_the_store_are_not_shown(worker: AttemptCaller, content: bytes, run: Run) -> None:
    sends(worker, content)
    (path,) = stored(run)
    forged = [ROWS[0], TokenRow(0, 1, SALT, columns(["some", "other", "text"]))]
    path.write_bytes(content_of(forged))
    assert token_row(sample(0)).columns["piece"] == SECRET
    with pytest.raises(TokensUnreadable, match="not those that the run committed to"):
        token_row(sample(1))


def test_a_group_must_have_the_digests_that_its_step_committed_to(worker: AttemptCaller) -> None:
    (commitments, salted, _), _ = with_tokens([group()], ROWS)
    bare = salted.model_copy(
        update={"samples": tuple(one.model_copy(update={"tokens_sha256": None}) for one in salted.samples)}
    )
    assert refused(registers(worker, commitments, bare)) == (422, "bad_record")
    assert TokenFile.objects.count() == 0
