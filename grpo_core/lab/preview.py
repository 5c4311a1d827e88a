"""What the policy will see, before a run: the exact tokens of some prompts, lengths of all of them, and what ends a
completion. Reads the model's tokenizer and settings, none of its weights.
"""

from itertools import groupby
from pathlib import Path
from typing import Any

from grpo_core.config.run import RunConfig
from grpo_core.data.prompts import Encoded, Prompted, PromptEncoder, encode_problems
from grpo_core.lab.result import Histogram, histogram
from grpo_core.records.types import Body
from grpo_core.rewards import Rubric

_ALL = 2**62


class PreviewToken(Body):
    id: int
    text: str
    """As the tokenizer writes it; of a byte that is no character alone, U+FFFD."""
    special: bool


class PreviewRow(Body):
    """One problem as the policy sees it, and what rewards get to see besides the completion."""

    problem_id: str
    text: str
    marked: str
    """The text with special tokens in ⟦ ⟧ and ▸ where the answer begins."""
    tokens: tuple[PreviewToken, ...]
    answer_starts: int
    """Index of the first token of the answer: of the prefill, else how many tokens there are."""
    question: str
    answers: tuple[str, ...]
    prefill: str


class TurnEnd(Body):
    """A token that ends a completion, and who names it."""

    id: int
    text: str
    named_by: tuple[str, ...]


class Preview(Body):
    """Of one config's training problems."""

    model: str
    data: str
    chat: dict[str, Any]
    """Which chat template, its digest, and what it is given (`PromptEncoder.facts`)."""
    ends: tuple[TurnEnd, ...]
    stop: tuple[str, ...]
    notes: tuple[str, ...]
    """What a person would not expect, each with what to do."""
    rows: tuple[PreviewRow, ...]
    problems: int
    shortest: int
    """Of all prompts, in tokens, as `mean` and `longest`."""
    mean: float
    longest: int
    limit: int
    """data.max_prompt_tokens."""
    over_limit: int
    """Prompts with more."""
    context: int | None
    """Positions that the model has."""
    lengths: Histogram


def preview(config: RunConfig, *, base: Path, rows: int = 3) -> Preview:
    """Of the first `rows` training problems, in the file's order; relative paths are taken from `base`. Raises a
    GrpoError that says what is wrong."""
    from grpo_core.model.load import end_ids, find_model, load_settings, load_tokenizer
    from grpo_core.trainer.inputs import read_problems

    source = find_model(config.model, base=base)
    tokenizer, settings = load_tokenizer(source.folder), load_settings(source.folder)
    problems, _, _ = read_problems(config, base)
    Rubric(config.reward).check_problems(problems)
    encoder = PromptEncoder(tokenizer, config.data)
    encoded = encode_problems(problems, encoder, limit=_ALL, drop_long=False, source=config.data.path)
    ends = {**end_ids(settings, tokenizer), "chat template": set(encoder.turn_ends())}
    return Preview(
        model=source.given,
        data=config.data.path,
        chat=dict(encoded.chat),
        ends=tuple(
            TurnEnd(
                id=number,
                text=tokenizer.decode([number]),
                named_by=tuple(who for who, ids in ends.items() if number in ids),
            )
            for number in sorted(set().union(*ends.values()))
        ),
        stop=config.sampling.stop,
        notes=tuple(encoder.notes()),
        rows=tuple(_row(prompted, config, tokenizer) for prompted in encoded.prompts[:rows]),
        context=settings.context,
        **_lengths(encoded, config.data.max_prompt_tokens),
    )


def _row(prompted: Prompted, config: RunConfig, tokenizer: Any) -> PreviewRow:
    problem = prompted.problem
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return PreviewRow(
        problem_id=problem.id,
        text=prompted.text,
        marked=_marked(prompted, special, tokenizer),
        tokens=tuple(
            PreviewToken(
                id=number,
                text=tokenizer.decode([number], clean_up_tokenization_spaces=False),
                special=number in special,
            )
            for number in prompted.tokens
        ),
        answer_starts=prompted.answer_starts,
        question=problem.prompt,
        answers=(problem.answer, *problem.other_answers),
        prefill=config.data.prefill,
    )


def _marked(prompted: Prompted, special: set[int], tokenizer: Any) -> str:
    def shown(piece: tuple[int, ...]) -> str:
        texts = []
        for is_special, ids in groupby(piece, key=special.__contains__):
            if is_special:
                texts += [f"⟦{tokenizer.decode([number])}⟧" for number in ids]
            else:
                texts.append(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
        return "".join(texts)

    start = prompted.answer_starts
    return f"{shown(prompted.tokens[:start])}▸{shown(prompted.tokens[start:])}"


def _lengths(encoded: Encoded, limit: int) -> dict[str, Any]:
    lengths = [len(prompted.tokens) for prompted in encoded.prompts]
    return {
        "problems": len(lengths),
        "shortest": min(lengths),
        "mean": sum(lengths) / len(lengths),
        "longest": max(lengths),
        "limit": limit,
        "over_limit": sum(length > limit for length in lengths),
        "lengths": histogram(lengths),
    }
