"""Special tokens that a user, a dataset or a system message spells out: they stay text, as nobody but the template may
open a turn or end one.

The rendered text is encoded whole by a copy of the tokenizer whose special tokens have other names, and those that the
template wrote are renamed in the text too. All else is as in the tokenizer itself, so a text without such spellings has
the ids that transformers gives it.
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from grpo_core.errors import DataError

_ALIASES, _MARKS = 0xF0000, 0x100000
"""Where Unicode's two planes for private use begin: other names of special tokens, and marks of spelled-out ones."""


class SpecialTokens:
    """The special tokens of one tokenizer, and the way around them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.ids: dict[str, int] = {
            token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._aliases = {text: chr(_ALIASES + index) for index, text in enumerate(longest_first)}
        self._marks = {text: chr(_MARKS + index) for index, text in enumerate(longest_first)}
        self._texts = {mark: text for text, mark in self._marks.items()}
        self._any_mark = re.compile(f"[{re.escape(''.join(self._texts))}]" if self._texts else "(?!)")

    def spelled(self, texts: Sequence[str]) -> bool:
        """Whether any of the texts spells one out."""
        return any(self._pattern.search(text) for text in texts)

    def mark(self, text: str) -> str:
        """The text with a character for private use in place of each special token. Raises DataError where it holds
        such characters itself."""
        if self._any_mark.search(text):
            raise DataError(
                "a text holds both a special token of the tokenizer and characters of Unicode's private-use plane 16, "
                "which stand for special tokens here; take either out"
            )
        return self._pattern.sub(lambda match: self._marks[match[0]], text)

    def unmark(self, text: str) -> str:
        return self._any_mark.sub(lambda match: self._texts[match[0]], text)

    def encode(self, marked: str) -> list[int]:
        """Ids of a text that was rendered from marked ones: its special tokens are the template's, its marks are text.
        Raises DataError where the tokenizer cannot keep the two apart."""
        if any(alias in marked for alias in self._aliases.values()):
            raise DataError(
                "a text holds both a special token of the tokenizer and characters of Unicode's private-use plane 15, "
                "which name special tokens here; take either out"
            )
        wanted = [self.ids[match[0]] for match in self._pattern.finditer(marked)]
        renamed = self.unmark(self._pattern.sub(lambda match: self._aliases[match[0]], marked))
        copy, id_of = self._renamed
        ids = [id_of.get(number, number) for number in copy.encode(renamed, add_special_tokens=False).ids]
        special = set(self.ids.values())
        if [number for number in ids if number in special] != wanted:
            raise DataError(
                "a text spells out a special token of the tokenizer, and the tokenizer reads it as that token "
                f"whatever is done: {', '.join(sorted({text for text in self.ids if text in self.unmark(marked)}))}"
            )
        return ids

    @cached_property
    def _renamed(self) -> tuple[Any, dict[int, int]]:
        """The copy, and the tokenizer's id of each of its added tokens."""
        core = getattr(self._tokenizer, "backend_tokenizer", None)
        if core is None:
            raise DataError(
                "a text spells out a special token of the tokenizer, and a tokenizer without tokenizer.json cannot "
                "take it as text; take it out, or convert the tokenizer (save_pretrained of a fast one)"
            )
        spec = json.loads(core.to_str())
        spec["padding"] = spec["truncation"] = None
        for token in spec["added_tokens"]:
            token["content"] = self._aliases.get(token["content"], token["content"])
        numbers = {token["content"]: token["id"] for token in spec["added_tokens"]}
        copy = type(core).from_str(json.dumps(spec))
        return copy, {copy.token_to_id(name): number for name, number in numbers.items()}
