"""What the policy will see, before a run: the exact tokens of some prompts, lengths of all of them, what ends a
completion, and what a run would refuse. Reads the model's tokenizer and settings, none of its weights.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.run import RunConfig
from grpo_core.data.prompts import Encoded, Prompted, PromptEncoder, encode_problems
from grpo_core.errors import GrpoError
from grpo_core.evaluate.suites.load import Suite, load_suites
from grpo_core.evaluate.task import encode_items, manner_of, suite_fits
from grpo_core.lab.result import Histogram, histogram, kept_text
from grpo_core.records.types import Body
from grpo_core.rewards import Rubric

_TOKENS = 4_000
"""Most tokens of one prompt that are shown; the others are counted."""


class PreviewToken(Body):
    id: int
    text: str
    """As the tokenizer writes it; of a byte that is no character alone, U+FFFD."""
    special: bool


class Piece(Body):
    """A special token, or the text between two of them."""

    text: str
    special: bool


class PreviewRow(Body):
    """One problem as the policy sees it, and what rewards get to see besides the completion."""

    problem_id: str
    prompt: tuple[Piece, ...]
    """Up to where the answer begins."""
    answer: tuple[Piece, ...]
    """How the answer begins; empty without a prefill."""
    tokens: tuple[PreviewToken, ...]
    """Of prompt and answer together."""
    answer_starts: int
    """Index of the first token of the answer: of the prefill, else how many tokens there are."""
    left_out: int
    """Tokens of a long prompt that are not shown, those right before the answer."""
    question: str
    answers: tuple[str, ...]
    prefill: str

    @property
    def ids_before_answer(self) -> int:
        """How many of `tokens` are of the prompt."""
        return self.answer_starts - self.left_out

    @property
    def marked(self) -> str:
        """The text with special tokens in ⟦ ⟧ and ▸ where the answer begins."""
        before, answer = (
            "".join(f"⟦{piece.text}⟧" if piece.special else piece.text for piece in pieces)
            for pieces in (self.prompt, self.answer)
        )
        more = f"… ({self.left_out:,} more tokens)" if self.left_out else ""
        return f"{before}{more}▸{answer}"


class TurnEnd(Body):
    """A token that ends a completion, and who names it."""

    id: int
    text: str
    named_by: tuple[str, ...]


class PromptLengths(Body):
    """Of what is evaluated, in tokens."""

    name: str
    """Of the suite, or `heldout`."""
    prompts: int
    longest: int
    longest_id: str
    over_limit: int
    """Held-out prompts with more than data.max_prompt_tokens; suites are limited by the model's context alone."""


class Preview(Body):
    """Of one config's training problems and evaluations."""

    config_digest: str
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
    evaluated: tuple[PromptLengths, ...]
    refused: tuple[str, ...]
    """Why a run of this config would not start: prompts that are too long, as the run itself says it."""


def preview(config: RunConfig, *, base: Path, rows: int = 3) -> Preview:
    """Of the first `rows` training problems, in the file's order; relative paths are taken from `base`. Raises a
    GrpoError that says what is wrong."""
    from grpo_core.model.doctor import tokenizer_findings
    from grpo_core.model.load import end_ids, find_model, load_settings, load_source_tokenizer

    source = find_model(config.model, base=base)
    tokenizer, settings = load_source_tokenizer(source), load_settings(source.folder)
    encoder = PromptEncoder(tokenizer, config.data)
    read = _read(config, base, encoder)
    ends = {**end_ids(settings, tokenizer), "chat template": set(encoder.turn_ends())}
    findings = [finding for finding in tokenizer_findings(tokenizer, config) if finding.severity != "note"]
    limit = config.data.max_prompt_tokens
    return Preview(
        config_digest=config.digest(),
        model=source.given,
        data=config.data.path,
        chat=dict(read.train.chat),
        ends=tuple(
            TurnEnd(
                id=number,
                text=tokenizer.decode([number]),
                named_by=tuple(who for who, ids in ends.items() if number in ids),
            )
            for number in sorted(set().union(*ends.values()))
        ),
        stop=config.sampling.stop,
        notes=(*encoder.notes(), *(f"{finding.message}; {finding.fix}" for finding in findings)),
        rows=tuple(_row(prompted, config, tokenizer) for prompted in read.train.prompts[:rows]),
        context=settings.context,
        evaluated=tuple(
            _evaluated(name, encoded, limit if name == HELDOUT else None) for name, encoded in read.evaluated()
        ),
        refused=tuple(_refused(config, settings.context, read)),
        **_lengths(read.train, limit),
    )


@dataclass(frozen=True)
class _Read:
    """Every prompt of a run, however long."""

    train: Encoded
    heldout: Encoded | None
    suites: tuple[tuple[Suite, Encoded], ...]

    def evaluated(self) -> list[tuple[str, Encoded]]:
        heldout = [] if self.heldout is None else [(HELDOUT, self.heldout)]
        return [*heldout, *((suite.config.name, encoded) for suite, encoded in self.suites)]


def _read(config: RunConfig, base: Path, encoder: PromptEncoder) -> _Read:
    from grpo_core.trainer.inputs import read_problems

    drop = config.data.unreadable == "drop"
    problems, heldout = (
        Rubric(reward).readable(each, drop=drop)[0]
        for reward, each in zip((config.reward, config.heldout_reward), read_problems(config, base)[:2], strict=True)
    )
    return _Read(
        encode_problems(problems, encoder, source=config.data.path),
        encode_problems(heldout, encoder, source=config.eval.path or config.data.path) if heldout else None,
        tuple(
            (suite, encode_items(suite, encoder, manner_of(config)))
            for suite in load_suites(config.eval.suites, base=base)
        ),
    )


def _refused(config: RunConfig, context: int | None, read: _Read) -> Iterator[str]:
    """By the run's own checks."""
    from grpo_core.trainer.inputs import fit_context, fit_limit

    def problems() -> None:
        train = fit_limit(config, read.train, config.data.path)
        shown = config.eval.path or config.data.path
        heldout = fit_limit(config, read.heldout, shown) if read.heldout is not None else None
        fit_context(config, context, train, heldout)

    manner = manner_of(config)
    checks: list[Callable[[], None]] = [problems]
    checks += [partial(suite_fits, suite, encoded, manner, context=context) for suite, encoded in read.suites]
    for check in checks:
        try:
            check()
        except GrpoError as error:
            yield str(error)


def _evaluated(name: str, encoded: Encoded, limit: int | None) -> PromptLengths:
    longest = max(encoded.prompts, key=lambda prompted: len(prompted.tokens))
    return PromptLengths(
        name=name,
        prompts=len(encoded.prompts),
        longest=len(longest.tokens),
        longest_id=longest.problem.id,
        over_limit=0 if limit is None else sum(len(prompted.tokens) > limit for prompted in encoded.prompts),
    )


def _row(prompted: Prompted, config: RunConfig, tokenizer: Any) -> PreviewRow:
    problem, start = prompted.problem, prompted.answer_starts
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    before, answer = prompted.tokens[: min(start, _TOKENS)], prompted.tokens[start:]
    return PreviewRow(
        problem_id=problem.id,
        prompt=_pieces(before, special, tokenizer),
        answer=_pieces(answer, special, tokenizer),
        tokens=tuple(
            PreviewToken(
                id=number,
                text=tokenizer.decode([number], clean_up_tokenization_spaces=False),
                special=number in special,
            )
            for number in (*before, *answer)
        ),
        answer_starts=start,
        left_out=start - len(before),
        question=kept_text(problem.prompt),
        answers=tuple(map(kept_text, (problem.answer, *problem.other_answers))),
        prefill=config.data.prefill,
    )


def _pieces(tokens: Sequence[int], special: set[int], tokenizer: Any) -> tuple[Piece, ...]:
    """Each special token is a piece of its own."""
    pieces: list[Piece] = []
    for is_special, ids in groupby(tokens, key=special.__contains__):
        for run in [[number] for number in ids] if is_special else [list(ids)]:
            text = tokenizer.decode(run, clean_up_tokenization_spaces=False)
            pieces.append(Piece(text=text, special=is_special))
    return tuple(pieces)


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
