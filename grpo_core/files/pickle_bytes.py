"""Whether bytes are a pickle that can do anything, of any protocol; those below 2 have no mark at the start. Executes
nothing, and holds no more in memory than a line, however long the file.

The opcodes are followed one by one as an unpickler would, with the height of its stack. Text may begin like some; it
does not fetch a name and call it. This must never be stricter than an unpickler is: what it takes for text gets loaded.
"""

import pickletools
import re
from typing import IO

_MOST = 1 << 20
"""Opcodes. More of them in a row are taken for a pickle, because nothing else reads as so many."""
_PART = 1 << 16
_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
_WIDTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_BY_NAME = {"GLOBAL", "INST"}
_BY_VALUE = {"STACK_GLOBAL", "EXT1", "EXT2", "EXT4"}
_METHOD_CALLS = {"BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS"}  # of what was fetched, as sys.path
_CALLS = {"REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST"} | _METHOD_CALLS
_MODULE = re.compile(r"[\w.-]+")
_MARK, _SLICE = pickletools.markobject, pickletools.stackslice


class _Ended(Exception):
    """The file ends inside an opcode's argument, or the argument has no length."""


def fetches_names(stream: IO[bytes]) -> bool:
    """Whether the stream, from where it stands, fetches something by its name and then calls it or a method of it, or
    ends as a pickle does. Without that a pickle holds only plain values, as some text happens to."""
    heights = [0]  # of the stack above each mark
    imports = False
    for _ in range(_MOST):
        code = stream.read(1)
        opcode = _OPCODES.get(code)
        if opcode is None:
            return False
        try:
            text = _argument(stream, opcode)
        except _Ended:
            return False
        if opcode.name == "STOP":
            return imports
        if not _move(heights, opcode):
            return False
        if opcode.name in _BY_NAME and not _MODULE.fullmatch(text.decode("utf-8", "replace")):
            return False  # no module of this name can be there
        imports = imports or opcode.name in _BY_NAME | _BY_VALUE
        if imports and opcode.name in _CALLS:
            return True
    return True


def _move(heights: list[int], opcode: pickletools.OpcodeInfo) -> bool:
    """Take and put what the opcode does; False when the stack has too little on it."""
    takes, puts = opcode.stack_before, opcode.stack_after
    if opcode.name == "POP" and heights[-1] == 0 and len(heights) > 1:
        heights.pop()  # the mark itself
        return True
    count = len(takes)
    if _MARK in takes:
        if len(heights) == 1:
            return False
        heights.pop()
        count = takes.index(_MARK)
    if heights[-1] < count:
        return False
    heights[-1] -= count
    if _MARK in puts:
        heights.append(0)
    else:
        heights[-1] += len(puts)
    return True


def _argument(stream: IO[bytes], opcode: pickletools.OpcodeInfo) -> bytes:
    """Read past the opcode's argument; returns the first line of one that consists of lines."""
    argument = opcode.arg
    if argument is None:
        return b""
    if argument.n == pickletools.UP_TO_NEWLINE:
        first = _line(stream)
        if argument.name == "stringnl_noescape_pair":
            _line(stream)
        return first
    if argument.n >= 0:
        _skip(stream, argument.n)
        return b""
    signed = argument.n == pickletools.TAKEN_FROM_ARGUMENT4
    _skip(stream, int.from_bytes(_whole(stream, _WIDTHS[argument.n]), "little", signed=signed))
    return b""


def _line(stream: IO[bytes]) -> bytes:
    """Read past a line; returns its first part, without the newline."""
    first = part = stream.readline(_PART)
    while part and not part.endswith(b"\n"):
        part = stream.readline(_PART)
    if not part:
        raise _Ended
    return first.removesuffix(b"\n")


def _whole(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise _Ended
    return content


def _skip(stream: IO[bytes], count: int) -> None:
    if count < 0:
        raise _Ended
    while count:
        count -= len(_whole(stream, min(count, _PART)))
