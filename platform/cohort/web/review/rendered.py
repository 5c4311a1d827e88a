"""A completion read as Markdown with formulas, on the server alone: nothing is loaded, nothing runs, nothing hides.

What Markdown or TeX would make of a text for a reader, without what they could do to the page: no HTML of the text's
own, no images, no links (a link is its text and its address). What CommonMark leaves out of sight (definitions of
references, titles of links, words after ```) is shown, unseen characters are marked as in the raw text, and a text
that nests too deeply is not rendered at all. `nh3` then keeps what is listed here and drops all else.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any
from xml.etree import ElementTree

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from cohort.web.templatetags.cohort import visible

DEEPEST = 40
"""Of lists and quotes in each other; the parser drops what lies deeper."""
LONGEST_FORMULA = 2000
_DEEPEST_FORMULA = 30
_HIDES = re.compile(r"\\(?:href|style|class|tag|label|color|textcolor|hspace|kern)\b|(?<!\\)%")
"""Commands whose argument is not shown, and TeX's comments."""
_INVISIBLE_OPERATORS = dict.fromkeys(range(0x2061, 0x2065))
"""Function application and the like, which the converter writes itself."""
_DELIMITERS = (("$$", "$$", True), ("$", "$", False), ("\\[", "\\]", True), ("\\(", "\\)", False))
"""(opening, closing, whether it stands on a line of its own)."""
_TAGS = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "em", "strong", "s", "code", "pre", "blockquote", "ul"),
    *("ol", "li", "span", "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub"),
    *("menclose", "msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd"),
}
_ATTRIBUTES = {
    "code": {"class"},
    "li": {"value"},
    "math": {"display"},
    "mfrac": {"linethickness"},
    "menclose": {"notation"},
    "mo": {"fence", "form", "stretchy"},
    "span": {"class", "title"},
}


@lru_cache(maxsize=512)  # a group is shown again after every judgement
def rendered(text: str) -> SafeString | None:
    """HTML of the text; None where its lists and quotes nest too deeply."""
    tokens = _markdown().parse(text)
    if any(token.level >= DEEPEST - 1 for token in tokens):
        return None
    markdown = _markdown()
    html = markdown.renderer.render(tokens, markdown.options, {})
    return mark_safe(nh3.clean(html, tags=_TAGS, attributes=_ATTRIBUTES, url_schemes=set(), link_rel=None))


@cache
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": DEEPEST})
    markdown.disable(["reference", "image", "html_block", "html_inline"])
    markdown.enable("strikethrough")
    markdown.inline.ruler.before("escape", "formula", _formula_rule)
    for name, rule in _RULES.items():
        markdown.add_render_rule(name, rule)
    return markdown


def _formula_rule(state: StateInline, silent: bool) -> bool:
    start = state.pos
    for opening, closing, display in _DELIMITERS:
        if not state.src.startswith(opening, start):
            continue
        begin = start + len(opening)
        end = state.src.find(closing, begin, begin + LONGEST_FORMULA)
        formula = state.src[begin:end]
        if end < 0 or not formula.strip() or (opening == "$" and not _is_formula(formula, state.src, end)):
            continue
        if not silent:
            token = state.push("formula", "", 0)
            token.content, token.markup = state.src[start : end + len(closing)], opening
            token.meta = {"formula": formula, "display": display}
        state.pos = end + len(closing)
        return True
    return False


def _is_formula(formula: str, text: str, end: int) -> bool:
    """Whether a dollar sign closes a formula, and is not of an amount of money (pandoc's rule)."""
    return not formula[0].isspace() and not formula[-1].isspace() and not text[end + 1 : end + 2].isdigit()


def _formula(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    token = tokens[index]
    return _mathml(token.meta["formula"], display=token.meta["display"]) or _code(token.content, "formula")


@lru_cache(maxsize=2048)  # completions of a group share most of theirs
def _mathml(formula: str, *, display: bool) -> str | None:
    """None for one that cannot be read, or whose text would not be seen or be taken for markup."""
    if _depth(formula) > _DEEPEST_FORMULA or _HIDES.search(formula):
        return None
    try:
        mathml = convert(formula, display="block" if display else "inline")
        root = ElementTree.fromstring(mathml)
    except Exception:  # noqa: BLE001 - on a text that a model wrote the parser raises whatever it meets; shown raw
        return None
    own = {element.tag.rpartition("}")[2] for element in root.iter()} <= _TAGS | {"mstyle", "mphantom", "mpadded"}
    seen = "unseen" not in visible("".join(root.itertext()).translate(_INVISIBLE_OPERATORS))
    return mathml if own and seen else None


def _depth(formula: str) -> int:
    depth = deepest = 0
    for character in formula:
        depth += {"{": 1, "}": -1}.get(character, 0)
        deepest = max(deepest, depth)
    return deepest


def _code(text: str, kind: str = "") -> str:
    return f'<code class="{kind}">{visible(text)}</code>' if kind else f"<code>{visible(text)}</code>"


def _block(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    token = tokens[index]
    label = f'<span class="muted">{visible(token.info.strip())}</span>\n' if token.info.strip() else ""
    return f"<pre>{label}{_code(token.content)}</pre>"


def _item(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    """With the number that the text gives it, where HTML would count by itself."""
    number = tokens[index].info
    return f'<li value="{escape(number)}">' if number else "<li>"


def _address(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    """After a link's text: where it would have led."""
    level = tokens[index].level
    opening = next(token for token in reversed(tokens[:index]) if token.type == "link_open" and token.level == level)
    title = f' "{opening.attrs["title"]}"' if opening.attrs.get("title") else ""
    return f' <span class="muted">({visible(str(opening.attrs.get("href", "")) + title)})</span>'


_RULES: dict[str, Any] = {
    "text": lambda _, tokens, index, *__: visible(tokens[index].content),
    "code_inline": lambda _, tokens, index, *__: _code(tokens[index].content),
    "code_block": _block,
    "fence": _block,
    "formula": _formula,
    "link_open": lambda *_: "",
    "link_close": _address,
    "list_item_open": _item,
}
