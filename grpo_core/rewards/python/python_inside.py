"""The part of kind `python` that runs in the box: loads a person's source and asks its `verify` about each sample.

`session_inside.py` runs this text and calls `load` and `answer`. It uses the standard library alone. What `verify`
returns leaves the box as plain numbers and text; anything else is an error of class value.
"""

import hashlib
import json
import linecache
import math
import numbers
import random
import sys
import types
from typing import Any, NoReturn

FILE = "verifier.py"
MOST_DETAIL = 2000
_KEYS = {"value", "passed", "detail", "steps"}
verifier = types.ModuleType("verifier")


class Sample:
    """What `verify` is given: text and the declared fields, nothing else."""

    __slots__ = ("answer", "answers", "completion", "meta", "prefill", "prompt", "tokens")

    def __init__(self, request: dict[str, Any]) -> None:
        self.prompt: str = request["prompt"]
        self.completion: str = request["completion"]
        self.answer: str = request["answer"]
        self.answers: list[str] = request["answers"]
        self.prefill: str = request["prefill"]
        self.tokens: int | None = request["tokens"]
        self.meta: dict[str, Any] = request["meta"]

    def __repr__(self) -> str:
        return f"Sample(prompt={self.prompt!r}, completion={self.completion!r}, answer={self.answer!r})"


def load(hello: dict[str, Any]) -> None:
    source = hello["source"]
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    sys.modules["verifier"] = verifier
    random.seed(0)
    exec(compile(source, FILE, "exec"), verifier.__dict__)
    if not callable(getattr(verifier, "verify", None)):
        wrong("verifier", "the source defines no function verify(sample)")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    # The same sample gets the same random numbers, whatever was scored before it and in whichever box.
    seed = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).digest()
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(int.from_bytes(seed[:4], "big"))
    return plain(verifier.verify(Sample(request)), len(request["completion"]))


def plain(given: Any, length: int) -> dict[str, Any]:
    if not isinstance(given, dict):
        value = number(given, "verify returned")
        return {"value": value, "passed": truth(given)}
    if unknown := sorted(map(str, set(given) - _KEYS)):
        wrong("value", f"verify returned a dict with {', '.join(unknown)}; it may have {', '.join(sorted(_KEYS))}")
    if given.get("value") is None and not given.get("steps"):
        wrong("value", "verify returned a dict without 'value'")
    reply: dict[str, Any] = {"passed": given.get("passed"), "detail": given.get("detail")}
    if given.get("steps") is not None:
        reply["steps"] = steps(given["steps"], length)
    if given.get("value") is not None:
        reply["value"] = number(given["value"], "verify returned a dict whose 'value' is")
        reply["passed"] = truth(given["value"]) if reply["passed"] is None else reply["passed"]
    else:
        reply["value"] = math.fsum(step["value"] for step in reply["steps"]) / len(reply["steps"])
    if reply["passed"] is not None:
        reply["passed"] = truth(reply["passed"])
        if reply["passed"] is None:
            wrong(
                "value", f"verify returned a dict whose 'passed' is {shown(given['passed'])}; it must be True or False"
            )
    if reply["detail"] is None:
        del reply["detail"]
    elif not isinstance(reply["detail"], str):
        wrong("value", f"verify returned a dict whose 'detail' is {shown(given['detail'])}; it must be text")
    else:
        reply["detail"] = reply["detail"][:MOST_DETAIL]
    return reply


def steps(given: Any, length: int) -> list[dict[str, Any]]:
    if not isinstance(given, list | tuple):
        wrong("value", f"verify returned a dict whose 'steps' is {shown(given)}; it must be a list")
    checked = []
    for index, step in enumerate(given):
        if not isinstance(step, dict) or set(step) != {"end", "value"}:
            wrong("value", f"step {index} is {shown(step)}; it must be a dict with 'end' and 'value'")
        end = step["end"]
        if isinstance(end, bool) or not isinstance(end, int) or not 1 <= end <= length:
            wrong("value", f"the 'end' of step {index} is {shown(end)}; it must be a place from 1 to {length}")
        checked.append({"end": int(end), "value": number(step["value"], f"the 'value' of step {index} is")})
    return checked


def number(given: Any, where: str) -> float:
    """Raises Trouble for what is no finite number."""
    if type(given).__module__ == "numpy" and getattr(given, "shape", None) == ():
        given = given.item()
    if not isinstance(given, bool | numbers.Real):
        wrong("value", f"{where} {shown(given)}; it must be a number, True or False")
    try:
        value = float(given)
    except OverflowError:
        wrong("value", f"{where} a number that is too large")
    if not math.isfinite(value):
        wrong("value", f"{where} {value}; it must be a finite number")
    if abs(value) >= 2**53:
        wrong("value", f"{where} {value}; it must be less than 2^53, beyond which JSON's readers lose digits")
    return value


def truth(given: Any) -> bool | None:
    if type(given).__module__ == "numpy" and getattr(given, "shape", None) == ():
        given = given.item()
    return given if isinstance(given, bool) else None


def shown(given: Any) -> str:
    if given is None:
        return "None"
    text = repr(given)
    kind = type(given).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} ({text if len(text) <= 80 else text[:79] + '…'})"


def wrong(kind: str, message: str) -> NoReturn:
    raise Trouble(kind, message)  # type: ignore[name-defined]  # noqa: F821 - session_inside.py gives it
