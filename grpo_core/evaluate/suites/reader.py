"""Reads files of suite items, one JSON object a line, strictly: a fault names file, line, what was found and
what was expected. Streamed, so that the platform checks an upload without holding it. Loads no torch.

Fields: `id`, `prompt`, `target`, and where they apply `choices`, `functions`, `cluster`, `slice`, `attack`. Any other
field is kept with the item and not looked at.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import rfc8785

from grpo_core.data.lines import Line, RowFaults, kind_of, lines_of, names_shown, shown
from grpo_core.errors import DataError
from grpo_core.evaluate.item import ATTACKS, LETTERS, SLICE, SuiteItem
from grpo_core.evaluate.scorer import Scorer
from grpo_core.text import first_repeated, refuse_unstorable

MAX_NAME_CHARS = 200
_EXPECTED = '{"id": "…", "prompt": "…", "target": "…"}'
_KNOWN = ("id", "prompt", "target", "choices", "functions", "cluster", "slice", "attack")


def load_items(path: Path, *, scorer: Scorer | None, limit: int | None = None) -> list[SuiteItem]:
    """The items of the file, in its order; with `limit` only the first so many. Raises DataError naming file and
    line."""
    try:
        with path.open("rb") as handle:
            return list(islice(scan_items(lines_of(handle, str(path)), scorer=scorer, source=str(path)), limit))
    except FileNotFoundError:
        raise DataError(f"no such file of suite items: {path}") from None
    except OSError as error:
        raise DataError(f"cannot read the suite items {path}: {error.strerror}") from None


def scan_items(lines: Iterable[bytes], *, scorer: Scorer | None, source: str) -> Iterator[SuiteItem]:
    """Items from lines as they come, each checked, its target against the scorer too when one is given. `source` is how
    messages call the file. Raises DataError after the last line where one has a fault, with up to MAX_FAULTS of them
    and no item after the first, and when there was no item."""
    first_line: dict[str, int] = {}
    faults = RowFaults()
    for number, raw in enumerate(lines, start=1):
        line, item = Line(source, number), None
        with faults.collected():
            if (fields := line.parse(raw, expected=_EXPECTED, noun="item")) is not None:
                item = _item(line, fields)
                _check(line, item, scorer, first_line)
        if item is not None and not faults:
            yield item
    faults.raise_any()
    if not first_line:
        raise DataError(f"{source}: the file holds no items; expected one JSON object a line, such as {_EXPECTED}")


def _check(line: Line, item: SuiteItem, scorer: Scorer | None, first_line: dict[str, int]) -> None:
    if (earlier := first_line.setdefault(item.id, line.number)) != line.number:
        line.fail(f"the id {item.id!r} was already used on line {earlier}; ids must be unique")
    if scorer is not None and (fault := scorer.fault(item)) is not None:
        line.fail(f"item {item.id!r}: {fault}")


def items_digest(items: Iterable[SuiteItem]) -> str:
    """SHA-256 of what is asked and what is right, in order: per item one line of canonical JSON (RFC 8785) of id, text
    shown, target, choices, cluster and slice, ended by a newline."""
    digest = hashlib.sha256()
    for item in items:
        parts = [item.id, item.shown(), item.target, list(item.choices), item.cluster, item.slice]
        digest.update(rfc8785.dumps(parts) + b"\n")
    return digest.hexdigest()


def items_jsonl(items: Iterable[SuiteItem]) -> bytes:
    """The items as a file that `scan_items` gives back."""
    return "".join(json.dumps(item.to_dict(), ensure_ascii=False) + "\n" for item in items).encode()


def _item(line: Line, fields: dict[str, Any]) -> SuiteItem:
    try:
        refuse_unstorable(fields)
        rfc8785.dumps(fields)
    except RecursionError:
        line.fail("holds a value that is nested too deep to be kept")
    except ValueError as error:
        line.fail(f"holds a value that cannot be kept: {error}")
    if "id" not in fields:
        line.fail(f"has no field 'id', which names the item in every result; found {names_shown(fields)}")
    if fields.get("target") is None or fields["target"] == "":
        line.fail(
            f"item {line.id(fields)!r} has no answer: 'target' is {'empty' if 'target' in fields else 'not there'}; "
            "expected what a right answer is"
        )
    choices = _choices(line, fields)
    attack = _name(line, fields, "attack")
    part = _name(line, fields, "slice")
    if attack:
        if attack not in ATTACKS:
            line.fail(f"'attack' is {shown(attack)}; expected one of {', '.join(ATTACKS)}")
        if part not in ("", SLICE + attack):
            line.fail(f"has 'attack' and 'slice' {shown(part)}; an item with an attack has the slice {SLICE}{attack}")
        part = SLICE + attack
    return SuiteItem(
        id=line.id(fields),
        prompt=line.prompt(fields, "prompt"),
        target=_chosen(line, fields["target"], choices) if choices else fields["target"],
        choices=choices,
        functions=_functions(line, fields),
        cluster=_name(line, fields, "cluster"),
        slice=part,
        attack=attack,
        meta={name: value for name, value in fields.items() if name not in _KNOWN},
    )


def _name(line: Line, fields: dict[str, Any], field: str) -> str:
    if field not in fields:
        return ""
    text = line.text(fields, field, numbers=True)
    if len(text) > MAX_NAME_CHARS:
        line.fail(f"{field!r} has {len(text)} characters; expected at most {MAX_NAME_CHARS}")
    return text


def _choices(line: Line, fields: dict[str, Any]) -> tuple[str, ...]:
    if "choices" not in fields:
        return ()
    given = fields["choices"]
    if not isinstance(given, list) or not all(isinstance(text, str) and text.strip() for text in given):
        line.fail(f"'choices' is {kind_of(given)}; expected a list of texts, none of them empty")
    if not 2 <= len(given) <= len(LETTERS):
        line.fail(f"'choices' has {len(given)} options; expected 2 to {len(LETTERS)}")
    texts = [" ".join(text.split()) for text in given]
    if (twice := first_repeated(texts)) is not None:
        line.fail(f"'choices' holds {shown(twice)} twice; options must differ")
    return tuple(given)


def _chosen(line: Line, target: Any, choices: tuple[str, ...]) -> int:
    """Number of the right option, from 0."""
    letters = LETTERS[: len(choices)]
    indices: dict[Any, int] = {letter: index for index, letter in enumerate(letters)}
    indices |= {text: index for index, text in enumerate(choices)}
    if isinstance(target, str):
        index = indices.get(target)
    else:
        index = target if type(target) is int and 0 <= target < len(choices) else None
    if index is None:
        given = shown(target) if isinstance(target, str) else json.dumps(target, ensure_ascii=False)
        line.fail(
            f"'target' is {given}, which is none of the {len(choices)} choices; expected a letter {letters[0]} to "
            f"{letters[-1]}, a number 0 to {len(choices) - 1}, or the text of one"
        )
    return index


def _functions(line: Line, fields: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    if "functions" not in fields:
        return ()
    given = fields["functions"]
    if not isinstance(given, list) or not given:
        line.fail(f"'functions' is {kind_of(given)}; expected a list of at least one function")
    for function in given:
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            line.fail("'functions' holds something without a 'name'; expected objects with name and parameters")
        if not isinstance(function.get("parameters", {}), dict):
            line.fail(f"the function {function['name']!r} has 'parameters' that are no object; expected a JSON Schema")
    return tuple(given)
