"""Sets a PDF by Typst. Text comes in as data, never as Typst's own language."""

import json
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from typing import Any

import typst

from grpo_core.text import printable_lines

Plain = Callable[[str], str]
_RECENT = 16
"""PDFs that a process keeps: the same text gives the same bytes, and setting a card takes a second."""


def typeset(package: str, files: tuple[str, ...], contents: Callable[[Plain, bool], dict[str, Any]]) -> bytes:
    """The PDF of the first of the package's `files`, which reads `sys.inputs.data` and may import the others.

    `contents` makes that data, and passes every text through its first argument. Text that Typst cannot set (it fails
    on some sequences of rare signs) is set with every sign beyond ASCII written as its number; the second argument is
    then true, so that the page can say so."""
    try:
        return _set(package, files, json.dumps(contents(settable, False)))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of pyo3: a fault inside Typst, and no subclass of Exception
            raise
    return _set(package, files, json.dumps(contents(_ascii, True)))


@lru_cache(maxsize=_RECENT)
def _set(package: str, files: tuple[str, ...], data: str) -> bytes:
    main, *imported = files
    folder = resources.files(package)
    sources = {"main.typ": folder.joinpath(main).read_bytes()}
    sources |= {name: folder.joinpath(name).read_bytes() for name in imported}
    return bytes(typst.compile(sources, format="pdf", sys_inputs={"data": data}))  # type: ignore[call-overload]


def settable(text: str) -> str:
    """The text without characters that steer or cannot be seen, and without those that no font can have; line ends
    stay."""
    return "".join(ascii(sign)[1:-1] if unicodedata.category(sign) == "Cn" else sign for sign in printable_lines(text))


def _ascii(text: str) -> str:
    return settable(text).encode("ascii", "backslashreplace").decode()
