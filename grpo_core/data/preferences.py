"""Preferences from files: pairs of a better and a worse completion of one prompt, or completions with a score. What a
reward model learns from and is measured on.

A fault names file, line or row, and the fix; the faults of several rows are raised together. Loads no torch.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, islice
from pathlib import Path
from typing import IO, Any, TypeVar

from grpo_core.data.containers import rows_of
from grpo_core.data.conversations import read_messages
from grpo_core.data.lines import Line, RowFaults, kind_of, names_shown
from grpo_core.data.loaders import rows_of_files
from grpo_core.data.problem import Message, Problem, held_texts
from grpo_core.errors import DataError


@dataclass(frozen=True, slots=True)
class Pair:
    """Two completions of one prompt."""

    problem: Problem
    """Whose id is the row's, and whose prompt both completions answer."""
    chosen: str
    """The better one."""
    rejected: str
    margin: float = 0.0
    """By how much the better one's reward is to exceed the other's, at least; 0 where the file gives none."""

    @property
    def completions(self) -> tuple[str, str]:
        return self.chosen, self.rejected

    @property
    def content(self) -> list[Any]:
        """What of the row decides what is learned."""
        return [self.problem.prompt, self.chosen, self.rejected, self.margin]


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A completion with the score that its reward is to be."""

    problem: Problem
    completion: str
    score: float

    @property
    def completions(self) -> tuple[str]:
        return (self.completion,)

    @property
    def content(self) -> list[Any]:
        """What of the row decides what is learned."""
        return [self.problem.prompt, self.completion, self.score]


Preference = Pair | ScoredText
P = TypeVar("P", bound=Preference)


def load_pairs(paths: Sequence[Path], *, limit: int | None = None) -> list[Pair]:
    """The pairs of the files, in their order; with `limit` only the first so many. Raises DataError."""
    return _load(paths, _pair, limit)


def load_scores(paths: Sequence[Path], *, limit: int | None = None) -> list[ScoredText]:
    """The scored completions of the files, in their order; with `limit` only the first so many. Raises DataError."""
    return _load(paths, _scored_text, limit)


def scan_preferences(handle: IO[bytes], *, source: str) -> Iterator[Preference]:
    """Preferences of a file that can seek, each checked: pairs or scores, as its first row is; `source` is how messages
    call the file. Raises DataError as `loaders.scan_problems`."""
    read: Callable[[Line, dict[str, Any]], Preference] | None = None
    faults = RowFaults()
    with faults.collected():  # what ends the reading is named after the rows before it
        for line, fields in rows_of(handle, source=source, faults=faults):
            if read is None:
                read = _scored_text if "score" in fields and "chosen" not in fields else _pair
            with faults.collected():
                row = read(line, fields)
            if not faults:
                yield row
    faults.raise_any()
    if read is None:
        raise DataError(f"{source}: the file holds no preferences")


def _load(paths: Sequence[Path], read: Callable[[Line, dict[str, Any]], P], limit: int | None) -> list[P]:
    faults = RowFaults()

    def rows() -> Iterator[P]:
        with faults.collected():  # what ends the reading is named after the rows before it
            for line, fields in rows_of_files(paths, faults):
                with faults.collected():
                    row = read(line, fields)
                if not faults:
                    yield row

    preferences = list(islice(rows(), limit))
    faults.raise_any()
    if not preferences:
        raise DataError(f"{paths[0]}: the file holds no preferences")
    return preferences


# ---------------------------------------------------------------------- one row


def _pair(line: Line, fields: dict[str, Any]) -> Pair:
    if "score" in fields and "chosen" not in fields:
        line.fail("holds a score and no pair; train on scores with objective: regression")
    for name in ("chosen", "rejected"):
        if name not in fields:
            line.fail(
                f"has no field {name!r}; found {names_shown(fields)}. Expected a pair such as "
                '{"prompt": "…", "chosen": "…", "rejected": "…"}'
            )
    chosen_turns, chosen = _completion(line, fields, "chosen")
    rejected_turns, rejected = _completion(line, fields, "rejected")
    if chosen_turns != rejected_turns:
        line.fail("'chosen' and 'rejected' answer different conversations; a pair has one prompt and two answers to it")
    if " ".join(chosen.split()) == " ".join(rejected.split()):
        line.fail(
            "'chosen' and 'rejected' are the same text but for white space, so neither is the better one; take the "
            "row out"
        )
    margin = _number(line, fields, "margin") if fields.get("margin") is not None else 0.0
    if margin < 0:
        line.fail(f"'margin' is {margin:g}; expected 0 or more: by how much the reward of 'chosen' is to be higher")
    return Pair(_problem(line, fields, chosen_turns), chosen, rejected, margin)


def _scored_text(line: Line, fields: dict[str, Any]) -> ScoredText:
    if "chosen" in fields and "score" not in fields:
        line.fail("holds a pair and no score; train on pairs with objective: bradley_terry")
    for name in ("completion", "score"):
        if name not in fields:
            line.fail(
                f"has no field {name!r}; found {names_shown(fields)}. Expected a scored completion such as "
                '{"prompt": "…", "completion": "…", "score": 0.5}'
            )
    turns, completion = _completion(line, fields, "completion")
    return ScoredText(_problem(line, fields, turns), completion, _number(line, fields, "score"))


def _completion(line: Line, fields: dict[str, Any], name: str) -> tuple[tuple[Message, ...], str]:
    """(the turns before it, if the field brings them; its text). A list of messages ends with the assistant's turn."""
    value = fields[name]
    if not isinstance(value, list):
        text = line.text(fields, name)
        if not text.strip():
            line.fail(f"{name!r} is empty; expected the text of an answer")
        return (), text
    if isinstance(value[0] if value else None, dict) and value[0].get("role", value[0].get("from")) == "assistant":
        if len(value) > 1:
            line.fail(f"{name!r} has turns after the assistant's first one; expected one answer")
        return (), line.checked_text(value[0].get("content", value[0].get("value")), f"{name}.0.content")
    messages = read_messages(line, value, name)
    if messages[-1].role != "assistant":
        line.fail(f"{name!r} ends with the turn of {messages[-1].role}; expected the assistant's answer last")
    return messages[:-1], messages[-1].content


def _problem(line: Line, fields: dict[str, Any], turns: tuple[Message, ...]) -> Problem:
    """Of the prompt that the row gives as text, as messages, or as the turns before its answers. Of several turns the
    user's last one is the prompt, as of any problem: it is what the reward kind reads, and so what is learned from."""
    given = [name for name in ("prompt", "messages") if name in fields] + (["turns"] if turns else [])
    if not given:
        line.fail(f"has no field 'prompt' or 'messages'; found {names_shown(fields)}")
    if len(given) > 1:
        where = " and ".join("turns in its answers" if name == "turns" else repr(name) for name in given)
        line.fail(f"has {where}, each of which may be the prompt; leave one out")
    name = given[0]
    if name != "turns":
        value = fields[name]
        if not isinstance(value, list):
            return Problem(line.id(fields), line.prompt(fields, name), "")
        turns = read_messages(line, value, name)
    if turns[-1].role != "user":
        line.fail("its prompt ends with the turn of the assistant; expected the user's turn, which the answers answer")
    return Problem(line.id(fields), turns[-1].content, "", messages=turns if len(turns) > 1 else ())


def _number(line: Line, fields: dict[str, Any], name: str) -> float:
    value = fields[name]
    if isinstance(value, str):  # as CSV has it
        try:
            value = float(value)
        except ValueError:
            line.fail(f"{name!r} is text that is no number; expected a number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        line.fail(f"{name!r} is {kind_of(value)}; expected a number")
    number = float(value)
    if not -1e15 < number < 1e15:
        line.fail(f"{name!r} is {value}; expected a finite number below 1e15")
    return number


# ---------------------------------------------------------------------- sets of rows


def prompt_key(preference: Preference) -> str:
    """The prompt, white space aside: equal of rows about one prompt."""
    return " ".join(preference.problem.prompt.split())


def prompt_digest(preference: Preference) -> str:
    """The cluster of a row in statistics: the first 16 hex digits of SHA-256 of `prompt_key`."""
    return hashlib.sha256(prompt_key(preference).encode()).hexdigest()[:16]


def split_rows(rows: Sequence[P], count: int, seed: int) -> tuple[list[P], list[P]]:
    """(train, held out), both in the order given: at most `count` rows are held out, all rows of a prompt together.
    Which prompts is decided by SHA-256 of seed and prompt, as of problems. Raises DataError where nothing would be
    left on one side."""
    if count >= len(rows):
        raise DataError(
            f"cannot hold out {count} of {len(rows)} rows: nothing would be left to train on; lower data.holdout or "
            "give data.heldout_path"
        )
    held = held_texts([prompt_key(row) for row in rows], count, seed)
    if not held:
        raise DataError(
            f"cannot hold out {count} rows: rows of one prompt stay together, and every prompt has more; raise "
            "data.holdout or give data.heldout_path"
        )
    train = [row for index, row in enumerate(rows) if index not in held]
    return train, [row for index, row in enumerate(rows) if index in held]


def comparable_pairs(rows: Iterable[ScoredText]) -> list[Pair]:
    """Every pair of completions of one prompt whose scores differ, the higher first: what scores are measured on as
    pairs are. `margin` stays 0: a measurement asks for no distance."""
    by_prompt: dict[str, list[ScoredText]] = {}
    for row in rows:
        by_prompt.setdefault(prompt_key(row), []).append(row)
    pairs = []
    for together in by_prompt.values():
        for first, second in combinations(together, 2):
            if first.score != second.score:
                high, low = (first, second) if first.score > second.score else (second, first)
                name = f"{high.problem.id}>{low.problem.id}"
                pairs.append(Pair(Problem(name, high.problem.prompt, ""), high.completion, low.completion))
    return pairs


def preferences_digest(rows: Iterable[Preference]) -> str:
    """SHA-256 of what is learned from or measured on, in order: per row one line of JSON, its id and its content, in
    UTF-8 without spaces, ended by a newline."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps([row.problem.id, *row.content], ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def replay_rows(share: float, batch_size: int, steps: int) -> int:
    """How many rows of the first `steps` batches are replayed: share × all rows, rounded half up. What a step takes is
    the difference to the step before, so that the share is exact over the run."""
    return int(Fraction(str(share)) * batch_size * steps + Fraction(1, 2))
