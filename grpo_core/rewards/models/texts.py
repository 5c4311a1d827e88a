"""What a scoring model reads of a prompt and a completion: the one way for training it and for scoring with it.

What is scored was written by a model: a special token that it spells out is broken up, so that it cannot forge the form
that the classifier reads. Loads no torch; the tokenizer that is handed in does the work.
"""

import re
from typing import Any

from grpo_core.errors import ConfigError

_PLACEHOLDER = re.compile(r"\{(prompt|completion|answer)\}")


class ScoringTexts:
    """Makes token ids for one tokenizer."""

    def __init__(self, tokenizer: Any, *, source: object) -> None:
        """`source`: where the model is from, for messages."""
        self.tokenizer, self._source = tokenizer, source
        self._special = _special(tokenizer)

    def plain(self, text: str) -> str:
        """The text with a space inside each special token that it spells out."""
        while self._special is not None and self._special.search(text):
            text = self._special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        return text

    def ids(self, text: str, *, special: bool) -> list[int]:
        """Tokens of a text; `special`: with those that the tokenizer puts around one."""
        token_ids: list[int] = self.tokenizer(text, add_special_tokens=special, return_attention_mask=False)[
            "input_ids"
        ]
        return token_ids

    def filled(self, template: str, *, prompt: str, completion: str, answer: str = "") -> str:
        """A template with the texts filled in; placeholders inside these texts are never filled."""
        values = {"prompt": prompt, "answer": answer, "completion": completion}
        return _PLACEHOLDER.sub(lambda match: self.plain(values[match[1]]), template)

    def template_ids(self, template: str, *, prompt: str, completion: str, answer: str = "") -> list[int]:
        """Tokens of a filled template, with those that the tokenizer puts around a text."""
        return self.ids(self.filled(template, prompt=prompt, completion=completion, answer=answer), special=True)

    def check_chat(self) -> None:
        """Raises ConfigError where the model has no chat template, or one that cannot be used."""
        if not self.tokenizer.chat_template:
            raise ConfigError(
                f"chat is on, but the model in {self._source} has no chat template; give a template instead"
            )
        try:
            self.chat_ids("a prompt", "a completion")
        except ValueError as error:
            raise ConfigError(f"the chat template of the model in {self._source} cannot be used: {error}") from None

    def chat_ids(self, prompt: str, completion: str) -> list[int]:
        """Tokens of the two as turns of a chat. Raises ValueError where the chat template refuses them."""
        from jinja2 import TemplateError

        turns = [
            {"role": "user", "content": self.plain(prompt)},
            {"role": "assistant", "content": self.plain(completion)},
        ]
        try:
            text = self.tokenizer.apply_chat_template(turns, tokenize=False)
        except (TemplateError, TypeError) as error:
            raise ValueError(str(error)) from None
        return self.ids(text, special=False)


def _special(tokenizer: Any) -> re.Pattern[str] | None:
    """Finds special tokens that are spelled out; None where there is none of two characters or more."""
    words = {str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special}
    words |= {str(word) for word in tokenizer.all_special_tokens}
    long = sorted((word for word in words if len(word) > 1), key=len, reverse=True)
    return re.compile("|".join(re.escape(word) for word in long)) if long else None
