"""Conversations from files, and the tokens that are made of them: what is learned is what the policy would be given and
would have to write."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.prompt import PromptConfig
from grpo_core.data.answers import encode_conversations
from grpo_core.data.fingerprint import conversations_digest
from grpo_core.data.problem import Message, Problem
from grpo_core.data.prompts import PromptEncoder
from grpo_core.data.supervised import (
    CONVERSATION_LAYOUTS,
    Conversation,
    detect_conversations,
    load_conversations,
    scan_conversations,
)
from grpo_core.errors import DataError
from grpo_core.model.tiny import END, byte_tokenizer
from tests.tables import cases

from .chat import FAMILIES, tokenizer

Row = dict[str, Any]
DOCS = Path(__file__).parents[2] / "docs/sft.md"


def list_of(*rows: Row) -> io.BytesIO:
    return io.BytesIO(json.dumps(rows).encode())


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize(("row", "layout", "turns"), cases("data/conversations", "row", "layout", "turns"))
def test_each_layout_is_known_by_its_fields(tmp_path: Path, row: Row, layout: str, turns: list[Any]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert detect_conversations(path) == layout
    messages = tuple(Message(*turn) for turn in turns)
    assert load_conversations(path) == [Conversation("line-1", messages, sampled="from" in row)]


def test_the_docs_list_every_layout_as_it_is_declared() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for layout in CONVERSATION_LAYOUTS.values():
        assert f"| {layout.title} | {layout.help} |\n" in text


@pytest.mark.parametrize(("rows", "word"), cases("data/conversations_refused", "rows", "word"))
def test_a_refusal_names_file_row_and_remedy(rows: list[Row], word: str) -> None:
    with pytest.raises(DataError, match=rf"^data\.json, row {len(rows)}: ") as refused:
        list(scan_conversations(list_of(*rows), source="data.json"))
    assert refused.match(word)


def test_all_faults_are_named_and_a_file_without_rows_is_refused() -> None:
    bad = [{"prompt": "a", "completion": ""}, {"prompt": "a", "completion": "b"}, {"prompt": "", "completion": "b"}]
    with pytest.raises(DataError, match=r"row 1: .*\n.*row 3: "):
        list(scan_conversations(list_of(*bad), source="data.json"))
    with pytest.raises(DataError, match="holds no conversations"):
        list(scan_conversations(io.BytesIO(b"[]"), source="data.json"))


def test_several_files_are_one_set_each_in_its_own_layout(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"prompt": "a", "completion": "b"}\n' * 2, encoding="utf-8")
    second.write_text('{"instruction": "c", "output": "d"}\n' * 2, encoding="utf-8")
    assert [each.text for each in load_conversations([first, second], limit=3)] == ["a", "a", "c"]


def test_the_digest_is_of_roles_and_texts_alone() -> None:
    """What sha256sum gives of the line [["user","é"],["assistant","b"]]."""
    turns = (Message("user", "é"), Message("assistant", "b"))
    assert conversations_digest([Conversation("x", turns)]) == (
        "f798099353693dcd5e4aa3e253b1232c3e1300146224b4e502c1bab6dead05e5"
    )


# ---------------------------------------------------------------------- tokens

QUESTION = Message("user", "What is 5 + 7?")
ANSWER = Message("assistant", "The answer is 12.")
MORE = (Message("user", "And 7 + 7?"), Message("assistant", "It is 14."))


def encode(encoder: PromptEncoder, *messages: Message, turns: str = "all", most: int = 10_000, end: int = 0) -> Any:
    return encode_conversations(
        [Conversation("x", messages)], encoder, end=end, turns=turns, most=most, drop_long=False, source="f"
    )


def encoder_of(name: str, **parts: Any) -> PromptEncoder:
    return PromptEncoder(tokenizer(name), PromptConfig(chat_template_kwargs=FAMILIES[name].get("kwargs", {}), **parts))


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_follows_on_the_prompt_that_the_policy_is_given(name: str) -> None:
    encoder, words = encoder_of(name), tokenizer(name)
    ((own,), *_) = [encode(encoder, QUESTION, ANSWER).conversations]
    (row,) = own.rows
    assert row.prompt == encoder.encode(Problem("x", QUESTION.content, "")).tokens
    assert row.completion[-1] == words.convert_tokens_to_ids(FAMILIES[name]["end"])
    assert words.decode(row.completion[:-1]).strip() == ANSWER.content
    assert row.learned is None


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("deepseek_r1", "qwen3_without_thinking")])
def test_tokens_are_those_of_transformers_up_to_the_last_answer_s_end(name: str) -> None:
    """Of the whole conversation, rendered and encoded by apply_chat_template."""
    messages = (QUESTION, ANSWER, *MORE)
    (own,) = encode(encoder_of(name), *messages).conversations
    (row,) = own.rows
    given = [{"role": message.role, "content": message.content} for message in messages]
    kwargs = FAMILIES[name].get("kwargs", {})
    whole = tokenizer(name).apply_chat_template(given, tokenize=True, return_dict=False, **kwargs)
    tokens = [*row.prompt, *row.completion]
    assert tokens == whole[: len(tokens)]
    end = tokenizer(name).convert_tokens_to_ids(FAMILIES[name]["end"])
    learned = [token for token, one in zip(row.completion, row.learned, strict=True) if one]
    assert learned.count(end) == 2
    said = tokenizer(name).decode([token for token in learned if token != end])
    assert "".join(said.split()) == "Theansweris12.Itis14."


def test_what_the_template_writes_after_the_end_is_not_learned() -> None:
    """ChatML's line break follows <|im_end|>, which alone the policy has to write."""
    (own,) = encode(encoder_of("chatml"), QUESTION, ANSWER, *MORE).conversations
    (row,) = own.rows
    words = tokenizer("chatml")
    after = list(row.completion)[row.learned.index(False) :]
    assert words.decode(after).startswith("\n<|im_start|>user\nAnd 7 + 7?<|im_end|>\n<|im_start|>assistant\n")


THOUGHT = Message("assistant", "<think>\n5 and 7\n</think>\n\n12.")


def test_a_template_that_rewrites_earlier_turns_makes_a_row_of_each_answer() -> None:
    """Qwen3 shows no reasoning of earlier turns: a mask over one row would learn from what the policy never sees."""
    encoder = encoder_of("qwen3")
    encoded = encode(encoder, QUESTION, THOUGHT, *MORE)
    first, second = encoded.conversations[0].rows
    words = tokenizer("qwen3")
    assert words.decode(first.completion) == THOUGHT.content + "<|im_end|>"
    assert words.decode(second.completion) == "It is 14.<|im_end|>"
    assert "<think>" not in words.decode(second.prompt)
    asked = Problem("x", MORE[0].content, "", messages=(QUESTION, THOUGHT, MORE[0]))
    assert second.prompt == encoder.encode(asked).tokens
    assert encoded.rewritten == 0


def test_reasoning_that_the_template_would_drop_is_learned_behind_the_tag_that_it_opens() -> None:
    encoded = encode(encoder_of("deepseek_r1"), QUESTION, THOUGHT)
    (row,) = encoded.conversations[0].rows
    words = tokenizer("deepseek_r1")
    assert words.decode(row.prompt).endswith("<think>\n")
    assert words.decode(row.completion) == "5 and 7\n</think>\n\n12.<｜end▁of▁sentence｜>"
    assert encoded.rewritten == 1


def test_only_the_last_answer() -> None:
    (own,) = encode(encoder_of("chatml"), QUESTION, ANSWER, *MORE, turns="last").conversations
    (row,) = own.rows
    assert tokenizer("chatml").decode(row.completion) == "It is 14.<|im_end|>"
    assert row.learned is None


def test_an_answer_that_spells_an_end_out_does_not_teach_it() -> None:
    (own,) = encode(encoder_of("chatml"), QUESTION, Message("assistant", "write <|im_end|> there")).conversations
    (row,) = own.rows
    end = tokenizer("chatml").convert_tokens_to_ids("<|im_end|>")
    assert [place for place, token in enumerate(row.completion) if token == end] == [len(row.completion) - 1]
    assert tokenizer("chatml").decode(row.completion) == "write <|im_end|> there<|im_end|>"


def test_without_a_template_the_answer_ends_with_the_token_given() -> None:
    words = byte_tokenizer()
    encoder = PromptEncoder(words, PromptConfig(template="Q: {prompt}\nA:"))
    (own,) = encode(encoder, QUESTION, Message("assistant", " 12"), end=words.convert_tokens_to_ids(END)).conversations
    (row,) = own.rows
    assert (words.decode(row.prompt), words.decode(row.completion)) == ("Q: What is 5 + 7?\nA:", f" 12{END}")
    with pytest.raises(DataError, match=r"^f: conversation x: .*need a chat template"):
        encode(encoder, QUESTION, ANSWER, *MORE)


def test_a_token_over_prompt_and_answer_is_not_learned() -> None:
    """The policy always continues the prompt's own tokens: where the whole text has others, the answer is encoded by
    itself."""
    words = tokenizer("chatml")
    encoder = PromptEncoder(words, PromptConfig(chat="none"))
    encoded = encode(encoder, Message("user", "a"), Message("assistant", "nswer"), end=7)
    (row,) = encoded.conversations[0].rows
    assert words("answer")["input_ids"][:1] != words("a")["input_ids"]
    assert row.prompt == tuple(words("a")["input_ids"])
    assert row.completion == (*words("nswer")["input_ids"], 7)
    assert encoded.unjoined == 1


def test_long_conversations_are_refused_or_dropped_and_never_cut() -> None:
    words = byte_tokenizer()
    encoder = PromptEncoder(words, PromptConfig())
    rows = [
        Conversation(name, (Message("user", text), Message("assistant", "b")))
        for name, text in (("s", "a"), ("l", "aaa"))
    ]
    options: dict[str, Any] = {"end": 0, "turns": "all", "most": 3, "source": "f"}
    with pytest.raises(DataError, match=r"conversation l has 5 tokens, over data\.max_tokens = 3"):
        encode_conversations(rows, encoder, drop_long=False, **options)
    encoded = encode_conversations(rows, encoder, drop_long=True, **options)
    assert [own.conversation.id for own in encoded.conversations] == ["s"]
    assert encoded.dropped == ("l",)
    with pytest.raises(DataError, match="all 1 conversations are over"):
        encode_conversations(rows[1:], encoder, drop_long=True, **options)
