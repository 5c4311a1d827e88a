"""Sixty hostile completions in every file that holds samples: a strict reader takes each file, every text comes back
as it is stored, no cell of a sheet is a formula, and no browser takes a file for a page."""

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from pyarrow import parquet
from pyarrow.csv import ParseOptions, ReadOptions, read_csv

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from cohort.web.review.export import FORMATS
from tests.factories.runs import Maker
from tests.web.api_calls import RUNS, ApiCallerFor
from tests.web.hostile_pages import PER_GROUP, TEXTS, add_texts

pytestmark = pytest.mark.django_db
FORMULA = re.compile(r"[\s\"]*[=+\-@\t\r＝＋－＠]")
"""How a cell begins that a spreadsheet may take for a formula."""


@pytest.fixture
def run(maker: Maker, rita: User) -> Run:
    """Whose completions, prompts, references, printed texts, errors, notes and name are the texts."""
    run, texts = maker.run(state="training"), list(TEXTS.values())
    attempt = maker.attempt(run)
    for at in range(0, len(texts), PER_GROUP):
        group = add_texts(attempt, at // PER_GROUP, texts[at : at + PER_GROUP])
        for sample, text in zip(group.samples.order_by("index"), texts[at:], strict=False):
            sample_judge(sample=sample, actor=rita, verdict="right" if sample.index % 2 else "wrong", note=text[:2000])
    Run.objects.filter(pk=run.pk).update(name='"=1+1"\r\n\u202e; filename=x.html <script>')
    run.refresh_from_db()
    return run


@pytest.fixture
def wide_cells() -> Iterator[None]:
    """A cell of CSV may hold a completion of a megabyte."""
    before = csv.field_size_limit(sys.maxsize)
    yield
    csv.field_size_limit(before)


def strict_json(text: str) -> Any:
    """As RFC 8259 has it: no NaN, no name twice, no half a surrogate pair."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs), "a name is there twice"
        return dict(pairs)

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    value = json.loads(text, object_pairs_hook=once, parse_constant=refused)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def rows_of_lines(body: bytes) -> list[Any]:
    assert body.endswith(b"\n")
    return [strict_json(line) for line in body.decode().removesuffix("\n").split("\n")]


def content(client: Client, address: str) -> bytes:
    """The file, which a browser saves and shows as nothing else."""
    response = client.get(address)
    assert response.status_code == 200, response.content
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Type"].split(";")[0] not in ("text/html", "image/svg+xml", "application/xhtml+xml")
    saved = response["Content-Disposition"]
    assert re.fullmatch(r'attachment; filename="[\w.-]+"', saved, re.ASCII), saved
    return b"".join(response.streaming_content)  # type: ignore[attr-defined]


def exported(client: Client, run: Run, name: str) -> bytes:
    return content(client, f"/p/ours/runs/{run.pk}/samples/export/?format={name}&sort=step")


def of_csv(body: bytes) -> list[dict[str, Any]]:
    rows = list(csv.DictReader(io.StringIO(body.decode(), newline=""), strict=True))
    return [{name: cell.removeprefix("'") for name, cell in row.items()} for row in rows]


ROWS: dict[str, Callable[[bytes], list[dict[str, Any]]]] = {
    "jsonl": rows_of_lines,
    "csv": of_csv,
    "parquet": lambda body: parquet.read_table(io.BytesIO(body)).to_pylist(),
    "inspect": lambda body: [
        {"completion": sample["messages"][-1]["content"], "prompt": sample["input"], **sample["metadata"]}
        for sample in strict_json(body.decode())["samples"]
    ],
    "atif": lambda body: [
        {"completion": line["steps"][1]["message"], "prompt": line["steps"][0]["message"], **line["extra"]["sample"]}
        for line in rows_of_lines(body)
    ],
}


def test_every_format_is_tried() -> None:
    assert ROWS.keys() == FORMATS.keys()


@pytest.mark.usefixtures("wide_cells")
@pytest.mark.parametrize("name", ROWS)
def test_each_text_comes_back_as_it_is_stored(reviewer: Client, run: Run, name: str) -> None:
    rows = {(int(row["group"]), int(row["sample"])): row for row in ROWS[name](exported(reviewer, run, name))}
    assert len(rows) == len(TEXTS)
    for at, text in enumerate(TEXTS.values()):
        group, index = divmod(at, PER_GROUP)
        row, first = rows[group, index], list(TEXTS.values())[group * PER_GROUP]
        assert row["completion"] == text
        assert row["prompt"] == first[:2000]
        # lists are JSON in CSV
        components, judgements = (
            strict_json(row[column]) if isinstance(row[column], str) else row[column]
            for column in ("components", "judgements")
        )
        assert {score["name"]: score["detail"] for score in components}["answer"] == text[:200]
        assert [judgement["note"] for judgement in judgements] == [text[:2000].strip()]


@pytest.mark.usefixtures("wide_cells")
def test_no_cell_of_csv_is_a_formula_to_another_reader_either(reviewer: Client, run: Run) -> None:
    body = exported(reviewer, run, "csv")
    lines = csv.reader(io.StringIO(body.decode(), newline=""), strict=True)
    texts = [cell for line in lines for cell in line if not re.fullmatch(r"-?[0-9.e-]+", cell)]
    assert [cell[:50] for cell in texts if FORMULA.match(cell)] == []
    table = read_csv(
        io.BytesIO(body),
        parse_options=ParseOptions(newlines_in_values=True),
        read_options=ReadOptions(block_size=1 << 26),
    )
    assert table.num_rows == len(TEXTS)
    plain = {text.removeprefix("'").replace("\r\n", "\n") for text in table.column("completion").to_pylist()}
    assert plain == {text.replace("\r\n", "\n") for text in TEXTS.values()}


def test_preferences_hold_the_texts(reviewer: Client, run: Run) -> None:
    pairs = rows_of_lines(content(reviewer, f"/p/ours/runs/{run.pk}/review/preferences.jsonl"))
    texts = list(TEXTS.values())
    groups = len(texts) // PER_GROUP
    assert len(pairs) == groups * (PER_GROUP // 2) * (PER_GROUP - PER_GROUP // 2)
    assert {pair["chosen"] for pair in pairs} | {pair["rejected"] for pair in pairs} == {*texts}
    assert {pair["prompt"] for pair in pairs} == {texts[group * PER_GROUP][:2000] for group in range(groups)}


def test_answers_of_the_api_are_json_and_nothing_else(caller_for: ApiCallerFor, run: Run, rita: User) -> None:
    caller, texts, after = caller_for(rita, "read"), [], 0
    while after is not None:
        response = caller.get(f"{RUNS}/{run.pk}/samples?sort=step&size=20&after={after}")
        assert response.status_code == 200
        assert response["Content-Type"].split(";")[0] == "application/json"
        assert response["X-Content-Type-Options"] == "nosniff"
        reply = strict_json(response.content.decode())
        texts += [row["completion"] for row in reply["samples"]]
        after = reply["next"]
    assert sorted(texts) == sorted(TEXTS.values())
    shown = caller.get(f"{RUNS}/{run.pk}")
    assert strict_json(shown.content.decode())["name"] == run.name


@pytest.mark.usefixtures("wide_cells")
def test_the_audit_log_holds_the_texts_as_data(admin: Client, maker: Maker, alice: User) -> None:
    reasons = [text[:500] for text in TEXTS.values()]
    for at, reason in enumerate(reasons):
        audit.log(actor=audit.who(alice), kind="run_noted", subject=f"run:{at}", project=maker.project, reason=reason)
    lines = rows_of_lines(content(admin, "/p/ours/audit/entries.jsonl?kind=run_noted"))
    assert sorted(line["reason"] for line in lines) == sorted(reasons)
    body = content(admin, "/p/ours/audit/entries.csv?kind=run_noted").decode()
    rows = list(csv.DictReader(io.StringIO(body, newline=""), strict=True))
    assert sorted(row["reason"].removeprefix("'") for row in rows) == sorted(reasons)
    assert [row["reason"][:50] for row in rows if FORMULA.match(row["reason"])] == []
