"""Conversations as rows hold them, read into Messages and checked: system first, then user and assistant by turns."""

from typing import Any

from grpo_core.data.lines import Line, kind_of, names_shown, shown
from grpo_core.data.problem import Message, Role

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}
"""OpenAI's names, ShareGPT's and Gemma's."""
_CALLS = ("tool_calls", "function_call")


def read_messages(line: Line, value: Any, name: str) -> tuple[Message, ...]:
    """The list of messages in the field `name`, of either layout: `role` and `content`, or ShareGPT's `from` and
    `value`. Raises DataError for roles out of order and for what is not text."""
    if not isinstance(value, list) or not value:
        line.fail(f"{name!r} is {'an empty list' if value == [] else kind_of(value)}; expected a list of messages")
    messages = tuple(_message(line, given, f"{name}.{index}") for index, given in enumerate(value))
    _check_order(line, messages, name)
    return messages


def _message(line: Line, given: Any, where: str) -> Message:
    if not isinstance(given, dict):
        line.fail(f"{where!r} is {kind_of(given)}; expected a message with role and content")
    role_name, content_name = ("from", "value") if "from" in given and "role" not in given else ("role", "content")
    if missing := [field for field in (role_name, content_name) if field not in given]:
        line.fail(f"{where!r} has no {missing[0]!r}; found {names_shown(given)}")
    role = given[role_name]
    if not isinstance(role, str) or role not in _ROLES:
        named = shown(role) if isinstance(role, str) else kind_of(role)
        line.fail(
            f"{where!r} has the role {named}; expected system, user or assistant, as calls of tools are not taken"
        )
    if any(given.get(call) for call in _CALLS):
        line.fail(f"{where!r} calls a tool; only messages of text are taken")
    content = _content(line, given[content_name], f"{where}.{content_name}")
    if not content.strip() and _ROLES[role] != "system":
        line.fail(f"{where!r} is empty; expected the turn's text")
    return Message(_ROLES[role], content)


def _content(line: Line, content: Any, where: str) -> str:
    """The text, also of a list of parts that are all text."""
    if not isinstance(content, list):
        return line.checked_text(content, where)
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else kind_of(part)
        if kind != "text" or not isinstance(part.get("text"), str):
            line.fail(f"{where!r} holds a part of type {shown(str(kind))}; text only, images and sound are not taken")
        texts.append(line.checked_text(part["text"], where))
    return "".join(texts)


def _check_order(line: Line, messages: tuple[Message, ...], name: str) -> None:
    turns = [message.role for message in messages]
    first = 1 if turns[0] == "system" else 0
    for index, role in enumerate(turns[first:], start=first):
        expected: Role = "assistant" if (index - first) % 2 else "user"
        if role != expected:
            line.fail(
                f"'{name}.{index}' is the turn of {role}, where that of {expected} is due; expected system first if at "
                "all, then user and assistant by turns"
            )
    if len(turns) == first:
        line.fail(f"{name!r} has no turn of the user")
