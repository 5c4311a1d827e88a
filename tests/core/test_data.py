"""Problems: loading, faults by file and line, splitting, digests, the arithmetic task."""

import hashlib
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.data import Problem, file_sha256, holdout, load_problems, problems_digest, scan_problems
from grpo_core.data.arithmetic import addition_problems, chat_split, demo_split, worked_completion, write_jsonl
from grpo_core.data.lines import MAX_LINE_BYTES
from grpo_core.errors import DataError
from tests.tables import cases


def jsonl(*lines: str | bytes, format: str = "plain") -> list[Problem]:
    encoded = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)
    return list(scan_problems(io.BytesIO(encoded), format, source="train.jsonl"))


GOOD = '{"prompt": "what is 1 + 1?", "answer": "2"}'


def test_jsonl_fields_numbers_ids_and_meta() -> None:
    problems = jsonl(
        "\ufeff" + GOOD + "\r",
        "  ",
        '{"id": "b", "prompt": "p", "answer": 42, "level": 3, "tags": ["x"]}',
        '{"id": 7, "prompt": "p", "answer": 0.5}',
    )
    assert problems == [
        Problem("line-1", "what is 1 + 1?", "2"),
        Problem("b", "p", "42", {"level": 3, "tags": ["x"]}),
        Problem("7", "p", "0.5"),
    ]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        *cases("data/faults", "line", "word"),
        pytest.param("[" * 100_000, "", id="deep"),
        pytest.param(GOOD + "x" * MAX_LINE_BYTES, "", id="long"),
        pytest.param(b'{"prompt": "caf\xe9", "answer": "1"}', "byte 16", id="no UTF-8"),
    ],
)
def test_each_fault_names_file_line_and_what_is_wrong(line: str | bytes, word: str) -> None:
    with pytest.raises(DataError, match=rf"^train\.jsonl, line 2: .*{word}"):
        jsonl(GOOD, line)


def test_duplicate_id_names_both_lines() -> None:
    with pytest.raises(DataError, match=r"line 4: .*'a'.* line 2"):
        jsonl(GOOD, '{"id": "a", "prompt": "p", "answer": "1"}', GOOD, '{"id": "a", "prompt": "q", "answer": "1"}')
    with pytest.raises(DataError, match=r"line 2: .*'line-2'.* line 1"):
        jsonl('{"id": "line-2", "prompt": "p", "answer": "1"}', GOOD)


def test_problems_before_a_fault_are_streamed() -> None:
    stream = scan_problems(io.BytesIO(GOOD.encode() + b"\nnonsense"), "auto", source="x")
    assert next(stream).id == "line-1"
    with pytest.raises(DataError, match="line 2"):
        next(stream)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf\n"])
def test_files_that_cannot_be_read_or_hold_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "empty.jsonl").write_bytes(content)
    for name, kind, word in (
        ("empty.jsonl", "plain", r"empty\.jsonl"),
        ("none.jsonl", "plain", "data file"),
        (".", "plain", "data file"),
        ("empty.jsonl", "csv", "csv"),
    ):
        with pytest.raises(DataError, match=word):
            load_problems(tmp_path / name, kind)


def test_limit_reads_no_further_and_a_long_line_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD.encode() + b"\n" + GOOD.encode() + b"\n" + b"x" * (MAX_LINE_BYTES + 9))
    assert [problem.id for problem in load_problems(path, "plain", limit=2)] == ["line-1", "line-2"]
    with pytest.raises(DataError, match="line 3: is longer"):
        load_problems(path, "plain")


def test_gsm8k() -> None:
    solution = "He has 2,000 + 345 = <<2000+345=2345>>2345.\n#### 2,345"
    answers = {solution: "2345", "#### -1.5\n": "-1.5"}
    problems = jsonl(*(json.dumps({"question": "How many?", "answer": text}) for text in answers), format="gsm8k")
    assert [problem.answer for problem in problems] == list(answers.values())
    assert problems[0] == Problem("line-1", "How many?", "2345", {"solution": solution})
    for text in ("42", "#### many", "#### 42 apples", "#### 42\nmore"):
        with pytest.raises(DataError, match="line 1: 'answer'"):
            jsonl(json.dumps({"question": "q", "answer": text}), format="gsm8k")


# ---------------------------------------------------------------------- split

_prompts = st.lists(st.sampled_from([f"p{n}" for n in range(12)]), min_size=1, max_size=40)


@given(_prompts, st.integers(0, 30), st.integers(0, 3))
def test_holdout_never_splits_equal_prompts_and_is_deterministic(prompts: list[str], count: int, seed: int) -> None:
    problems = [Problem(str(n), prompt, "a") for n, prompt in enumerate(prompts)]
    try:
        train, held = holdout(problems, count, seed)
    except DataError as error:
        assert count >= len(problems) or "repeated prompts" in str(error)  # noqa: PT017
        return
    assert len(held) == count
    assert len(train) == len(problems) - count >= 1
    assert {p.prompt for p in train}.isdisjoint(p.prompt for p in held)
    assert sorted(train + held, key=lambda p: int(p.id)) == problems
    assert holdout(problems, count, seed) == (train, held)


def test_holdout_takes_the_smallest_hashes() -> None:
    problems = [Problem(str(n), f"p{n}", "a") for n in range(10)]
    by_hash = sorted(problems, key=lambda p: hashlib.sha256(f"3\n{p.prompt}".encode()).hexdigest())
    assert {p.id for p in holdout(problems, 4, 3)[1]} == {p.id for p in by_hash[:4]}
    assert {p.id for p in holdout(problems, 4, 5)[1]} != {p.id for p in by_hash[:4]}


def test_holdout_must_leave_something() -> None:
    with pytest.raises(DataError, match="3 of 3"):
        holdout([Problem(str(n), f"p{n}", "a") for n in range(3)], 3, 0)
    with pytest.raises(DataError, match=r"eval\.holdout 0"):
        holdout([Problem("1", "same", "a"), Problem("2", " same  ", "b")], 1, 0)


# ---------------------------------------------------------------------- digests


def test_digests_can_be_computed_by_hand(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1.
    assert file_sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    expected = hashlib.sha256('["a","é","1"]\n["b","\\"q\\"","2"]\n'.encode()).hexdigest()
    problems = [Problem("a", "é", "1", {"ignored": 1}), Problem("b", '"q"', "2")]
    assert problems_digest(problems) == expected
    assert problems_digest(problems[::-1]) != expected
    with pytest.raises(DataError, match="cannot read"):
        file_sha256(tmp_path / "none")


# ---------------------------------------------------------------------- arithmetic


def test_worked_completion() -> None:
    sums = {
        "37 + 45": "<think>7+5=12, 3+4+1=8</think><answer>82</answer>",
        "12 + 34": "<think>2+4=6, 1+3=4</think><answer>46</answer>",
        "58 + 67": "<think>8+7=15, 5+6+1=12</think><answer>125</answer>",
        "90 + 10": "<think>0+0=0, 9+1=10</think><answer>100</answer>",
    }
    assert {text: worked_completion(Problem("x", f"what is {text}?", "")) for text in sums} == sums
    with pytest.raises(DataError):
        worked_completion(Problem("x", "what is 7 + 45?", ""))


def test_additions_are_unique_right_and_deterministic() -> None:
    problems = addition_problems(8100, 4)
    assert len({p.prompt for p in problems}) == len({p.id for p in problems}) == 8100
    for problem in problems:
        a, b = map(int, re.fullmatch(r"what is (\d\d) \+ (\d\d)\?", problem.prompt).groups())  # type: ignore[union-attr]
        assert problem.answer == str(a + b)
    assert addition_problems(5, 4) == addition_problems(5, 4) != addition_problems(5, 5)
    with pytest.raises(DataError, match="only 8099"):
        addition_problems(8100, 0, exclude=frozenset({problems[0].prompt}))


def test_demo_split_shares_no_addition_even_swapped() -> None:
    train, held = demo_split()
    assert len(held) == 512
    pairs = [{frozenset(re.findall(r"\d\d", p.prompt)) for p in side} for side in (train, held)]
    assert pairs[0].isdisjoint(pairs[1])
    assert demo_split() == (train, held)
    assert demo_split(1)[1] != held


def test_write_jsonl_reads_back(tmp_path: Path) -> None:
    problems = [*addition_problems(3, 0), Problem("é", "a\nb", "c", {"level": 1})]
    write_jsonl(tmp_path / "a.jsonl", problems)
    assert load_problems(tmp_path / "a.jsonl", "auto") == problems


def test_conversations_read_back_and_share_no_sum_even_swapped(tmp_path: Path) -> None:
    train, held = chat_split()
    assert len(held) == 100
    pairs = [{frozenset(re.findall(r"\d+", p.prompt)) for p in side} for side in (train, held)]
    assert pairs[0].isdisjoint(pairs[1])
    assert all(problem.messages[-1].content == problem.prompt for problem in train + held)
    for side in (train, held):
        write_jsonl(tmp_path / "chat.jsonl", side)
        assert load_problems(tmp_path / "chat.jsonl", "auto") == side
        assert load_problems(tmp_path / "chat.jsonl", "plain")[0].messages == side[0].messages
