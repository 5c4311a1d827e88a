"""The dataset of a sampling run on the platform: sent in parts, checked row by row, in the catalog once."""

import hashlib
import json
from typing import Any

import pytest
from django.template.loader import render_to_string

from cohort.audit.models import AuditEntry
from cohort.base import artifacts
from cohort.catalog.models import PromptDataset
from cohort.review.models import DatasetFile
from cohort.runs.models import Attempt, Run, RunEvent
from grpo_core.records import types as records
from tests.factories.runs import Maker
from tests.factories.worker import envelopes, packed, phase, step
from tests.web.pages import html
from tests.web.worker_calls import AttemptCaller, Caller, claim, refused

pytestmark = pytest.mark.django_db(transaction=True)

COUNTS = {"kept": 2, "wrong": 5, "duplicate": 1}
PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1"}]
CONVERSATIONS: list[dict[str, Any]] = [
    {"prompt": "1+1", "completion": "2", "from": {"problem_id": "a", "reward": 1.0}},
    {"prompt": "1+2", "completion": "3", "from": {"problem_id": "b", "reward": 1.0}},
]
CHATS: list[dict[str, Any]] = [{"messages": [*PROMPT, {"role": "assistant", "content": text}]} for text in "23"]
PAIRS: list[dict[str, Any]] = [
    {"prompt": "1+1", "chosen": "2", "rejected": "3", "from": {"problem_id": "a"}},
    {"messages": PROMPT[1:], "chosen": "2", "rejected": "11", "from": {"problem_id": "b"}},
]
SCORES: list[dict[str, Any]] = [{"prompt": "1+1", "completion": "2", "score": 0.5}] * 2


def content_of(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def announced(content: bytes, *, of: str = "conversations", rows: int = 2) -> records.SampledDataset:
    return records.SampledDataset(
        path="dataset/rows.jsonl",
        content=of,
        rows=rows,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        counts=COUNTS,
    )


@pytest.fixture
def run(maker: Maker) -> Run:
    run = maker.run(state="queued")
    Run.objects.filter(pk=run.pk).update(kind="sample")
    return run


@pytest.fixture
def worker(run: Run, node: Caller) -> AttemptCaller:
    caller = AttemptCaller(claim(node, run))
    caller.records(packed(envelopes([phase("sampling", 9), step(1)])))
    return caller


def registers(worker: AttemptCaller, *bodies: Any) -> Any:
    seq = Attempt.objects.get(pk=worker.at.rpartition("/")[2]).acked_seq + 1
    return worker.records(packed(envelopes(bodies, first=seq)))


def arrives(worker: AttemptCaller, given: list[dict[str, Any]], /, **record: Any) -> DatasetFile:
    content = content_of(given)
    assert registers(worker, announced(content, **record)).status_code == 200
    reply = worker.dataset(hashlib.sha256(content).hexdigest(), content, offset=0)
    assert reply.json() == {"received": len(content), "done": True}
    return DatasetFile.objects.get()


def test_sampling_is_a_phase_of_steps(worker: AttemptCaller, run: Run) -> None:
    run.refresh_from_db()
    assert (run.state, run.phase, run.step, run.steps_total) == ("training", "sampling", 1, 9)


def test_sent_in_parts_and_twice_it_is_one_dataset(worker: AttemptCaller, run: Run) -> None:
    content = content_of(CONVERSATIONS)
    sha256 = hashlib.sha256(content).hexdigest()
    assert registers(worker, announced(content)).status_code == 200
    assert worker.dataset(sha256, content[:50], offset=0).json() == {"received": 50, "done": False}
    assert refused(worker.dataset(sha256, content[20:], offset=20)) == (409, "wrong_offset")
    assert worker.dataset(sha256).json() == {"received": 50, "done": False}
    assert not PromptDataset.objects.filter(sampled_by=run).exists()
    whole = {"received": len(content), "done": True}
    assert worker.dataset(sha256, content[50:], offset=50).json() == whole
    assert worker.dataset(sha256, content[50:], offset=50).json() == whole
    dataset = PromptDataset.objects.get(sampled_by=run)
    assert (dataset.name, dataset.content, dataset.problems) == (run.name, "conversations", 2)
    assert dataset.source == f"Sampled by the run {run.name} (run {run.pk}): 2 of 8 completions kept"
    assert [row["messages"] for row in dataset.preview] == [
        [["user", "1+1"], ["assistant", "2"]],
        [["user", "1+2"], ["assistant", "3"]],
    ]
    assert b"".join(artifacts.read_chunks(dataset.artifact)) == content
    assert not artifacts.sizes(DatasetFile.objects.get().folder)
    assert RunEvent.objects.filter(run=run, kind="dataset_stored").count() == 1
    entry = AuditEntry.objects.get(kind="dataset_sampled")
    assert json.loads(bytes(entry.body))["after"]["run"] == run.pk
    assert (entry.actor, entry.subject) == ("node:gpu-1", f"dataset:{dataset.pk}")


@pytest.mark.parametrize(
    ("rows", "content", "layout"),
    [(CHATS, "conversations", "messages"), (PAIRS, "preferences", "pairs"), (SCORES, "preferences", "scores")],
)
def test_other_rows(worker: AttemptCaller, run: Run, rows: list[dict[str, Any]], content: str, layout: str) -> None:
    dataset = arrives(worker, rows, of=content).dataset
    assert dataset is not None
    assert (dataset.content, dataset.format) == (content, layout)


def test_the_same_file_of_a_later_attempt_is_the_same_dataset(
    worker: AttemptCaller, node: Caller, run: Run, maker: Maker
) -> None:
    first = arrives(worker, CONVERSATIONS).dataset
    Attempt.objects.filter(run=run).update(state="lost")
    again = AttemptCaller(claim(node, requeued(run)))
    content = content_of(CONVERSATIONS)
    again.records(packed(envelopes([phase("sampling", 9), step(1), announced(content)])))
    assert again.dataset(hashlib.sha256(content).hexdigest(), content, offset=0).json()["done"]
    assert DatasetFile.objects.filter(dataset=first).count() == 2
    assert PromptDataset.objects.filter(sampled_by=run).count() == 1


def requeued(run: Run) -> Run:
    Run.objects.filter(pk=run.pk).update(state="queued", step=0)
    run.refresh_from_db()
    return run


def test_a_taken_name_gets_the_runs_number(worker: AttemptCaller, run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(name=(taken := run.dataset.name))
    dataset = arrives(worker, CONVERSATIONS).dataset
    assert dataset is not None
    assert dataset.name == f"{taken} (run {run.pk})"


@pytest.mark.parametrize(
    ("rows", "record", "says"),
    [
        (CONVERSATIONS, {"rows": 3}, "2 rows, and 3 were announced"),
        (CONVERSATIONS, {"of": "preferences"}, "has no field 'chosen'"),
        (PAIRS, {}, "line 1: "),
        ([*CONVERSATIONS[:1], {"prompt": "1+1"}], {}, "line 2: "),
        ([{"messages": PROMPT}], {"rows": 1}, "line 1: "),
        ([{"prompt": "1+1", "completion": "2", "score": "much"}], {"rows": 1, "of": "preferences"}, "'score'"),
    ],
)
def test_what_is_no_such_dataset_is_not_kept(
    worker: AttemptCaller, run: Run, rows: list[dict[str, Any]], record: dict[str, Any], says: str
) -> None:
    file = arrives(worker, rows, **record)
    assert file.dataset is None
    assert says in file.fault
    assert not PromptDataset.objects.filter(sampled_by=run).exists()
    assert RunEvent.objects.filter(run=run, kind="dataset_refused").count() == 1


def test_no_room_in_the_project(worker: AttemptCaller, run: Run) -> None:
    type(run.project).objects.filter(pk=run.project_id).update(max_upload_bytes=10)
    file = arrives(worker, CONVERSATIONS)
    assert file.dataset is None
    assert "bytes of datasets" in file.fault


def test_only_what_the_attempt_named_is_taken(worker: AttemptCaller, run: Run) -> None:
    content = content_of(CONVERSATIONS)
    sha256 = hashlib.sha256(content).hexdigest()
    assert refused(worker.dataset(sha256, content, offset=0)) == (404, "unknown_file")
    assert registers(worker, announced(content)).status_code == 200
    assert refused(registers(worker, announced(content))) == (422, "bad_record")  # a second one
    wrong = content[:-2] + b"x\n"
    assert refused(worker.dataset(sha256, wrong, offset=0)) == (422, "bad_file")
    assert refused(worker.dataset(sha256, content, offset=0, fence=9))[1] == "stale_fence"
    assert worker.dataset(sha256, content, offset=0).json()["done"]


def test_more_rows_than_a_column_holds_are_refused(worker: AttemptCaller) -> None:
    assert refused(registers(worker, announced(b"{}\n", rows=2**40))) == (422, "bad_record")


def test_a_run_that_samples_none_names_none(worker: AttemptCaller, run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(kind="grpo")
    assert refused(registers(worker, announced(content_of(CONVERSATIONS)))) == (422, "bad_record")


def test_the_page_says_which_run_sampled_it(worker: AttemptCaller, run: Run, viewer: Any) -> None:
    dataset = arrives(worker, CONVERSATIONS).dataset
    assert dataset is not None
    page = html(viewer.get(f"/p/ours/datasets/{dataset.pk}/"))
    assert f'href="/p/ours/runs/{run.pk}/"' in page
    assert "wrong by the success component" in page


def test_the_runs_page_links_its_dataset(worker: AttemptCaller, run: Run) -> None:
    """The part of the page by itself: what is known at each moment."""

    def part() -> str:
        return render_to_string("runs/_dataset.html", {"run": run, "project": run.project})

    assert "once every problem was answered" in part()
    content = content_of(CONVERSATIONS)
    registers(worker, announced(content))
    assert "not yet" in part()
    worker.dataset(hashlib.sha256(content).hexdigest(), content, offset=0)
    dataset = PromptDataset.objects.get(sampled_by=run)
    assert f'href="/p/ours/datasets/{dataset.pk}/"' in part()
