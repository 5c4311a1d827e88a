"""Whole rewards to start a form from: one for each kind that people look for. Each is valid as it is; what only the
person knows, such as the address of a judge, is to be filled in."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Example:
    id: str
    name: str
    about: str
    components: tuple[dict[str, Any], ...]

    @property
    def spec(self) -> dict[str, Any]:
        return {"components": list(self.components)}


def _example(id: str, name: str, about: str, *components: dict[str, Any]) -> Example:
    return Example(id, name, about, components)


def _component(name: str, kind: str, weight: float = 1.0, **params: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "weight": weight, "params": params}


_NUMBER = _component("answer", "numeric")
_OWN = '''def verify(sample):
    """Right when the last word of the completion is the reference answer."""
    words = sample.completion.split()
    if not words:
        return {"value": 0, "detail": "no text"}
    last = words[-1].strip(".!")
    return {"value": float(last == sample.answer), "detail": f"last word: {last}"}
'''
_PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}

EXAMPLES: tuple[Example, ...] = (
    _example(
        "r1",
        "r1 format + number",
        "Think and answer tags at 0.2, the right number at 1: DeepSeek-R1’s rule reward.",
        _component("format", "r1_format", 0.2),
        _NUMBER,
    ),
    _example(
        "gsm8k",
        "number after ####",
        "GSM8K’s form: the number after the last ####.",
        _component("answer", "numeric", extract="hashes"),
    ),
    _example(
        "boxed",
        "boxed expression",
        "MATH’s form: numbers, sets, intervals and expressions in \\boxed{…}, compared by mathematics.",
        _component("answer", "math", extract="boxed"),
    ),
    _example(
        "exact",
        "exact words",
        "The answer tag holds the reference, character by character.",
        _component("answer", "exact"),
    ),
    _example("choice", "multiple choice", "The letter of the right option.", _component("answer", "choice")),
    _example(
        "contains", "names the answer", "The reference is part of the completion.", _component("answer", "contains")
    ),
    _example("calls", "function calls", "The calls that the problem wants.", _component("calls", "function_call")),
    _example("refusal", "refuses or complies", "As the problem wants it.", _component("refusal", "refusal")),
    _example("form", "form of each problem", "A pattern or JSON Schema in each problem.", _component("form", "format")),
    _example(
        "similarity",
        "close to the reference",
        "ROUGE-L against the reference: words in the same order.",
        _component("closeness", "similarity", measure="rouge_l"),
    ),
    _example(
        "code",
        "code against tests",
        "The last fenced block is run on the problem’s cases, in the sandbox of a worker.",
        _component("tests", "code"),
    ),
    _example(
        "python",
        "own function",
        "Your own verify(sample) in Python, run in the sandbox of a worker.",
        _component("own", "python", source=_OWN),
    ),
    _example(
        "task",
        "reasoning-gym’s own scorer",
        "For a dataset that was made by a task: scored as the task does it.",
        _component("task", "reasoning_gym"),
    ),
    _example(
        "json",
        "JSON of a shape",
        "The last fenced block is JSON that fits a schema; 0.2 for JSON that does not.",
        _component("shape", "json_schema", json_schema=_PERSON, parses=0.2),
    ),
    _example(
        "tags",
        "plan, work, answer",
        "Tags in an order of your own, and the right number.",
        _component("form", "tags", 0.2, sequence=["plan", "work+", "answer"]),
        _NUMBER,
    ),
    _example(
        "pattern",
        "no apology",
        "A pattern that must not appear, and the right number.",
        _component("no_apology", "regex", 0.1, pattern=r"\b(sorry|apologi[sz]e)\b", absent=True, ignore_case=True),
        _NUMBER,
    ),
    _example(
        "short",
        "right and short",
        "The right number, less the longer it took (cosine), punished near the limit as DAPO does.",
        _NUMBER,
        _component("length", "length", 0.5, shape="cosine"),
        _component("overlong", "soft_overlong", 1.0, max_tokens=1024, buffer_tokens=256),
    ),
    _example(
        "language",
        "one language",
        "The right number, and R1’s language consistency at 0.1; equations that are true at 0.1.",
        _NUMBER,
        _component("language", "language", 0.1),
        _component("steps", "equations", 0.1),
    ),
)
