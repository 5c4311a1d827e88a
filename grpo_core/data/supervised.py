"""Conversations with their answers from files, for fine-tuning. Read and refused as problems are (`loaders`):
streamed, in any container, every fault with file, line and fix, nothing repaired or skipped.

A layout is declared here once; messages and docs/sft.md read the table. The first row decides how a file is read.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from grpo_core.data.containers import Rows, rows_of
from grpo_core.data.conversations import read_messages
from grpo_core.data.lines import Line, RowFaults, names_shown
from grpo_core.data.loaders import rows_of_files
from grpo_core.data.problem import Message
from grpo_core.errors import DataError

_COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that ends with an answer to learn."""

    id: str
    """As its file has it; `line-<n>` where the file gives none."""
    messages: tuple[Message, ...]
    """System first if at all, then user and assistant by turns; the assistant last."""
    sampled: bool = False
    """Whether its row names the sample that its answer is, as those that a run of kind sample writes."""

    @property
    def text(self) -> str:
        """All before the last answer, as plain text: what two conversations are compared by."""
        return "\n\n".join(message.content for message in self.messages[:-1])

    @property
    def whole_text(self) -> str:
        """With the last answer."""
        return "\n\n".join(message.content for message in self.messages)


@dataclass(frozen=True, slots=True)
class ConversationLayout:
    """How rows of one kind are read."""

    title: str
    help: str
    needs: tuple[str, ...]
    """Fields that a row has."""
    read: Callable[[Line, dict[str, Any]], tuple[Message, ...]]


def _read_messages(line: Line, fields: dict[str, Any], name: str) -> tuple[Message, ...]:
    """The field `name`; where a completion stands next to it, that is the last turn."""
    given = line.value(fields, name)
    if fields.get(_COMPLETION) is None:
        return read_messages(line, given, name)
    return _with_completion(line, fields, given, name)


def _read_prompt(line: Line, fields: dict[str, Any]) -> tuple[Message, ...]:
    given = line.value(fields, "prompt")
    return _with_completion(line, fields, given, "prompt")


def _with_completion(line: Line, fields: dict[str, Any], given: Any, name: str) -> tuple[Message, ...]:
    """A prompt, a text or a list of messages, with its completion, likewise."""
    if not isinstance(given, list):
        given = [{"role": "user", "content": line.prompt(fields, name)}]
    completion = line.value(fields, _COMPLETION)
    if not isinstance(completion, list):
        text = line.checked_text(completion, _COMPLETION)
        if not text.strip():
            line.fail(f"{_COMPLETION!r} is empty; expected the answer that is to be learned")
        completion = [{"role": "assistant", "content": text}]
    return read_messages(line, [*given, *completion], name)


def _read_alpaca(line: Line, fields: dict[str, Any]) -> tuple[Message, ...]:
    given = fields.get("input")
    context = "" if given is None else line.checked_text(given, "input")
    prompt = "\n\n".join(filter(None, [line.prompt(fields, "instruction"), context.strip()]))
    answer = line.text(fields, "output")
    if not answer.strip():
        line.fail("'output' is empty; expected the answer that is to be learned")
    return Message("user", prompt), Message("assistant", answer)


CONVERSATION_LAYOUTS: dict[str, ConversationLayout] = {
    "messages": ConversationLayout(
        "Chat messages",
        "messages with role and content, the assistant last: OpenAI, UltraChat, TRL. With completion next to it, "
        "messages end with the user",
        ("messages",),
        lambda line, fields: _read_messages(line, fields, "messages"),
    ),
    "sharegpt": ConversationLayout(
        "ShareGPT",
        "conversations with from and value, gpt last",
        ("conversations",),
        lambda line, fields: _read_messages(line, fields, "conversations"),
    ),
    "prompt_completion": ConversationLayout(
        "Prompt and completion",
        "prompt and completion, each a text or a list of messages: TRL, and what a run of kind sample writes",
        ("prompt", _COMPLETION),
        _read_prompt,
    ),
    "alpaca": ConversationLayout(
        "Alpaca",
        "instruction, input (may be empty) and output",
        ("instruction", "output"),
        _read_alpaca,
    ),
}
"""In the order in which they are tried."""


def load_conversations(paths: Path | Sequence[Path], *, limit: int | None = None) -> list[Conversation]:
    """The conversations of the file, or of the files that are one set, in their order; with `limit` only the first so
    many, and no row after them is read. Raises DataError naming file and line or row."""
    files = [paths] if isinstance(paths, Path) else paths
    faults = RowFaults()
    return list(islice(_conversations(rows_of_files(files, faults), str(files[0]), faults), limit))


def scan_conversations(handle: IO[bytes], *, source: str) -> Iterator[Conversation]:
    """Conversations of a file that can seek, each checked; `source` is how messages call the file. Raises DataError as
    `loaders.scan_problems`."""
    faults = RowFaults()
    yield from _conversations(rows_of(handle, source=source, faults=faults), source, faults)


def detect_conversations(path: Path) -> str:
    """Name of the layout that the file is read as. Raises DataError."""
    faults = RowFaults()
    for line, fields in rows_of_files([path], faults):
        return choose_layout(line, fields)
    faults.raise_any()
    raise DataError(f"{path}: the file holds no conversations")


def choose_layout(line: Line, fields: dict[str, Any]) -> str:
    """By the fields of a file's first row. Raises DataError where none fits."""
    fitting = [name for name, layout in CONVERSATION_LAYOUTS.items() if set(layout.needs) <= fields.keys()]
    if not fitting:
        expected = "; ".join(" and ".join(map(repr, layout.needs)) for layout in CONVERSATION_LAYOUTS.values())
        line.fail(f"is no conversation: found {names_shown(fields)}; expected one of: {expected}")
    return fitting[0]


def _conversations(rows: Rows, source: str, faults: RowFaults) -> Iterator[Conversation]:
    layouts: dict[str, ConversationLayout] = {}
    """Of each file."""
    with faults.collected():  # what ends the reading is named after the rows before it
        for line, fields in rows:
            with faults.collected():
                if line.source not in layouts:
                    layouts[line.source] = CONVERSATION_LAYOUTS[choose_layout(line, fields)]
                conversation = _conversation(line, fields, layouts[line.source])
            if not faults:
                yield conversation
    faults.raise_any()
    if not layouts:
        raise DataError(f"{source}: the file holds no conversations")


def _conversation(line: Line, fields: dict[str, Any], layout: ConversationLayout) -> Conversation:
    messages = layout.read(line, fields)
    if fields.get("system") is not None:
        system = line.text(fields, "system")
        if messages[0].role == "system":
            line.fail("has a system message among its messages and one in 'system'; give one of them")
        messages = (Message("system", system), *messages) if system else messages
    if all(message.role != "assistant" for message in messages):
        line.fail("has no turn of the assistant, so there is nothing to learn; add the answer, or take the row out")
    if messages[-1].role != "assistant":
        line.fail("ends with the user's turn; expected the assistant's answer to it, or take that turn out")
    origin = fields.get("from")
    return Conversation(line.id(fields), messages, isinstance(origin, dict) and "problem_id" in origin)
