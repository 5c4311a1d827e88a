"""A tokenizer's chat template: renders conversations, and knows what ends a turn. Loads neither torch nor transformers;
the tokenizer that is handed in does the work, so its token ids are those of transformers.

A template is somebody's program: transformers runs it in Jinja's sandbox, and whatever it raises is reported with what
it was given.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from grpo_core.config.prompt import template_fault
from grpo_core.data.problem import Message
from grpo_core.errors import DataError

_RAISED = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""What a template's own code may raise."""
_USER, _SYSTEM, _ASSISTANT = "cohortuser", "cohortsystem", "cohortassistant"
"""Texts that are looked for in what a template renders."""
_OPENED_TAG = re.compile(r"(<\w+>)\s*\Z")
"""A tag with which a template begins the assistant's turn."""


@dataclass(frozen=True)
class TurnEnd:
    """What a template writes after an assistant's turn."""

    text: str
    """Empty where it writes nothing."""
    token: int | None
    """Its id where it is one added token of the tokenizer."""


class ChatTemplate:
    """One template of one tokenizer. Raises DataError for one that cannot be used: a syntax error, a call that the
    sandbox forbids, text of the user or the system that it leaves out."""

    def __init__(self, tokenizer: Any, text: str, *, source: str, kwargs: dict[str, Any], system: bool) -> None:
        """`source`: where the template is from, in words. `system`: whether it will be given system messages."""
        self._tokenizer, self._kwargs = tokenizer, kwargs
        self.text, self.source = text, source
        if (fault := template_fault(text)) is not None:
            raise DataError(f"the chat template of {source} is no Jinja template: {fault}")
        first = [Message("system", _SYSTEM)] if system else []
        shown = self.render([*first, Message("user", _USER)])
        for role, mark in (("user", _USER), ("system", _SYSTEM)):
            if mark not in shown and (role == "user" or system):
                raise DataError(
                    f"the chat template of {source} leaves out the {role} message: a conversation with it is rendered "
                    f"as {shown[:200]!r}. Write {{{{ message['content'] }}}} into it, or give data.chat_template"
                )

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def dated(self) -> bool:
        """Whether it writes today's date into every prompt."""
        return "strftime_now" in self.text and "date_string" not in self._kwargs

    def render(self, messages: Sequence[Message], *, open_turn: bool = True) -> str:
        """The conversation as one text; with `open_turn` the assistant's turn is begun. Raises DataError with what the
        template said."""
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        try:
            rendered = self._tokenizer.apply_chat_template(
                conversation,
                chat_template=self.text,
                tokenize=False,
                add_generation_prompt=open_turn,
                **self._kwargs,
            )
        except SecurityError as error:
            raise DataError(
                f"the chat template of {self.source} does what a template may not: {str(error).rstrip('.')}. Only "
                "methods that change nothing can be called"
            ) from None
        except _RAISED as error:
            roles = ", ".join(message.role for message in messages)
            raise DataError(
                f"the chat template of {self.source} refuses a conversation of {roles}: {error or type(error).__name__}"
            ) from None
        return str(rendered)

    def answer(self, turns: Sequence[Message], answer: str, begun: str) -> tuple[str, TurnEnd | None, bool]:
        """What follows `begun`, the conversation rendered with an open turn, in the assistant's turn: the answer as the
        template writes it to the end of the turn; what ends it, None where nothing does; whether the template would
        change it, as R1's leaves reasoning out: then the answer is as it is given. A tag that `begun` opens is not
        repeated."""
        end = self.turn_end()
        whole = self.render([*turns, Message("assistant", answer)], open_turn=False)
        follows = whole.startswith(begun) and _squeezed(answer) in _squeezed(whole)
        if follows:
            after = whole[len(begun) :]
            if end.text and end.token is None:
                after = after[: after.rfind(end.text) + len(end.text)]
        else:
            opened = _OPENED_TAG.search(begun)
            if opened is not None and answer.lstrip().startswith(opened[1]):
                answer = answer.lstrip().removeprefix(opened[1]).lstrip()
            after = answer + end.text
        return after, end if end.text else None, not follows

    def turn_end(self) -> TurnEnd:
        """What follows an assistant's turn, white space before it aside."""
        try:
            shown = self.render([Message("user", _USER), Message("assistant", _ASSISTANT)], open_turn=False)
        except DataError:  # it renders no assistant's turn, so nothing in it ends one
            return TurnEnd("", None)
        _, _, after = shown.rpartition(_ASSISTANT)
        ids = self._tokenizer(after.strip(), add_special_tokens=False)["input_ids"] if after.strip() else []
        single = bool(ids) and ids[0] in self._tokenizer.added_tokens_decoder
        return TurnEnd(after.strip(), ids[0] if single else None)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def template_of(tokenizer: Any) -> str | None:
    """The tokenizer's template, of several the one named default; None where it has none."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return template or None
