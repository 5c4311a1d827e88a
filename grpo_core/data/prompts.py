"""From problems to prompt tokens, once, before anything is sampled: the one way for training, held-out problems,
suites, lab and preview. Long prompts are refused or dropped here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_core.config.prompt import PromptConfig
from grpo_core.data.chat import ChatTemplate, template_of
from grpo_core.data.literals import SpecialTokens
from grpo_core.data.problem import Message, Problem
from grpo_core.errors import ConfigError, DataError

_OPENED = re.compile(r"\{prompt\}.*(<[A-Za-z]\w*>|```\w*|####|\\boxed\{)\s*$", re.DOTALL)
"""A mark that a template opens at its end, behind which answers are looked for."""


@dataclass(frozen=True)
class Prompted:
    """A problem as the policy sees it."""

    problem: Problem
    text: str
    """With the beginning of the answer, where `data.prefill` gives one."""
    tokens: tuple[int, ...]
    answer_starts: int
    """Index of the first token of the answer: that of the prefill, else how many tokens there are. A token that
    reaches over both belongs to the answer."""


@dataclass(frozen=True)
class EncodedAnswer:
    """An answer as the policy is to write it."""

    tokens: tuple[int, ...]
    """To the end of the turn, which is among them."""
    joined: bool
    """Whether prompt and answer, encoded as one text, have the prompt's tokens first."""
    rewritten: bool
    """Whether the chat template would change the answer, which is then taken as it is given."""


@dataclass(frozen=True)
class Encoded:
    """The problems of one file, ready to sample from."""

    prompts: tuple[Prompted, ...]
    dropped: tuple[str, ...]
    """Ids of problems left out because their prompt was too long."""
    chat: Mapping[str, Any]
    """What made prompts of them, as `PromptEncoder.facts` has it."""

    def token_stats(self) -> dict[str, float]:
        return length_stats([len(prompt.tokens) for prompt in self.prompts])


def length_stats(tokens: Sequence[int]) -> dict[str, float]:
    """As a manifest has the lengths of at least one text, in tokens."""
    return {"min": min(tokens), "mean": sum(tokens) / len(tokens), "max": max(tokens)}


class PromptEncoder:
    """Makes prompts for one tokenizer as a config says. With a chat template token ids equal those of transformers'
    `apply_chat_template(…, add_generation_prompt=True)`; without one a beginning of the text that the tokenizer adds by
    itself is kept, an end is not."""

    def __init__(self, tokenizer: Any, config: PromptConfig, *, rows: int | None = None) -> None:
        """`rows`: of the model's embedding, beyond which no token can be read; None where no model is loaded. Raises
        ConfigError when a chat template is needed and there is none, DataError for one with a fault."""
        self.tokenizer, self.config, self._rows = tokenizer, config, rows
        self._special = SpecialTokens(tokenizer)
        self._bos = _added_before(tokenizer)
        text, source = config.chat_template, "data.chat_template"
        if text is None and config.chat != "none":
            text, source = template_of(tokenizer), "the tokenizer"
        if text is None and config.chat == "template":
            raise ConfigError(
                "data.chat: template, but the tokenizer has no chat template; give data.chat_template, or set "
                "data.chat: none and write the whole prompt into data.template"
            )
        self.chat: ChatTemplate | None = None
        """Used for every template that `uses_chat` says it for."""
        if text is not None:
            kwargs = config.chat_template_kwargs
            self.chat = ChatTemplate(tokenizer, text, source=source, kwargs=kwargs, system=config.system is not None)
        if config.system is not None and not self.uses_chat():
            why = "the tokenizer has no chat template" if text is None else "data.template writes special tokens itself"
            raise ConfigError(
                f"data.system: {why}, so there is no place for a system message; give data.chat_template, or write it "
                "into data.template"
            )

    def uses_chat(self, template: str | None = None) -> bool:
        """Whether prompts by this prompt template, `data.template` when not given, go through the chat template."""
        hand_typed = self.config.chat == "auto" and self._special.spelled([template or self.config.template])
        return self.chat is not None and not (hand_typed and self.config.chat_template is None)

    def turn_ends(self) -> frozenset[int]:
        """The token by which the chat template ends a turn, besides those that the model's own settings name."""
        if self.chat is None or not self.uses_chat():
            return frozenset()
        token = self.chat.turn_end().token
        return frozenset() if token is None else frozenset([token])

    def facts(self, template: str | None = None) -> dict[str, Any]:
        """For the record: which chat template, by its digest, and what it was given."""
        chat = self.chat if self.uses_chat(template) else None
        return {
            "source": chat.source if chat is not None else "none",
            "sha256": chat.sha256 if chat is not None else None,
            "system": self.config.system,
            "kwargs": self.config.chat_template_kwargs,
            "prefill": self.config.prefill,
        }

    def notes(self) -> list[str]:
        """What a person would not expect, each with what to do."""
        notes = []
        if opened := _OPENED.search(self.config.template):
            notes.append(
                f"data.template ends with {opened[1]}, so no completion contains it and a reward that looks for it "
                f"scores 0; take it out of the template and begin the answer with it: data.prefill: {opened[1]}"
            )
        if self.chat is None:
            return notes
        if not self.uses_chat():
            return [
                *notes,
                "data.template writes special tokens itself, so the tokenizer's chat template is not used; take them "
                "out to have it used, or set data.chat: none",
            ]
        if self.chat.dated:
            notes.append(
                "the chat template writes today's date into every prompt, so the run cannot be repeated tomorrow; fix "
                'it: data.chat_template_kwargs: {date_string: "26 Jul 2024"}'
            )
        return notes

    def encode(self, problem: Problem, template: str | None = None) -> Prompted:
        """The prompt of one problem, by `data.template` when no template is given. Raises DataError, also for a token
        that the model has no row for."""
        template = template or self.config.template
        chat = self.chat if self.uses_chat(template) else None
        turns = self._turns(problem, template, chat)
        spelled = self._special.spelled([turn.content for turn in turns])
        if spelled:
            turns = self._marked(turns)
        rendered = chat.render(turns) if chat is not None else template.replace("{prompt}", turns[-1].content)
        bos = self._bos if chat is None else []
        tokens = start = self._ids(rendered, bos, spelled=spelled)
        if self.config.prefill:
            rendered += self.config.prefill
            tokens = self._ids(rendered, bos, spelled=spelled)
        self._check_rows(tokens)
        common = next((i for i, (old, new) in enumerate(zip(start, tokens, strict=False)) if old != new), len(start))
        text = self._special.unmark(rendered) if spelled else rendered
        return Prompted(problem, text, tuple(tokens), common)

    def encode_answer(self, prompted: Prompted, answer: str, *, end: int) -> EncodedAnswer:
        """What the policy is to write after the prompt that `encode` made: the answer as the chat template writes it,
        and what ends the turn; `end` where the template writes nothing there, or there is none.

        Where the answer's tokens in the whole text do not follow on the prompt's, it is encoded by itself: the policy
        always continues the prompt's own tokens. Raises DataError as `encode`."""
        template = self.config.template
        chat = self.chat if self.uses_chat(template) else None
        turns = self._turns(prompted.problem, template, chat)
        spelled = self._special.spelled([*(turn.content for turn in turns), answer])
        if spelled:
            turns, (written,) = self._marked(turns), self._marked([Message("assistant", answer)])
            answer = written.content
        rewritten, stop = False, None
        if chat is None:
            begun = template.replace("{prompt}", turns[-1].content)
        else:
            begun = chat.render(turns)
            answer, stop, rewritten = chat.answer(turns, answer, begun)
        whole = self._ids(begun + answer, self._bos if chat is None else [], spelled=spelled)
        start = len(prompted.tokens)
        joined = tuple(whole[:start]) == prompted.tokens
        ids = whole[start:] if joined else self._ids(answer, [], spelled=spelled)
        if stop is None:
            ids = [*ids, end]
        elif stop.token in ids:  # what the template writes after it, such as a line break, comes from no policy
            ids = ids[: ids.index(stop.token) + 1]
        self._check_rows(ids)
        return EncodedAnswer(tuple(ids), joined=joined, rewritten=rewritten)

    def _turns(self, problem: Problem, template: str, chat: ChatTemplate | None) -> tuple[Message, ...]:
        turns = problem.messages or (Message("user", problem.prompt),)
        if chat is not None:
            return self._conversation(turns, template)
        if len(turns) > 1 or turns[0].role != "user":
            raise DataError(
                "it is a conversation of several messages, which need a chat template; give data.chat_template, or a "
                "model whose tokenizer has one"
            )
        return turns

    def _marked(self, turns: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(replace(turn, content=self._special.mark(turn.content)) for turn in turns)

    def _check_rows(self, tokens: Sequence[int]) -> None:
        if self._rows is not None and (beyond := next((id_ for id_ in tokens if id_ >= self._rows), None)) is not None:
            raise DataError(
                f"the tokenizer gives it the token {self.tokenizer.convert_ids_to_tokens(beyond)!r}, id {beyond}, and "
                f"the model's embedding has {self._rows} rows; take the model's own tokenizer, or resize its embedding "
                "(transformers: resize_token_embeddings) and save the folder"
            )

    def _conversation(self, turns: Sequence[Message], template: str) -> tuple[Message, ...]:
        *earlier, last = turns
        if self.config.system is not None and turns[0].role != "system":
            earlier = [Message("system", self.config.system), *earlier]
        return (*earlier, replace(last, content=template.replace("{prompt}", last.content)))

    def _ids(self, rendered: str, bos: list[int], *, spelled: bool) -> list[int]:
        """With `bos` in front, unless the text begins with it. `spelled`: its messages spell out special tokens."""
        if spelled:
            ids = self._special.encode(rendered)
        else:
            ids = list(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])
        return ids if ids[: len(bos)] == bos else [*bos, *ids]


def _added_before(tokenizer: Any) -> list[int]:
    """Ids that the tokenizer puts in front of a text by itself, such as that of a beginning of the text."""
    plain, full = (list(tokenizer("x", add_special_tokens=added)["input_ids"]) for added in (False, True))
    starts = range(len(full) - len(plain) + 1)
    return next((full[:start] for start in starts if full[start : start + len(plain)] == plain), [])


def encode_problems(
    problems: Sequence[Problem], encoder: PromptEncoder, *, template: str | None = None, source: str
) -> Encoded:
    """Every problem's prompt, by `data.template` when no template is given. `source` is the file's name for messages.
    Raises DataError when there are no problems, for a prompt without tokens, and for one that the chat template
    refuses."""
    prompts = []
    for problem in problems:
        try:
            prompted = encoder.encode(problem, template)
        except DataError as error:
            raise DataError(f"{source}: problem {problem.id}: {error}") from None
        if not prompted.tokens:
            raise DataError(f"{source}: the prompt of problem {problem.id} is empty")
        prompts.append(prompted)
    if not prompts:
        raise DataError(f"{source}: no problems, so nothing is left to use")
    return Encoded(tuple(prompts), (), encoder.facts(template))


def within_limit(encoded: Encoded, limit: int, *, drop_long: bool, source: str) -> Encoded:
    """Without the prompts of more than `limit` tokens. Raises DataError for one of them unless those are dropped, and
    when nothing is left."""
    prompts, dropped = [], []
    for prompted in encoded.prompts:
        name, tokens = prompted.problem.id, len(prompted.tokens)
        if tokens <= limit:
            prompts.append(prompted)
        elif drop_long:
            dropped.append(name)
        else:
            raise DataError(
                f"{source}: the prompt of problem {name} has {tokens} tokens, over data.max_prompt_tokens = {limit}; "
                "raise the limit, or set data.long_prompts: drop"
            )
    if not prompts:
        raise DataError(
            f"{source}: all {len(dropped)} prompts are over data.max_prompt_tokens = {limit}, so nothing is left to use"
        )
    return replace(encoded, prompts=tuple(prompts), dropped=tuple(dropped))


def stops(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> bool:
    """Whether the last of a completion's tokens completes one of the `stop` strings. Reads as many tokens as the
    longest has bytes, and a few more: a decoder may treat the first of them apart."""
    if not stop:
        return False
    reach = max(len(text.encode()) for text in stop) + 4
    text = completion_text(tokenizer, tokens[-reach:], frozenset())
    return any(end in text for end in stop)


def completion_text(tokenizer: Any, tokens: Sequence[int], eos_ids: frozenset[int], stop: Sequence[str] = ()) -> str:
    """The completion as text, without the end token and from the first of the `stop` strings on. Other special tokens
    stay visible: they were sampled."""
    kept = tokens[:-1] if tokens and tokens[-1] in eos_ids else tokens
    text = str(tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False))
    starts = [text.index(end) for end in stop if end in text]
    return text[: min(starts)] if starts else text
