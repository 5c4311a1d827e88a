"""Containers: what is in the bytes decides, not the name; nothing is held whole; what is cut or strange is named."""

import csv
import datetime
import decimal
import gzip
import io
import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from grpo_core.data import Problem, containers, lines, load_problems, scan_problems
from grpo_core.data.containers import rows_of
from grpo_core.data.lines import MAX_FAULTS, MAX_LINE_BYTES, RowFaults
from grpo_core.data.loaders import detect
from grpo_core.errors import DataError
from tests.tables import cases

ROWS = [{"prompt": f'what is {n} + 1,\n"exactly"?', "answer": str(n + 1), "part": "é" * n} for n in range(150)]


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_json(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps(rows, ensure_ascii=False, indent=1).encode()


def as_csv(rows: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8-sig")


def as_parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    content = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), content, **options)
    return content.getvalue()


CONTENTS = {
    "jsonl": as_jsonl(ROWS),
    "json": as_json(ROWS),
    "csv": as_csv(ROWS),
    "csv, tabs": as_csv(ROWS, "\t"),
    "csv, semicolons": as_csv(ROWS, ";"),
    "parquet": as_parquet(ROWS, row_group_size=40),
}


def problems_of(content: bytes, source: str = "data.any") -> list[Problem]:
    return list(scan_problems(io.BytesIO(content), "auto", source=source))


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("packed", [False, True])
def test_every_container_gives_the_same_problems_whatever_the_file_is_called(
    tmp_path: Path, name: str, packed: bool
) -> None:
    content = CONTENTS[name]
    path = tmp_path / "data.txt"
    path.write_bytes(gzip.compress(content) if packed else content)
    if packed and name == "parquet":
        with pytest.raises(DataError, match="Parquet in gzip; unpack it once"):
            load_problems(path, "auto")
        return
    problems = load_problems(path, "auto")
    assert [(p.prompt, p.answer, p.meta) for p in problems] == [
        (row["prompt"], row["answer"], {"part": row["part"]}) for row in ROWS
    ]
    with path.open("rb") as handle:
        assert detect(handle, "auto", source="x").container == name.partition(",")[0]
    assert len(load_problems(path, "auto", limit=3)) == 3


@pytest.mark.parametrize(("text", "latin", "word"), cases("data/files_refused", "text", "latin", "word"))
def test_what_is_no_rows_is_named_with_the_remedy(text: str | None, latin: str | None, word: str) -> None:
    content = text.encode() if text is not None else (latin or "").encode("latin-1")
    with pytest.raises(DataError, match=r"^data\.any") as refused:
        problems_of(content)
    assert refused.match(word)


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_a_file_that_is_cut_says_so(name: str) -> None:
    content = CONTENTS[name] if name == "parquet" else gzip.compress(CONTENTS[name])
    with pytest.raises(DataError, match=r"data\.any: is (gzip|Parquet) that is cut or damaged"):
        problems_of(content[: len(content) // 2])


def test_parquet_values_become_what_json_can_hold() -> None:
    row = {
        "prompt": [{"role": "user", "content": "p", "tool_calls": None}],
        "answer": 7,
        "when": datetime.date(2026, 1, 2),
        "price": decimal.Decimal("1.50"),
        "score": float("nan"),
        "parts": [{"a": 1.5, "b": None}],
    }
    (problem,) = problems_of(as_parquet([row]))
    assert problem.answer == "7"
    assert problem.meta == {"when": "2026-01-02", "price": "1.50", "score": None, "parts": [{"a": 1.5, "b": None}]}
    for value, word in ((b"\x89PNG", "binary data, such as an image"), (float("inf"), "'x' is infinite")):
        with pytest.raises(DataError, match=rf"row 1: .*{word}"):
            problems_of(as_parquet([{**row, "x": value}]))
    with pytest.raises(DataError, match="row 17: 'answer' is null"):
        problems_of(as_parquet([*ROWS[:16], {"prompt": "p", "answer": None}]))


def test_rows_are_streamed_out_of_one_large_row_group(tmp_path: Path) -> None:
    """Of 64 MB in one row group, as of 256 MB, 19 MB are in memory; of a list of 32 MB a few."""

    path = tmp_path / "large.parquet"
    schema = pyarrow.schema([("prompt", pyarrow.string()), ("answer", pyarrow.string())])
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        prompts = [os.urandom(8192).hex() for _ in range(4096)]
        writer.write_table(pyarrow.table({"prompt": prompts, "answer": ["1"] * 4096}, schema), row_group_size=4096)
    del prompts
    assert path.stat().st_size > 64_000_000
    with path.open("rb") as handle:
        assert parquet.ParquetFile(path).num_row_groups == 1
        assert (
            max(pyarrow.total_allocated_bytes() for _ in rows_of(handle, source="x", faults=RowFaults())) < 24_000_000
        )
    listed = tmp_path / "large.json"
    with listed.open("w") as out:
        out.write("[" + ",".join(json.dumps({"prompt": "p" * 8000, "answer": "1"}) for _ in range(4000)) + "]")
    tracemalloc.start()
    with listed.open("rb") as handle:
        assert sum(1 for _ in rows_of(handle, source="x", faults=RowFaults())) == 4000
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()


FAULTY: dict[str, tuple[bytes, list[str]]] = {
    "lines": (
        b'{"id": "a", "prompt": "p", "answer": "1"}\nno json\n' + b"x" * (2 * MAX_LINE_BYTES + 9) + b"\n\xff\n"
        b'{"prompt": "p"}\n{"id": "a", "prompt": "p", "answer": "1"}\n',
        ["2: is not JSON", "3: is longer", "4: is not UTF-8", "5: has no field", "6: the id 'a'"],
    ),
    "CSV": (
        b'prompt,answer\np,1\np,\np\ncaf\xe9,1\np,"1"x\np,\n',
        ["3: 'answer' is empty", "4: has 1 values", "5: is not UTF-8", "6: is not CSV"],
    ),
    "list that is cut": (b'[{"prompt": "p", "answer": ""},', ["1: 'answer' is empty", "2: is where the file ends"]),
    "Parquet": (
        as_parquet([{"prompt": "p", "answer": answer} for answer in (float("inf"), 1.0, float("nan"))]),
        ["1: 'answer' is infinite", "3: 'answer' is null"],
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_every_fault_is_named_and_no_problem_after_the_first_is_given(name: str) -> None:
    content, faults = FAULTY[name]
    problems = scan_problems(io.BytesIO(content), "plain", source="data.any")
    with pytest.raises(DataError) as refused:
        list(problems)
    lines = str(refused.value).split("\n")
    assert len(lines) == len(faults)
    for line, fault in zip(lines, faults, strict=True):
        assert re.match(rf"data\.any, (line|row) {re.escape(fault)}", line)


def test_faults_are_named_up_to_a_bound_and_those_behind_the_limit_are_not_read(tmp_path: Path) -> None:
    rows = [*ROWS[:3], *[{"prompt": "p"}] * 40]
    with pytest.raises(DataError) as refused:
        problems_of(as_jsonl(rows))
    *named, last = str(refused.value).split("\n")
    assert [line.split(":")[0] for line in named] == [f"data.any, line {n}" for n in range(4, 4 + MAX_FAULTS)]
    assert last == f"Rows after these {MAX_FAULTS} were not read."
    path = tmp_path / "rows.jsonl"
    path.write_bytes(as_jsonl(rows))
    assert len(load_problems(path, "auto", limit=3)) == 3
    with pytest.raises(DataError, match="line 4"):
        load_problems(path, "auto", limit=4)


def test_rows_of_parquet_that_unpack_to_more_than_lines_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of such a file may hold gigabytes of one text."""
    monkeypatch.setattr(containers, "MAX_LINE_BYTES", 1000)
    good, large, repeated = ["x" * 900] * 100, ["x"] * 70 + ["x" * 100_000], ["x"] * 70 + ["x" * 1001]
    assert len(problems_of(as_parquet_column(good))) == 100
    with pytest.raises(DataError, match=r"^data\.any, rows 65 to 71: hold 100,\d+ bytes; expected at most 1,000 a row"):
        problems_of(as_parquet_column(large))
    with pytest.raises(DataError, match=r"^data\.any, row 71: is longer than 1,000 characters"):
        problems_of(as_parquet_column(pyarrow.array(repeated).dictionary_encode()))


def as_parquet_column(prompts: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"prompt": prompts, "answer": ["1"] * len(prompts)}), out)
    return out.getvalue()


@pytest.mark.parametrize("rows", [as_jsonl(ROWS[:1]), as_csv(ROWS[:1])], ids=["jsonl", "csv"])
def test_a_file_of_empty_lines_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch, rows: bytes) -> None:
    """Each costs as much as a row, and a file may have half a billion."""
    monkeypatch.setattr(lines, "MOST_BLANK", 3)
    assert len(problems_of(rows + b"\n\r\n\n")) == 1
    with pytest.raises(DataError, match=r"^data\.any has more than 3 empty lines; take them out$"):
        problems_of(rows + b"\n\n\n\n" + b"\n\n".join([b"this is no row"] * 30))


def test_rows_over_the_limit_are_refused() -> None:
    long = "x" * MAX_LINE_BYTES
    for content in (as_json([{"prompt": long}]), f"prompt,answer\n{long},1\n".encode()):
        with pytest.raises(DataError, match=r"(row 1|line 2): is longer than 1,048,576"):
            problems_of(content)


values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1).filter(str.strip)


@given(st.lists(st.fixed_dictionaries({"prompt": values, "answer": values}), min_size=1, max_size=5))
def test_any_text_comes_back_from_every_container(rows: list[dict[str, str]]) -> None:
    for write in (as_jsonl, as_json, as_csv, as_parquet):
        assert [(p.prompt, p.answer) for p in problems_of(write(rows))] == [(r["prompt"], r["answer"]) for r in rows]
