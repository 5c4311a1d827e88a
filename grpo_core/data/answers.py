"""From conversations to tokens to learn from: each answer behind the very prompt that the policy would be given, so
that what is learned is what is sampled later.

Loads neither torch nor transformers. A conversation is one row of tokens where each further prompt begins with all that
came before. Where the chat template rewrites earlier turns (Qwen3 and R1 leave out their reasoning), it is a row for
each answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_core.data.problem import Problem
from grpo_core.data.prompts import PromptEncoder
from grpo_core.data.supervised import Conversation
from grpo_core.errors import DataError


@dataclass(frozen=True)
class AnswerRow:
    """Tokens that go through the model together."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    learned: tuple[bool, ...] | None = None
    """Of each token of the completion; None: all. Others are turns of the user between answers."""

    @property
    def answer_tokens(self) -> int:
        return len(self.completion) if self.learned is None else sum(self.learned)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True)
class EncodedConversation:
    """One conversation, ready to learn from."""

    conversation: Conversation
    rows: tuple[AnswerRow, ...]

    @property
    def length(self) -> int:
        """Tokens of its longest row."""
        return max(row.length for row in self.rows)

    @property
    def tokens(self) -> int:
        """That go through the model."""
        return sum(row.length for row in self.rows)

    @property
    def answer_tokens(self) -> int:
        return sum(row.answer_tokens for row in self.rows)


@dataclass(frozen=True)
class EncodedConversations:
    """Those of one dataset."""

    conversations: tuple[EncodedConversation, ...]
    dropped: tuple[str, ...]
    """Ids of those that were too long."""
    rewritten: int
    """Answers that the chat template would change, taken as they are given."""
    unjoined: int
    """Answers encoded apart from their prompt, whose tokens would else not be the prompt's."""
    chat: Mapping[str, Any]
    """What made prompts of them, as `PromptEncoder.facts` has it."""

    @property
    def answer_tokens(self) -> int:
        return sum(encoded.answer_tokens for encoded in self.conversations)


def encode_conversations(
    conversations: Sequence[Conversation],
    encoder: PromptEncoder,
    *,
    end: int,
    turns: Literal["all", "last"],
    most: int,
    drop_long: bool,
    source: str,
) -> EncodedConversations:
    """Every conversation as rows. `end` is the token after an answer that no template ends; `turns`: which answers are
    learned from; `most`: tokens of the longest conversation that is taken; `source`: the file's name for messages.
    Raises DataError for a conversation that cannot be encoded or, unless those are dropped, is longer."""
    kept, dropped = [], []
    rewritten = unjoined = 0
    for conversation in conversations:
        try:
            encoded, changed, apart = _encode(conversation, encoder, end, turns)
        except DataError as error:
            raise DataError(f"{source}: conversation {conversation.id}: {error}") from None
        if encoded.length <= most:
            kept.append(encoded)
            rewritten, unjoined = rewritten + changed, unjoined + apart
        elif drop_long:
            dropped.append(conversation.id)
        else:
            raise DataError(
                f"{source}: conversation {conversation.id} has {encoded.length} tokens, over data.max_tokens = {most}; "
                "raise the limit, or set data.long: drop"
            )
    if not kept:
        raise DataError(
            f"{source}: all {len(dropped)} conversations are over data.max_tokens = {most}, so nothing is left to learn"
        )
    return EncodedConversations(tuple(kept), tuple(dropped), rewritten, unjoined, encoder.facts())


def _encode(
    conversation: Conversation, encoder: PromptEncoder, end: int, turns: Literal["all", "last"]
) -> tuple[EncodedConversation, int, int]:
    """With how many answers were rewritten, and how many encoded apart."""
    messages = conversation.messages
    places = [index for index, message in enumerate(messages) if message.role == "assistant"]
    rows: list[AnswerRow] = []
    rewritten = unjoined = 0
    for index in places if turns == "all" else places[-1:]:
        problem = Problem(conversation.id, messages[index - 1].content, "", messages=messages[:index])
        prompted = encoder.encode(problem)
        if not prompted.tokens:
            raise DataError("its prompt is empty, so nothing comes before the answer")
        answer = encoder.encode_answer(prompted, messages[index].content, end=end)
        rewritten, unjoined = rewritten + answer.rewritten, unjoined + (not answer.joined)
        joined = rows and _continued(rows[-1], prompted.tokens, answer.tokens)
        if joined:
            rows[-1] = joined
        else:
            rows.append(AnswerRow(prompted.tokens, answer.tokens))
    return EncodedConversation(conversation, tuple(rows)), rewritten, unjoined


def _continued(row: AnswerRow, prompt: tuple[int, ...], answer: tuple[int, ...]) -> AnswerRow | None:
    """The row with a further answer; None where `prompt` does not begin with all of it."""
    before = row.prompt + row.completion
    if prompt[: len(before)] != before:
        return None
    between = prompt[len(before) :]
    learned = row.learned or (True,) * len(row.completion)
    return AnswerRow(
        row.prompt,
        row.completion + between + answer,
        learned + (False,) * len(between) + (True,) * len(answer),
    )
