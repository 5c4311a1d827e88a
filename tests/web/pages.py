"""Pages as HTML has them, however their templates are broken into lines and indented."""

import re
from typing import Any

_AS_SENT = re.compile(r"(<(pre|textarea|script|style)\b.*?</\2>)", re.DOTALL)
_ATTRIBUTES = r"""(?:"[^"]*"|'[^']*'|[^>"'])*"""
_BLOCK = (
    r"(?:address|article|aside|body|caption|dd|details|div|dl|dt|fieldset|figure|footer|form|h\d|head|header|hr|html|"
    r"legend|li|link|main|meta|nav|ol|optgroup|option|p|section|summary|table|tbody|td|tfoot|th|thead|title|tr|ul)\b"
)
_BREAK = r"[ \t\r\n]*\n[ \t\r\n]*"  # a no-break space is a character to HTML, not a space
_TAG = re.compile(rf"</?[a-z]{_ATTRIBUTES}>")
_BREAK_BEFORE = re.compile(rf"{_BREAK}(?=</|<{_BLOCK})")
_BREAK_AFTER = re.compile(rf"(<(?!input\b|img\b)[a-z]{_ATTRIBUTES}>|</{_BLOCK}>){_BREAK}")


def html(response: Any) -> str:
    """The page of a response, or the part of one."""
    return compact(response.content.decode())


def compact(page: str) -> str:
    """Without the line breaks that no reader sees: beside the tags of blocks, at the inner edges of elements and before
    the end of a tag. Any other line break, with the indent after it, is the one space that a reader sees; spaces within
    a line stay as they were sent, and so does what is preformatted."""
    parts = _AS_SENT.split(page)
    return "".join(part if at % 3 else _compact(part) for at, part in enumerate(parts) if at % 3 != 2)


def _compact(text: str) -> str:
    text = _TAG.sub(lambda tag: re.sub(rf"{_BREAK}(?=>)", "", tag[0]), text)
    text = _BREAK_AFTER.sub(r"\1", _BREAK_BEFORE.sub("", text))
    return re.sub(_BREAK, " ", text)
