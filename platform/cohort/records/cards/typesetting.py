"""Sets a PDF by Typst. Text comes in as data, never as Typst's own language."""

import json
import unicodedata
from typing import Any

import typst

from grpo_core.text import printable


def typeset(template: bytes, name: str, data: dict[str, Any], plainer: dict[str, Any]) -> bytes:
    """The PDF of a template that reads `sys.inputs.<name>`. Text that Typst cannot set (it fails on some sequences of
    rare signs) is set with every sign beyond ASCII written as its number, and with `plainer` put into the data."""
    try:
        return _set(template, name, data)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of pyo3: a fault inside Typst, and no subclass of Exception
            raise
    return _set(template, name, _ascii(data) | plainer)


def settable(text: str) -> str:
    """The text, line by line, without characters that steer or cannot be seen, and without those that no font has."""
    lines = (printable(line) for line in text.split("\n"))
    return "\n".join("".join(ascii(c)[1:-1] if unicodedata.category(c) == "Cn" else c for c in line) for line in lines)


def _set(template: bytes, name: str, data: dict[str, Any]) -> bytes:
    return bytes(typst.compile(template, format="pdf", sys_inputs={name: json.dumps(data)}))


def _ascii(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("ascii", "backslashreplace").decode()
    if isinstance(value, list):
        return [_ascii(element) for element in value]
    if isinstance(value, dict):
        return {name: _ascii(element) for name, element in value.items()}
    return value
