"""Samples of a run as files: every format holds each sample that the filter shows once and in its order, hostile texts
are data in each, deleted ones are in none, and the memory that it takes does not grow with the run."""

import csv
import io
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from django.test import Client
from pyarrow import parquet

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.records.traces.redaction import samples_redact
from cohort.review.export import COLUMNS, sample_rows
from cohort.review.filters import SampleFilter
from cohort.review.models import Sample
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from cohort.web.review import export
from tests.factories.runs import HOSTILE, Maker, add_group, add_samples, gone_on
from tests.web.api_calls import RUNS, ApiCallerFor, refused

TEXTS = (
    *("=1+1", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", '"=1+1"', " =cmd|'/c calc'!A0", "'=1", "＝1+1", "a;=1+1;b"),
    *(HOSTILE, "1 MB " * 20, 'two\r\nlines, "quoted"', "\ud7ff\u200b\u2066bidi\u2069", "", "$x=1$ **b**"),
)
FORMULA = re.compile(r"""[\s"]*[=+\-@\t\r]""")


@pytest.fixture
def run(maker: Maker) -> Run:
    run = maker.run(state="training")
    group = add_group(maker.attempt(run), [], step=3, index=1, prompt="=2+2", answer="4", problem_id="p")
    add_samples(group, [sample(text, number / 4) for number, text in enumerate(TEXTS)])
    return run


def sample(text: str, reward: float | None) -> dict[str, Any]:
    answer = {"value": reward, "passed": reward == 1, "detail": "=A1", "error": None}
    return {
        "completion": text,
        "tokens": 7,
        "finish_reason": "length",
        "reward": reward,
        "advantage": -0.5,
        "components": {"answer": answer},
        "flags": ["format_only"],
        "clipped": 0.25,
    }


def content(client: Client, run: Run, name: str, query: str = "sort=-reward") -> bytes:
    response = client.get(f"/p/ours/runs/{run.pk}/samples/export/?{query}&format={name}")
    assert response.status_code == 200, response.content
    return b"".join(response.streaming_content)  # type: ignore[attr-defined]


def of_jsonl(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


def of_csv(body: bytes) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(body.decode(), newline="")))


def of_parquet(body: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(io.BytesIO(body)).to_pylist()
    return rows


def test_a_row_says_all_of_a_sample(reviewer: Client, run: Run, rita: User, alice: User) -> None:
    shown = Sample.objects.get(index=4)
    for person, verdict in ((alice, "right"), (rita, "unsure"), (rita, "wrong")):
        judged = sample_judge(sample=shown, actor=person, verdict=verdict, note=f"by {person}")
    (row,) = of_jsonl(content(reviewer, run, "jsonl", "reward_min=1&reward_max=1"))
    judgements = row.pop("judgements")
    assert row == {
        "run": run.pk,
        "attempt": 1,
        "step": 3,
        "sampled_at": None,
        "group_id": shown.group_id,
        "group": 1,
        "sample": 4,
        "problem": "p",
        "prompt": "=2+2",
        "reference": "4",
        "completion": "\t=1",
        "redacted": False,
        "tokens": 7,
        "finish": "length",
        "reward": 1.0,
        "shaped_reward": None,
        "advantage": -0.5,
        "mask": None,
        "discarded": None,
        "verifier": "right",
        "flags": ["format_only"],
        "clipped": 0.25,
        "logprob_mean": None,
        "components": [{"name": "answer", "value": 1.0, "passed": True, "detail": "=A1", "error": None}],
    }
    assert [(entry["reviewer"], entry["name"], entry["verdict"], entry["note"]) for entry in judgements] == [
        (1, None, "right", "by alice"),
        (2, None, "wrong", "by rita"),
    ]
    assert judgements[1]["at"] == judged.at.isoformat()
    (row,) = of_jsonl(content(reviewer, run, "jsonl", "reward_min=1&reward_max=1&names=1"))
    assert [entry["name"] for entry in row["judgements"]] == ["alice", "rita"]


@pytest.mark.parametrize(("name", "read"), [("jsonl", of_jsonl), ("csv", of_csv), ("parquet", of_parquet)])
def test_each_sample_is_there_once_in_order_with_its_text(
    reviewer: Client, run: Run, name: str, read: Callable[[bytes], list[dict[str, Any]]]
) -> None:
    rows = read(content(reviewer, run, name))
    assert list(rows[0])[: len(COLUMNS)] == [column.name for column in COLUMNS]
    plain = [row["completion"].removeprefix("'") if name == "csv" else row["completion"] for row in rows]
    assert plain == list(reversed(TEXTS))
    assert [float(row["reward"]) for row in rows] == [number / 4 for number in reversed(range(len(TEXTS)))]


def test_no_cell_of_csv_is_a_formula(reviewer: Client, run: Run) -> None:
    body = content(reviewer, run, "csv").decode()
    for cells in csv.reader(io.StringIO(body, newline="")):
        texts = [cell for cell in cells if not re.fullmatch(r"-?[0-9.]+", cell)]
        assert not [cell for cell in texts if FORMULA.match(cell)]
    row = of_csv(content(reviewer, run, "csv", "reward_min=1&reward_max=1"))[0]
    assert (row["prompt"], row["advantage"], row["component.answer"], row["shaped_reward"]) == (
        "'=2+2",
        "-0.5",
        "1.0",
        "",
    )
    assert json.loads(row["components"])[0]["detail"] == "=A1"


def test_a_parquet_file_says_what_it_holds(reviewer: Client, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_GROUP_ROWS", 5)
    file = parquet.ParquetFile(io.BytesIO(content(reviewer, run, "parquet", "finish=length")))
    assert file.schema_arrow.remove_metadata() == export.arrow_schema()
    assert file.schema_arrow.field("judgements").type.value_type.field("verdict").type == pyarrow.string()
    metadata = {key.decode(): value.decode() for key, value in file.schema_arrow.metadata.items()}
    assert metadata["cohort.filter"] == "finish=length"
    assert metadata["cohort.filter_in_words"] == "truncated"
    assert metadata["cohort.run"] == str(run.pk)
    assert file.num_row_groups == 4, "17 rows by five"


def test_an_inspect_log_has_the_completions_of_a_group_as_epochs(reviewer: Client, run: Run) -> None:
    log = json.loads(content(reviewer, run, "inspect", "sort=reward"))
    assert (log["version"], log["status"], log["eval"]["model"]) == (2, "success", run.base_model.name)
    assert log["eval"]["metadata"]["filter_in_words"] == "all samples"
    assert {entry["id"] for entry in log["samples"]} == {"attempt 1, step 3, group 1"}
    assert [entry["epoch"] for entry in log["samples"]] == list(range(1, len(TEXTS) + 1))
    shown = log["samples"][4]
    assert (shown["input"], shown["target"]) == ("=2+2", "4")
    assert shown["messages"][1]["content"] == shown["output"]["completion"] == "\t=1"
    assert shown["output"]["choices"][0]["stop_reason"] == "max_tokens"
    assert {name: score["value"] for name, score in shown["scores"].items()} == {
        "reward": 1.0,
        "advantage": -0.5,
        "answer": 1.0,
    }


def test_a_trajectory_is_a_sample(reviewer: Client, run: Run) -> None:
    body = of_jsonl(content(reviewer, run, "atif", "sort=reward"))
    assert len({trajectory["trajectory_id"] for trajectory in body}) == len(body) == len(TEXTS)
    steps = [(step["step_id"], step["source"], step["message"]) for step in body[4]["steps"]]
    assert steps == [(1, "user", "=2+2"), (2, "agent", "\t=1")]
    assert body[4]["schema_version"] == "ATIF-v1.7"
    assert body[4]["extra"]["sample"]["advantage"] == -0.5


@pytest.mark.parametrize("name", sorted(export.FORMATS))
def test_a_deleted_text_is_in_no_file(reviewer: Client, run: Run, alice: User, name: str) -> None:
    secret = "Ada Lovelace, born 1815"
    add_samples(add_group(run.attempts.get(), [], step=4), [sample(secret, 1.0)])
    judged = Sample.objects.get(step=4)
    of_step = lambda: content(reviewer, run, name, "step_min=4")  # noqa: E731
    if name != "parquet":  # packed
        assert secret.encode() in of_step()
    samples_redact(run=run, samples=[judged], actor=alice, reason="asked for")
    assert secret.encode() not in of_step()
    if name == "parquet":
        assert [(row["completion"], row["redacted"]) for row in of_parquet(of_step())] == [(None, True)]


def test_superseded_samples_are_left_out(maker: Maker, reviewer: Client) -> None:
    run = maker.run(state="training")
    first, second = maker.attempt(run, state="lost"), maker.attempt(run)
    for attempt, text in ((first, "old"), (second, "new")):
        add_samples(add_group(attempt, [], step=5), [sample(text, 1.0)])
    gone_on(second, 4)
    assert [row["completion"] for row in of_jsonl(content(reviewer, run, "jsonl"))] == ["new"]


def test_a_download_is_logged_and_a_head_is_not(reviewer: Client, run: Run) -> None:
    entries = AuditEntry.objects.filter(kind="samples_exported")
    assert reviewer.head(f"/p/ours/runs/{run.pk}/samples/export/?format=csv").status_code == 200
    assert not entries.exists()
    content(reviewer, run, "csv", "finish=length&names=1")
    assert json.loads(bytes(entries.get().body))["data"] == {"format": "csv", "filter": "finish=length", "names": True}


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "format: Choose one of jsonl, csv, parquet, inspect, atif.\n"),
        ("format=xlsx", "format: Choose one of jsonl, csv, parquet, inspect, atif.\n"),
        ("format=csv&tokens_min=x", "tokens_min: 'x' is not a number.\n"),
    ],
)
def test_nonsense_is_refused_before_anything_is_sent(reviewer: Client, run: Run, query: str, text: str) -> None:
    response = reviewer.get(f"/p/ours/runs/{run.pk}/samples/export/?{query}")
    assert (response.status_code, response.content.decode()) == (422, text)
    assert not AuditEntry.objects.filter(kind="samples_exported").exists()


def test_a_script_reads_pages(caller_for: ApiCallerFor, run: Run, rita: User, bob: User) -> None:
    caller, here = caller_for(rita, "read"), f"{RUNS}/{run.pk}/samples"
    texts, after = [], 0
    for _ in range(4):
        reply = caller.get(f"{here}?sort=-reward&size=5&after={after}").json()
        texts += [row["completion"] for row in reply["samples"]]
        after = reply["next"]
    assert (texts, after) == (list(reversed(TEXTS)), None)
    assert reply["filter_in_words"] == "all samples"
    assert AuditEntry.objects.filter(kind="samples_exported").count() == 4
    assert refused(caller_for(bob, "read").get(here))[:2] == (403, "role_too_low")
    for query in ("size=501", "size=0", "after=-1", "after=x", "tokens_min=x", "reward_min=1&after=999999999"):
        assert refused(caller.get(f"{here}?{query}"))[:2] == (422, "invalid")
    assert refused(caller.get(f"{RUNS}/999999/samples"))[0] == 404


def test_memory_does_not_grow_with_the_run(maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)

    def peak(step: int, count: int) -> int:
        add_samples(add_group(attempt, [], step=step), [sample("text " * 400, 0.5)] * count)
        looked_for = SampleFilter(step_min=step, step_max=step)
        tracemalloc.start()
        lines = sum(1 for _ in export.FORMATS["jsonl"].write(run, looked_for, sample_rows(run, looked_for)))
        reached = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert lines == count
        return reached

    peak(1, 200)  # what is loaded once
    assert peak(3, 4000) < 1.5 * peak(2, 400)


def test_the_documentation_names_every_column() -> None:
    _, page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8").split("### Columns")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)

    def type_of(type_: str | dict[str, str]) -> str:
        if isinstance(type_, str):
            return type_
        inner = ", ".join(f"{name} {of}".strip() for name, of in type_.items())
        return f"list of {inner}" if "" in type_ else f"list of {{{inner}}}"

    assert rows == [(column.name, type_of(column.type), column.holds) for column in COLUMNS]
