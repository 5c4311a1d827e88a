"""Completions of other trainers as runs to review: files in the layout that TRL, verl and Inspect write, what they do
not state left empty, what is odd refused by file and row, and every page of review over the nulls."""

import io
import json
import zipfile
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from pyarrow import parquet

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.audit.models import AuditEntry
from cohort.evaluations.imports.bounds import MAX_DOCUMENT_BYTES, MAX_LINE_BYTES
from cohort.evidence import dsse
from cohort.review.facets import VERIFIER
from cohort.review.filters import SampleFilter
from cohort.review.imports.rows import MAX_TEXT
from cohort.review.models import Group, RunImport, Sample
from cohort.review.queues import item_judge, queue_create
from cohort.review.word_index import words_index
from cohort.runs.models import Run
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker
from tests.tables import cases
from tests.web.pages import html

LOG = Path(__file__).parent / "imported" / "sums.eval"
SUMS = ("2 + 2 =", "3 + 4 =")


def trl(step: int, *, advantage: bool = True) -> dict[str, list[Any]]:
    """Columns of completions_<step>.parquet: two prompts, two completions each."""
    columns: dict[str, list[Any]] = {
        "step": [step] * 4,
        "prompt": [prompt for prompt in SUMS for _ in range(2)],
        "completion": [f"it is {step}", HOSTILE, "seven", "eight"],
        "accuracy_reward": [1.0, 0.0, 1.0, float("nan")],
        "format_reward": [0.5, 0.5, 0.5, None],
    }
    return columns | ({"advantage": [0.7, -0.7, 0.0, 0.0]} if advantage else {})


def parquet_bytes(columns: dict[str, list[Any]]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(columns), sink)
    return bytes(sink.getvalue().to_pybytes())


def verl(step: int) -> bytes:
    """<step>.jsonl of rollout_data_dir."""
    lines = [
        {
            "input": SUMS[0],
            "output": f"answer {n}",
            "gts": "4",
            "score": float(n),
            "step": step,
            "acc": n == 1,
            "pred": "x",
        }
        for n in range(2)
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


FILES: dict[str, list[tuple[str, bytes]]] = {
    "trl": [(f"completions_{step:05d}.parquet", parquet_bytes(trl(step))) for step in (1, 2)],
    "verl": [("1.jsonl", verl(1)), ("2.jsonl", verl(2))],
    "inspect": [("sums.eval", LOG.read_bytes())],
}
PAGES = ("", "groups/", "samples/", "samples/?facets=1", "samples/scatter/", "problems/", "review/", "queues/new/")


def send(client: Client, format: str, files: list[tuple[str, bytes]], **fields: str) -> Any:
    uploads = [SimpleUploadedFile(name, content) for name, content in files]
    data = {"name": "theirs", "format": format, "upload": uploads, **fields}
    return client.post("/p/ours/runs/imported/new/", data)


@pytest.fixture
def imported(operator: Client, maker: Maker) -> Callable[..., Run]:
    def of(format: str, **fields: str) -> Run:
        response = send(operator, format, FILES[format], **fields)
        assert response.status_code == 302, html(response)
        return Run.every.get(name="theirs")

    return of


def test_trl_is_kept_as_stated(imported: Callable[..., Run]) -> None:
    run = imported("trl")
    assert (run.step, run.imported, Run.objects.filter(pk=run.pk).exists()) == (2, True, False)
    first = list(Sample.objects.filter(run=run, step=1).order_by("group__index", "index"))
    assert [sample.reward for sample in first] == [1.5, 0.5, 1.5, None]
    assert [sample.advantage for sample in first] == [0.7, -0.7, 0.0, 0.0]
    assert {(sample.tokens, sample.finish_reason, sample.logprob_mean) for sample in first} == {(None, "", None)}
    assert first[3].components["accuracy_reward"] == {"value": None, "passed": None}
    groups = Group.objects.filter(run=run, step=1).order_by("index")
    assert [(group.prompt, group.reward_mean, group.reward_std, group.signal) for group in groups] == [
        (SUMS[0], 1.0, 0.5, "mixed"),
        (SUMS[1], 1.5, 0.0, "all_equal"),
    ]
    source = RunImport.objects.get(run=run)
    assert (source.steps, source.groups, source.samples) == (2, 4, 8)
    assert source.not_stated == ["tokens", "finish", "reference"]
    entry = AuditEntry.objects.get(kind="run_imported")
    assert entry.subject == f"run:{run.pk}"


def test_verl_and_inspect_have_no_advantage(imported: Callable[..., Run]) -> None:
    run = imported("verl", right="acc", right_from="1")
    samples = Sample.objects.filter(run=run).order_by("step", "index")
    assert [(sample.reward, sample.advantage) for sample in samples] == [(0.0, None), (1.0, None)] * 2
    assert [sample.components["acc"]["passed"] for sample in samples] == [False, True] * 2
    source = RunImport.objects.get(run=run)
    assert (source.left_out, source.not_stated) == ({"field pred": 4}, ["tokens", "finish", "advantage"])
    assert "acc from 1 on counts as right" in source.reward_rule


@pytest.mark.parametrize("format", list(FILES))
def test_every_page_of_review_shows_it(operator: Client, imported: Callable[..., Run], format: str) -> None:
    run = imported(format)
    words_index()
    group = Group.objects.filter(run=run).order_by("pk").first()
    assert group is not None
    key = f"groups/{group.pk}/"
    for page in (*PAGES, key, f"{key}samples/0/text/", f"{key}samples/0/use/", f"{key}pairs/"):
        response = operator.get(f"/p/ours/runs/{run.pk}/{page}")
        assert response.status_code == 200, page
        assert "imported, not observed" in html(response) or not page or key in page or page == "queues/new/"
        assert "<script>alert(1)" not in html(response)
    for sort in ("advantage", "-advantage", "tokens", "-clipped"):
        response = operator.get(f"/p/ours/runs/{run.pk}/samples/", {"sort": sort, "text": "it"})
        assert response.status_code == 200
    for page in ("config/", "logs/", "attempts/", "record/", "metrics.csv", "evaluations/", "live/"):
        assert operator.get(f"/p/ours/runs/{run.pk}/{page}").status_code == 404, page
    for page in ("/p/ours/", "/p/ours/runs/", "/p/ours/runs/compare/", "/p/ours/queue/"):
        assert operator.get(page).status_code == 200
    assert "theirs" in html(operator.get("/p/ours/runs/imported/"))


@pytest.mark.parametrize("format", list(FILES))
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "inspect", "atif"])
def test_it_is_exported(operator: Client, imported: Callable[..., Run], format: str, kind: str) -> None:
    run = imported(format)
    response = operator.get(f"/p/ours/runs/{run.pk}/samples/export/?format={kind}")
    assert response.status_code == 200
    content = b"".join(response.streaming_content)  # type: ignore[arg-type]
    assert len(content) > 100


def test_the_statement_names_what_is_not_known(operator: Client, imported: Callable[..., Run]) -> None:
    run = imported("trl")
    page = html(operator.get(f"/p/ours/runs/{run.pk}/"))
    assert "Cohort did not observe" in page
    assert "completions_00001.parquet" in page
    signed = operator.get(f"/p/ours/runs/{run.pk}/imported.json").content
    statement = json.loads(dsse.opened(signed, [audit.signing_key().public_key]).payload)["predicate"]
    assert statement["origin"] == "imported, not observed"
    assert statement["not_stated"] == ["tokens", "finish", "reference"]
    assert [file["bytes"] for file in statement["files"]] == [len(content) for _, content in FILES["trl"]]
    assert HOSTILE_SHOWN in html(operator.get(f"/p/ours/runs/{run.pk}/samples/"))


REFUSED = ("format", "columns", "text", "words")


@pytest.mark.parametrize(REFUSED, cases("imports/completions_refused", *REFUSED))
def test_an_odd_file_makes_no_run(
    operator: Client, maker: Maker, format: str, columns: dict[str, list[Any]] | None, text: str | None, words: str
) -> None:
    content = (text or "").encode() if columns is None else parquet_bytes(columns)
    response = send(operator, format, [("file", content)])
    assert response.status_code == 422
    assert words in unescape(html(response))
    assert not Run.every.exists()
    assert not Group.objects.exists()


def test_two_files_of_one_name_are_refused(operator: Client, maker: Maker) -> None:
    (name, first), (_, second) = FILES["trl"]
    response = send(operator, "trl", [(name, first), (name, second)])
    assert (response.status_code, Run.every.exists()) == (422, False)
    assert f"Two files are named {name}." in html(response)


def test_a_line_longer_than_is_read_is_refused(operator: Client, maker: Maker) -> None:
    line = json.dumps({"input": "a", "output": "b" * MAX_LINE_BYTES, "score": 1, "step": 1}).encode()
    assert "line 1 of file has more than" in html(send(operator, "verl", [("file", line)]))
    long = json.dumps({"input": "a", "output": "b" * MAX_TEXT, "score": 1, "step": 1}).encode()
    assert send(operator, "verl", [("file", long)]).status_code == 302
    assert len(Sample.objects.get().completion) == MAX_TEXT


def test_a_bomb_is_not_unpacked(operator: Client, maker: Maker) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", '{"eval": {}, "status": "success"}')
        archive.writestr("samples/1_epoch_1.json", b" " * (MAX_DOCUMENT_BYTES + 1))
    response = send(operator, "inspect", [("bomb.eval", buffer.getvalue())])
    assert response.status_code == 422
    assert "when unpacked" in html(response)


@pytest.mark.parametrize(
    ("weights", "right", "right_from", "words"),
    [
        ("accuracy_reward", "", "", "is no weight"),
        ("accuracy_reward=nan", "", "", "is no weight"),
        ("accuracy_reward=1, accuracy_reward=2", "", "", "has two weights"),
        ("accuracy_reward=0", "", "", "other than 0"),
        ("speed=1", "", "", "No row has speed"),
        ("", "speed", "1", "No row has speed"),
        ("", "accuracy_reward", "", "State both"),
    ],
)
def test_what_the_importer_states_is_checked(
    operator: Client, maker: Maker, weights: str, right: str, right_from: str, words: str
) -> None:
    fields = {"weights": weights, "right": right, "right_from": right_from}
    response = send(operator, "trl", FILES["trl"], **fields)
    assert response.status_code == 422
    assert words in unescape(html(response))
    assert not Run.every.exists()


def test_weights_and_right_are_the_importers_word(imported: Callable[..., Run]) -> None:
    run = imported("trl", weights="accuracy_reward=2", right="accuracy_reward", right_from="0.5")
    samples = Sample.objects.filter(run=run, step=1).order_by("group__index", "index")
    assert [sample.reward for sample in samples] == [2.0, 0.0, 2.0, None]
    assert [VERIFIER.read(sample.facets) for sample in samples] == ["right", "wrong", "right", ""]
    assert "2 × accuracy_reward, by the importer's word" in RunImport.objects.get(run=run).reward_rule


def test_messages_of_a_chat_are_written_as_text(operator: Client, maker: Maker) -> None:
    columns = {
        "step": ["1"],
        "prompt": [[{"role": "system", "content": "be brief"}, {"role": "user", "content": "2 + 2 ="}]],
        "completion": [[{"role": "assistant", "content": "four"}]],
        "reward": [1.0],
    }
    assert send(operator, "trl", [("old.parquet", parquet_bytes(columns))]).status_code == 302
    sample = Sample.objects.select_related("group").get()
    assert (sample.group.prompt, sample.completion) == ("system: be brief\n\nuser: 2 + 2 =", "four")


def test_a_blind_queue_of_it_is_judged_by_two(
    reviewer: Client, imported: Callable[..., Run], rita: User, alice: User
) -> None:
    run = imported("trl", right="accuracy_reward", right_from="0.5")
    queue = queue_create(run=run, actor=rita, samples=SampleFilter(), name="theirs", size=4, reviewers=2)
    assert reviewer.get(f"/p/ours/runs/{run.pk}/samples/").status_code == 403
    verdicts = dict(enumerate(("right", "right", "wrong", "wrong"), start=1))
    for item in queue.items.select_related("queue", "sample"):
        address = f"/p/ours/queues/{queue.pk}/{item.number}/"
        assert "accuracy_reward" not in html(reviewer.get(address))
        reviewer.post(f"{address}judge/", {"verdict": verdicts[item.number]})
        item_judge(item=item, actor=alice, verdict=verdicts[item.number])
    assert "agree on 100.0 %" in " ".join(html(reviewer.get(f"/p/ours/queues/{queue.pk}/")).split())
    page = " ".join(html(reviewer.get(f"/p/ours/runs/{run.pk}/review/")).split())
    assert "4 completions judged by 2 people: 2 right, 2 wrong, 0 unsure" in page
