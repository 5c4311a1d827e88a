"""Layouts that problems are published in: which fields a row has, and how they become a Problem.

A layout is declared here once; detection, messages, the upload page and docs/data.md read the table.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Any, get_args

from grpo_core.data import gym
from grpo_core.data.conversations import read_messages
from grpo_core.data.lines import inside, kind_of, parse_json, shown
from grpo_core.data.problem import LETTERS, Problem, with_options
from grpo_core.data.rows import ANSWERS, Row
from grpo_core.specs.fields import DataFormat
from grpo_core.text import last_boxed

PROMPTS = ("prompt", "question", "problem")
SOLUTION = "solution"

_GSM8K_ANSWER = re.compile(r"####[ \t]*(-?[0-9][0-9,]*(?:\.[0-9]+)?)\s*\Z")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s+([^\s$]+)")
_OPTION_LETTER = re.compile(r"\s*\(?([A-Z])[).:]\s*")


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows of one kind are read."""

    title: str
    help: str
    """Its fields, and known sets that have them."""
    read: Callable[[Row], Problem]
    columns: Mapping[str, tuple[str, ...]]
    """{role: names that its field may have}; each of these roles is needed."""
    rank: int
    """Of several layouts that fit, those with the highest rank count."""
    needs: tuple[str, ...] = ()
    """Fields that a row has besides."""
    optional: tuple[str, ...] = ("system", "id")
    """Roles that a row may have."""
    fits: Callable[[Row], bool] = lambda row: True
    """Whether a row that has the columns is of this layout."""


def _read_plain(row: Row) -> Problem:
    return _with_prompt(row, row.references())


def _with_prompt(row: Row, references: tuple[str, ...], *, meta: Mapping[str, Any] = MappingProxyType({})) -> Problem:
    """Of a prompt that is a text or a list of messages."""
    given = row.value("prompt")
    if not isinstance(given, list):
        return row.problem(row.text("prompt"), references, meta=meta)
    name = row.columns["prompt"]
    messages = read_messages(row.line, given, name)
    if messages[-1].role != "user":
        row.line.fail(
            f"{name!r} ends with the assistant's turn; expected the user's, which the policy answers. For a "
            "conversation with its answer name it data.columns.messages, with format: messages"
        )
    return row.problem(messages[-1].content, references, messages=messages, meta=meta)


def _read_verl(row: Row) -> Problem:
    """A ground truth that is a JSON list of texts, as Skywork-OR1 writes it, holds several answers."""
    problem = _read_plain(row)
    try:
        listed = json.loads(problem.answer)
    except ValueError:
        return problem
    if not isinstance(listed, list) or not listed or not all(isinstance(text, str) and text.strip() for text in listed):
        return problem
    return replace(problem, answer=listed[0], other_answers=tuple(listed[1:]))


def _read_gsm8k(row: Row) -> Problem:
    name, solution = row.columns["answer"], row.line.text(row.fields, row.columns["answer"])
    if (match := _GSM8K_ANSWER.search(solution)) is None:
        row.line.fail(f"{name!r} does not end in '#### number'; it ends in {shown(solution[-40:])}")
    return _with_prompt(row, (match[1].replace(",", ""),), meta={"solution": solution})


def _read_math(row: Row) -> Problem:
    name, solution = row.columns["answer"], row.line.text(row.fields, row.columns["answer"])
    answer = boxed_answer(solution)
    if not answer:
        row.line.fail(f"{name!r} has no \\boxed{{answer}}; it ends in {shown(solution[-40:])}")
    return _with_prompt(row, (answer,), meta={name: solution})


def boxed_answer(solution: str) -> str:
    """What the last box of a solution holds, also `\\boxed 5` and `\\fbox{5}`, which MATH has; "" without one."""
    bare = _BARE_BOX.findall(solution)
    return last_boxed(solution.replace("\\fbox{", "\\boxed{")) or (bare[-1] if bare else "")


def _read_messages(row: Row) -> Problem:
    """The last assistant turn is the reference, unless a column is named for it. Where the user's turn is last, a field
    that is known to hold answers is."""
    name = row.columns["messages"]
    messages = read_messages(row.line, row.value("messages"), name)
    if messages[-1].role == "assistant":
        *turns, last = messages
        references = row.references() if row.has("answer") else (last.content,)
        return row.problem(turns[-1].content, references, messages=tuple(turns))
    named = row if row.columns.get("answer") is not None else row.with_known_answer()
    return named.problem(messages[-1].content, named.references(), messages=messages)


def _read_alpaca(row: Row) -> Problem:
    given = row.fields.get("input")
    context = "" if given is None else row.line.checked_text(given, "input")
    prompt = "\n\n".join(filter(None, [row.text("prompt"), context.strip()]))
    return row.problem(prompt, row.references())


def _read_choices(row: Row) -> Problem:
    letters, options = _options(row)
    index = _right_option(row, letters, options)
    prompt = with_options(row.text("prompt"), options)
    return row.problem(prompt, (LETTERS[index],), meta={"choices": list(options), "target": index})


def _has_options(row: Row) -> bool:
    """Whether the column is a list or an object, a list as CSV holds it, or the first of a column for each option."""
    given = row.value("choices")
    return isinstance(given, list | dict) or str(given).lstrip()[:1] in ("[", "{") or len(_option_columns(row)) > 1


def _option_columns(row: Row) -> list[str]:
    """A, B, C, … or option_a, option_b, …, as far as the row has them; empty where the column is not the first."""
    first = row.columns["choices"]
    alphabet = LETTERS if first.endswith("A") else LETTERS.lower()
    names = [first[:-1] + letter for letter in alphabet]
    return list(takewhile(row.fields.__contains__, names)) if names[0] == first else []


def _options(row: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Letters and texts of the options, AQuA's letters taken off."""
    name, given = row.columns["choices"], _listed_options(row)
    labels: Iterable[str] = LETTERS
    if isinstance(given, dict):
        labels, given = given.keys(), list(given.values())
    if not isinstance(given, list) or not 2 <= len(given) <= len(LETTERS):
        size = f" of {len(given)}" if isinstance(given, list) else ""
        row.line.fail(
            f"{name!r} is {kind_of(given)}{size}; expected a list of 2 to {len(LETTERS)} options, in CSV as JSON: "
            '["…", "…"]'
        )
    texts = [row.line.checked_text(text, name, numbers=True) for text in given]
    marks = [_OPTION_LETTER.match(text) for text in texts]
    if [mark and mark[1] for mark in marks] == list(LETTERS[: len(texts)]):
        texts = [_OPTION_LETTER.sub("", text, count=1) for text in texts]
    return tuple(islice(labels, len(texts))), tuple(texts)


def _listed_options(row: Row) -> Any:
    """A list of texts or {label: text}, as the row has it or made of: ARC's object of labels and texts, a list of
    {label, text} or {key, value}, a list of JSON as text, a column for each option. Parquet has null for a label that
    the row has not, CSV an empty column."""
    given = row.value("choices")
    if len(columns := _option_columns(row)) > 1:
        return {name[-1].upper(): row.fields[name] for name in columns if row.fields[name] not in (None, "")}
    if isinstance(given, str):
        try:
            given = parse_json(given)
        except (ValueError, RecursionError):
            return given
    for label, text in (("label", "text"), ("key", "value")):
        if isinstance(given, list) and all(isinstance(option, dict) and {label, text} <= {*option} for option in given):
            given = {label: [option[label] for option in given], text: [option[text] for option in given]}
        if isinstance(given, dict) and isinstance(given.get(label), list) and isinstance(given.get(text), list):
            return dict(zip(map(str, given[label]), given[text], strict=False))
    return {label: text for label, text in given.items() if text is not None} if isinstance(given, dict) else given


def _right_option(row: Row, letters: tuple[str, ...], options: tuple[str, ...]) -> int:
    """Number of the right option, from 0: given as that number, a letter, or the option's text."""
    name, given = row.columns["answer"], row.value("answer")
    text = str(given).strip()
    small = tuple(letter.lower() for letter in letters)
    by_text = next((names.index(text) for names in (letters, options, small) if names.count(text) == 1), None)
    index = given if type(given) is int else by_text
    if index is None or not 0 <= index < len(options):
        row.line.fail(
            f"{name!r} is {shown(text)}, which is none of the {len(options)} options; expected a letter, the option's "
            "text, or as a number, not as text, its place from 0"
        )
    return index


def _read_humaneval(row: Row) -> Problem:
    """The test program calls `check(candidate)` at its end, as the set's own harness does."""
    test, entry = row.line.text(row.fields, "test"), row.line.text(row.fields, "entry_point")
    return row.problem(row.text("prompt"), (), meta={"tests": f"{test}\ncheck({entry})\n"})


def _read_mbpp(row: Row) -> Problem:
    """The prompt shows the tests, which alone name the function: Austin et al. 2021 (arXiv 2108.07732), section 3."""
    tests = _texts(row, "test_list")
    setup = "\n".join(
        text for field in ("test_imports", "test_setup_code") if row.fields.get(field) for text in _texts(row, field)
    ).strip()
    listed = "\n".join(tests)
    return row.problem(
        f"{row.text('prompt')}\n\nYour code should pass these tests:\n\n{listed}",
        (),
        meta={"tests": [f"{setup}\n{test}" if setup else test for test in tests]},
    )


def _texts(row: Row, name: str) -> list[str]:
    given = row.line.value(row.fields, name)
    return [row.line.checked_text(text, name) for text in (given if isinstance(given, list) else [given])]


def _read_gym(row: Row) -> Problem:
    name = row.line.text(row.fields, "metadata.source_dataset")
    entry = {"question": row.text("prompt"), "answer": row.references()[0], "metadata": row.fields["metadata"]}
    task = {"name": name, "version": "", "params": {}, "entry": entry}
    problem = row.problem(entry["question"], row.references(), meta={gym.META: task})
    problem.meta.pop("metadata")
    return problem


LAYOUTS: dict[str, Layout] = {
    "plain": Layout(
        "Prompt and answer",
        "prompt, question or problem, a text or a list of messages, with answer, final_answer, ground_truth, "
        "reference_answer, expected_answer or solution, one or a list: TRL, DAPO processed, MATH-500, AIME, AMC, "
        "OlympiadBench, Minerva, OpenR1",
        _read_plain,
        {"prompt": PROMPTS, "answer": (*ANSWERS, SOLUTION)},
        rank=2,
    ),
    "prompt_only": Layout(
        "Prompt alone",
        "prompt, question or problem, without a reference: for rewards that compare with none",
        _read_plain,
        {"prompt": PROMPTS},
        rank=0,
        optional=("system", "id", "answer"),
        fits=lambda row: row.columns.get("answer") == "" or not {*ANSWERS, SOLUTION} & row.fields.keys(),
    ),
    "gsm8k": Layout(
        "GSM8K",
        "question, and an answer that ends in #### number",
        _read_gsm8k,
        {"prompt": ("question",), "answer": ("answer",)},
        rank=3,
        fits=lambda row: _GSM8K_ANSWER.search(str(row.value("answer"))) is not None,
    ),
    "math": Layout(
        "MATH",
        "problem, and a solution with the answer in \\boxed{}: MATH, NuminaMath, AIME without answers",
        _read_math,
        {"prompt": ("problem", "question", "prompt"), "answer": (SOLUTION,)},
        rank=3,
        fits=lambda row: not set(ANSWERS) & row.fields.keys() and bool(boxed_answer(str(row.value("answer")))),
    ),
    "verl": Layout(
        "verl",
        "prompt, a list of messages, and reward_model.ground_truth: verl, DAPO-Math-17k, Skywork-OR1",
        _read_verl,
        {"prompt": ("prompt",), "answer": ("reward_model.ground_truth",)},
        rank=3,
        needs=("reward_model",),
    ),
    "messages": Layout(
        "Chat messages",
        "messages with role and content; the last turn of the assistant is the reference. Ends the list with the "
        "user, as OpenAI's RFT files do, the answer column is",
        _read_messages,
        {"messages": ("messages",)},
        rank=1,
        optional=("system", "id", "answer"),
    ),
    "sharegpt": Layout(
        "ShareGPT",
        "conversations with from and value; the last turn of gpt is the reference",
        _read_messages,
        {"messages": ("conversations", "conversation")},
        rank=1,
        optional=("system", "id", "answer"),
    ),
    "alpaca": Layout(
        "Alpaca",
        "instruction, input (may be empty) and output",
        _read_alpaca,
        {"prompt": ("instruction",), "answer": ("output",)},
        rank=2,
        needs=("instruction", "output"),
    ),
    "choices": Layout(
        "Multiple choice",
        "question, choices or options, or a column for each (A, B, …), and the right one by letter, text or number "
        "from 0: MMLU, MMLU-Pro, AQuA, ARC, MedQA. The prompt lists the options; the answer is the letter",
        _read_choices,
        {
            "prompt": PROMPTS,
            "choices": ("choices", "options", "A", "option_a"),
            "answer": ("answer", "correct", "answerKey", "answer_index"),
        },
        rank=3,
        fits=_has_options,
    ),
    "humaneval": Layout(
        "HumanEval",
        "prompt, test and entry_point; the reward code reads the tests from the field tests",
        _read_humaneval,
        {"prompt": ("prompt",), "id": ("task_id",)},
        rank=3,
        needs=("test", "entry_point"),
    ),
    "mbpp": Layout(
        "MBPP",
        "text or prompt, and test_list; the reward code reads the tests from the field tests",
        _read_mbpp,
        {"prompt": ("text", "prompt"), "id": ("task_id",)},
        rank=3,
        needs=("test_list",),
    ),
    "reasoning_gym": Layout(
        "reasoning-gym",
        "question, answer and metadata with source_dataset; the reward reasoning_gym scores with the task's own scorer",
        _read_gym,
        {"prompt": ("question",), "answer": ("answer",)},
        rank=4,
        needs=("metadata",),
        fits=lambda row: isinstance(inside(row.fields, "metadata.source_dataset"), str),
    ),
}
assert {"auto", *LAYOUTS} == set(get_args(DataFormat))
