"""Function calls as the Berkeley Function-Calling Leaderboard has them (Patil et al. 2025), as suite items.

Single turn only: the categories that need no call to be run (simple, multiple, parallel, irrelevance).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from grpo_core.data.lines import Line
from grpo_core.errors import DataError
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.suites.tables import table_rows

_EMPTY = ["", []]
"""Right values of an argument for which live_simple lists none: left out or an empty list, as other questions about the
same function have it. By BFCL's own check no call would be right."""
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""BFCL's names of types in JSON Schema's."""


def read(files: Sequence[tuple[str, bytes]]) -> Iterator[SuiteItem]:
    """`files` are one or more of questions and, except for irrelevance, their possible answers, distinguished by their
    fields. The slice is the category, which the id begins with. Of irrelevance a few questions come with no function at
    all: no call is right there either."""
    questions: dict[str, tuple[Line, dict[str, Any]]] = {}
    answers: dict[str, list[Any]] = {}
    for name, content in files:
        for line, fields in table_rows(name, content):
            key = line.id(fields)
            if "ground_truth" in fields:
                if not isinstance(fields["ground_truth"], list):
                    line.fail("'ground_truth' is no list of calls")
                answers[key] = fields["ground_truth"]
            elif "question" in fields:
                if key in questions:
                    line.fail(f"the id {key!r} was already used; ids must be unique")
                questions[key] = (line, fields)
            else:
                line.fail("has neither 'question' nor 'ground_truth'")
    if lost := [key for key in answers if key not in questions]:
        raise DataError(f"there is an answer for {lost[0]!r} and no question; give the file of questions too")
    for key, (line, fields) in questions.items():
        category = key.rpartition("_")[0] or key
        no_call = "irrelevance" in category
        if key not in answers and not no_call:
            line.fail(f"{key} has no answer; give its file of possible_answer too")
        yield SuiteItem(
            id=key,
            prompt=_prompt(line, fields["question"]),
            target=[_call(line, call) for call in answers.get(key, [])],
            functions=() if no_call and fields.get("function") == [] else _functions(line, fields.get("function")),
            slice=category,
        )


def _prompt(line: Line, question: Any) -> str:
    """BFCL writes a list of turns, each a list of messages."""
    if isinstance(question, str):
        return question
    if not isinstance(question, list) or not question:
        line.fail("'question' is neither text nor a list of turns")
    turns = question if isinstance(question[0], list) else [question]
    if len(turns) != 1:
        line.fail(f"has {len(turns)} turns; only single-turn questions are taken")
    texts = [message.get("content") if isinstance(message, dict) else None for message in turns[0]]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        line.fail("'question' holds a message without content")
    return "\n\n".join(str(text) for text in texts)


def _functions(line: Line, given: Any) -> tuple[dict[str, Any], ...]:
    listed = [given] if isinstance(given, dict) else given
    if not isinstance(listed, list) or not listed or not all(isinstance(function, dict) for function in listed):
        line.fail("has no 'function' that describes what can be called")
    return tuple(_schema(function) for function in listed)


def _schema(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _TYPES.get(child, child) if name == "type" and isinstance(child, str) else _schema(child)
            for name, child in value.items()
        }
    return [_schema(child) for child in value] if isinstance(value, list) else value


def _call(line: Line, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict) or len(given) != 1:
        line.fail("'ground_truth' holds something other than {function: {argument: [values]}}")
    ((name, arguments),) = given.items()
    if isinstance(arguments, dict):
        arguments = {argument: _EMPTY if values == [] else values for argument, values in arguments.items()}
    return {"name": name, "arguments": arguments}
