"""How problems become prompts: the fields of `data` that training, held-out problems, suites and the lab share. Loads
neither torch nor transformers, so that the platform refuses a template with a fault before a run waits for a machine.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from pydantic import Field, JsonValue, field_validator, model_validator

from grpo_core.errors import Conflict
from grpo_core.specs.fields import CODE, LongText, Part

ChatMode = Literal["auto", "template", "none"]
_OURS = {
    *("conversation", "messages", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"),
    *("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    *("tokenizer_kwargs", "sanitize_control_tokens", "bos_token", "eos_token", "pad_token", "unk_token"),
}
"""Arguments of `apply_chat_template` that are not for a person to give, and the tokenizer's tokens."""


class PromptConfig(Part):
    template: LongText = Field(default="{prompt}", title="Prompt template")
    """Text of the user's turn; `{prompt}` stands for the problem's prompt, of a conversation for its last user turn.
    Without a chat template it is all that the policy sees."""
    chat: ChatMode = Field(default="auto", title="Chat template used")
    """auto: `chat_template`, else the tokenizer's where it has one and the prompt template writes no special tokens
    itself. template: the same, and a model without one is refused. none: the prompt template alone, as for a base
    model."""
    system: LongText | None = Field(default=None, title="System message")
    """First message of every conversation that brings no system message of its own. Empty: none, and a chat template
    may then write its default."""
    chat_template: Annotated[str, CODE] | None = Field(default=None, title="Chat template (Jinja)")
    """Used instead of the tokenizer's. Its digest is recorded. Empty: the tokenizer's."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict, title="Chat template settings")
    """Further variables of the chat template, such as `enable_thinking: false` of Qwen3 or `date_string` of Llama 3."""
    prefill: LongText = Field(default="", title="Beginning of the answer")
    """Text that begins the policy's turn, such as `<think>` and a line break; the completion continues it. Rewards
    that judge the form of the whole answer put it in front of the completion."""

    @field_validator("template")
    @classmethod
    def _template_has_prompt(cls, template: str) -> str:
        if "{prompt}" not in template:
            raise Conflict("template_without_prompt", "must hold {prompt}, the place where the problem goes")
        return template

    @field_validator("chat_template")
    @classmethod
    def _chat_template_parses(cls, template: str | None) -> str | None:
        if template is not None and (fault := template_fault(template)) is not None:
            raise Conflict("chat_template_syntax", f"is no Jinja template: {fault}")
        return template

    @field_validator("chat_template_kwargs")
    @classmethod
    def _kwargs_free(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(kwargs.keys() & _OURS):
            raise Conflict(
                "chat_template_kwargs_reserved",
                f"{', '.join(taken)}: set by the trainer and the tokenizer, so it cannot be given here",
            )
        return kwargs

    @model_validator(mode="after")
    def _used(self) -> Self:
        """What only a chat template has a place for."""
        for name in ("system", "chat_template", "chat_template_kwargs"):
            if self.chat == "none" and getattr(self, name):
                raise Conflict(
                    "chat_none_with_chat_settings",
                    f"{name} has no effect with chat: none; choose auto or template, or leave {name} out",
                    field=name,
                )
        return self


# ---------------------------------------------------------------------- faults of a template


class _Reading(Extension):
    """The tag `generation` of transformers' templates; and how many tokens the parser has read."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}
        self.tokens = 0

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for self.tokens, token in enumerate(stream, start=1):
            yield token


_UNREAD = frozenset(("whitespace", "comment_begin", "comment", "comment_end", "raw_begin", "raw_end"))
"""What the lexer keeps from the parser."""


def template_fault(template: str) -> str | None:
    """The first syntax error with its line, that line, and a caret below the place; None for a template without one."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Reading, loopcontrols])
    text = "\n".join(template.splitlines())
    try:
        environment.parse(text)
    except TemplateSyntaxError as error:
        reading: Any = environment.extensions[_Reading.identifier]
        column = _column(environment, text, error.lineno, reading.tokens)
        line = text.split("\n")[error.lineno - 1]
        return f"line {error.lineno}: {error.message}\n{line}\n{' ' * column}^"
    return None


def _column(environment: Environment, text: str, line: int, read: int) -> int:
    """Where on its line the last token lies read, or where the lexer stopped; the line's first letter when
    that is on another line, as where a tag was never closed."""
    end, places = 0, []
    try:
        for _, kind, value in environment.lex(text):
            start = text.index(value, end)
            end = start + len(value)
            places += [start] if kind not in _UNREAD else []
    except TemplateSyntaxError:
        at = end
    else:
        at = places[min(read, len(places)) - 1]
    start = sum(map(len, text.split("\n")[: line - 1])) + line - 1
    whole = text.split("\n")[line - 1]
    return at - start if start <= at <= start + len(whole) else len(whole) - len(whole.lstrip())
