"""Sets a PDF by Typst. Text comes in as data, never as Typst's own language."""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import resources
from typing import Any

import typst

from grpo_core.text import printable_lines

Plain = Callable[[str], str]
NUMBERED = "Some characters are written as their numbers, such as \\u52a0, because no font here has them"
_EACH = 8
"""Characters of one script that are looked for one by one."""
_LOOKS = 4096
"""Results of such looks that a process keeps."""
_RECENT = 16
"""PDFs that a process keeps: the same text gives the same bytes, and setting a card takes a second."""


def typeset(package: str, files: tuple[str, ...], contents: Callable[[Plain, bool], dict[str, Any]]) -> bytes:
    """The PDF of the first of the package's `files`, which reads `sys.inputs.data` and may import the others.

    `contents` makes that data, and passes every text through its first argument. Characters that no font has, which
    would be boxes, are written as their numbers; so is every one beyond ASCII of a text that Typst cannot set (it fails
    on some sequences of rare signs). The second argument is then true, so that the page can say so."""
    data = contents(settable, False)
    try:
        if undrawn := _undrawn({sign for sign in json.dumps(data, ensure_ascii=False) if not sign.isascii()}):
            data = contents(lambda text: _numbered(settable(text), undrawn), True)
        return _set(package, files, json.dumps(data))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of pyo3: a fault inside Typst, and no subclass of Exception
            raise
    return _set(package, files, json.dumps(contents(_ascii, True)))


def _undrawn(signs: Iterable[str]) -> set[str]:
    """Those that no font has. One of a script is seldom missing alone, so that a large part of a script of which one
    is missing is taken whole: each look costs 10 ms."""
    if _drawn("".join(sorted(signs))):
        return set()
    scripts = defaultdict(set)
    for sign in signs:
        scripts[unicodedata.name(sign, "").partition(" ")[0]].add(sign)
    missing = [part for part in scripts.values() if not _drawn("".join(sorted(part)))]
    return {sign for part in missing for sign in part if len(part) > _EACH or not _drawn(sign)}


@lru_cache(maxsize=_LOOKS)
def _drawn(text: str) -> bool:
    """Whether the fonts have every character: PDF/A asks for that, and Typst refuses what lacks one."""
    try:
        sources = {"main.typ": b"#sys.inputs.data"}
        typst.compile(sources, format="pdf", sys_inputs={"data": text}, pdf_standards="a-2b")  # type: ignore[call-overload]
    except typst.TypstError as error:
        if "could not be displayed" not in str(error):
            raise
        return False
    return True


def _numbered(text: str, undrawn: set[str]) -> str:
    return "".join(ascii(sign)[1:-1] if sign in undrawn else sign for sign in text)


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
