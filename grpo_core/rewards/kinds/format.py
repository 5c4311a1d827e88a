"""format: the completion has the form that its problem asks for, a pattern or the shape of a JSON value, and nothing
else. What it says is not looked at.

The form is `{"regex": …}`, which must match the whole completion (white space at the ends left out), or `{"json": …}`,
a JSON Schema. It runs in a subprocess, as the kinds regex and json_schema do, which compare.
"""

import re
from dataclasses import replace
from typing import Annotated

from pydantic import Field, ValidationError

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest, always, extract_answer, missing_answer
from grpo_core.rewards.kinds import json_schema, regex
from grpo_core.rewards.kinds.json_schema import JsonSchemaParams
from grpo_core.rewards.kinds.regex import RegexParams

_OPENING = re.compile(r"```[a-z]*")


class FormatParams(Params):
    column: Annotated[str, Field(min_length=1, max_length=100)] = "form"
    """Field of the problem with its form: an object with either regex or json."""
    answer_tag: bool = False
    """Look only at what the last `<answer>…</answer>` holds."""
    fence: bool = True
    """Take JSON in a code fence, too; off asks for the bare value."""
    seconds: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Longest time for one pattern; beyond it the completion is scored 0."""


def prepare() -> None:
    regex.prepare()
    json_schema.prepare()


def score(sample: ScoreRequest, params: FormatParams) -> ComponentScore:
    """1 when the form is right, else 0. Raises RewardError for a problem without a form that can be checked."""
    form = _form(sample.problem, params)
    text = extract_answer(sample.completion, "answer_tag") if params.answer_tag else sample.completion
    if text is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer("answer_tag"))
    if isinstance(form, RegexParams):
        return regex.score(replace(sample, completion=text), form)
    return json_schema.score(replace(sample, completion=_unfenced(text) if params.fence else text), form)


def _form(problem: Problem, params: FormatParams) -> RegexParams | JsonSchemaParams:
    form, where = problem.meta.get(params.column), f"problem {problem.id}: {params.column!r}"
    if not isinstance(form, dict) or len(form) != 1 or not form.keys() <= {"regex", "json"}:
        raise RewardError(f'{where} must be {{"regex": "…"}} or {{"json": {{…}}}}')
    try:
        if "json" in form:
            schema = JsonSchemaParams(json_schema=form["json"], extract="whole")
            faults = json_schema.faults(schema)
        else:
            pattern = RegexParams(pattern=form["regex"], match="all", seconds=params.seconds)
            faults = regex.faults(pattern)
    except ValidationError as error:
        raise RewardError(f"{where} is not a form: {error.errors()[0]['msg']}") from None
    if faults:
        raise RewardError(f"{where}: the {next(iter(form))} {faults[0][1]}")
    return schema if "json" in form else pattern


def _unfenced(text: str) -> str:
    """The inside of the code fence that the text is; the text itself where it is none. Line by line, because a pattern
    with white space on either side takes cubic time on empty lines, which a broken policy writes by the thousand."""
    opening, _, rest = text.strip().partition("\n")
    body, newline, closing = rest.rpartition("\n")
    is_fence = newline and closing.strip() == "```" and _OPENING.fullmatch(opening.rstrip())
    return body if is_fence else text


SPEC = Kind(
    "format",
    FormatParams,
    "the form that its problem asks for: a pattern, or the shape of a JSON value",
    "subprocess",
    reads_prefill=always,
)
