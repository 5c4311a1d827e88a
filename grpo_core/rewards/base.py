"""What the reward kinds share: what is scored, parameters, and how an answer is taken out of a completion.

Everything here runs on text that a model wrote: each extraction takes time linear in it and executes nothing.
"""

import importlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.config.reward import RewardLimits
from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.text import UNSTORABLE, last_boxed

Extract = Literal["answer_tag", "hashes", "boxed", "last_number", "whole", "marked", "marked_number"]
Column = Annotated[str, Field(max_length=100)]
"""Name of a field of the problem; empty: none."""

ANSWER = "answer"
"""The reference answer, among the fields of a problem."""

_MARKS: tuple[Extract, ...] = ("answer_tag", "hashes", "boxed")
_IF_MARKED: tuple[Extract, ...] = ("marked", "marked_number")

_NUMBER = re.compile(r"(?:(?<![\w.)])[-−])?[$€£¥]?[0-9](?:[0-9,]*[0-9])?(?:\.[0-9]+)?(?:/[0-9]+)?%?")
_SHOWN = 200


class Params(BaseModel):
    """Base of every kind's parameters: frozen, no unknown fields, field docstrings kept as descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A completion of a problem, before a reward has looked at it."""

    problem: Problem
    completion: str
    tokens: int | None = None
    """Of the completion, its end token included; None where no tokenizer saw it, as for a pasted text."""
    prefill: str = ""
    """What the prompt had already written of the answer (`data.prefill`); the completion continues it."""

    def known_tokens(self) -> int:
        """Raises RewardError where no tokenizer saw the completion."""
        if self.tokens is None:
            raise RewardError(
                "the completion's tokens are not known here, as for a pasted text; count words or characters, with the "
                "kind length"
            )
        return self.tokens


class Scorer(Protocol):
    """One component that holds something open (processes, a model, a server) while a run scores with it."""

    def score(self, samples: Sequence[ScoreRequest], check: Callable[[], None]) -> list[ComponentScore]:
        """One score each, in order. `check` is called between samples and while waiting, and may raise to stop.

        An error of a sample is returned in its ComponentScore (error, error_class), never raised; what makes all
        further scoring pointless raises a GrpoError."""

    def facts(self) -> dict[str, Any]:
        """For the manifest: versions, hashes, level of the sandbox, calls so far. JSON values."""

    def close(self) -> None:
        """End all that it started; may be called twice."""


@dataclass(frozen=True)
class Context:
    """What a scorer may use of the process that it runs in."""

    limits: RewardLimits = field(default_factory=RewardLimits)
    base: Path = Path()
    """Relative folders of models are looked for here first, as that of the policy is."""
    device: str = "cpu"
    """Where a reward model's weights go: cpu, cuda or cuda:<n>."""
    cache: Path | None = None
    """Folder for what a judge answered, so that a resumed run does not ask again; None: memory alone."""


ExecutionMode = Literal["inline", "subprocess", "sandbox", "model", "judge"]
"""inline: a rule of our own that takes time linear in the text, so it needs no deadline and may run in any process.
subprocess: ours too, but a text can make it slow: in a process that is killed at its deadline. sandbox: code that a
person or a model wrote runs, in the sandbox only. model: weights in the trainer's process. judge: asks a server."""


def compares_answer(params: Any) -> bool:
    """Whether the problem's answer is the reference, which it is where no `column` holds it."""
    return not getattr(params, "column", "")


def extracts_after_mark(params: Any) -> bool:
    """Whether the answer is looked for behind a mark, which the prefill may have written."""
    return getattr(params, "extract", "") in (*_MARKS, "fence", "fenced")


def always(params: Any) -> bool:
    return True


def own_column(params: Any) -> frozenset[str]:
    """The field that the parameter `column` names, where the kind has one and it is not empty."""
    return frozenset(filter(None, [getattr(params, "column", "")]))


def template_columns(template: str) -> frozenset[str]:
    """For kinds whose template may hold {answer}."""
    return frozenset({ANSWER} if "{answer}" in template else ())


@dataclass(frozen=True)
class Kind:
    """A reward kind as its own file declares it, in SPEC; forms, records and docs read it from there."""

    name: str
    params: type[Params]
    summary: str
    """What it rewards, in one line, for forms and lists."""
    mode: ExecutionMode = "inline"
    module: str = ""
    """Has `score(sample, params)` where mode is inline or subprocess, else `open_scorer(params, context)`. Empty: that
    of the parameters."""
    steps: bool = False
    """Scores steps of a completion, for supervision: process."""
    check: Callable[[Any], Iterable[tuple[str, str]]] = lambda params: ()
    """(parameter, what is wrong) beyond what the types say; cheap, runs no given code."""
    columns: Callable[[Any], frozenset[str]] = own_column
    """Fields that each problem must have in addition to prompt, and to its answer where that is compared with."""
    answers: Callable[[Any], bool] = lambda params: False
    """Whether a completion is compared with the problem's answer: of several answers any is right."""
    reads_prefill: Callable[[Any], bool] = extracts_after_mark
    """Whether it scores prefill and completion as one text, as kinds do that look at the form; else the completion."""
    check_problem: Callable[[Problem, Any], None] = lambda problem, params: None
    """Raises RewardError for a problem of which no completion can be scored. A rule checks the problem first, whatever
    the completion, and declares none."""
    version: int = 1
    """Incremented when the same completion may get another score; part of the digest of a suite's scorer."""

    def required(self, params: Any) -> frozenset[str]:
        """Fields that each problem must have in addition to its prompt."""
        return self.columns(params) | (frozenset({ANSWER}) if self.answers(params) else frozenset())

    def rule(self) -> Callable[[ScoreRequest, Any], ComponentScore]:
        """The function of a kind with mode inline or subprocess."""
        score: Callable[[ScoreRequest, Any], ComponentScore] = self.load().score
        return score

    def sees(self, sample: ScoreRequest, params: Any) -> ScoreRequest:
        """The sample with the text that the kind scores as its completion."""
        whole = sample.prefill + sample.completion
        in_mark = getattr(params, "extract", "") in _IF_MARKED and _mark_in(whole) is not None
        if not sample.prefill or not (in_mark or self.reads_prefill(params)):
            return sample
        return replace(sample, completion=whole, prefill="")

    def fault(self, problem: Problem, params: Any) -> str | None:
        """Why no completion of the problem can be scored, as where a reference cannot be read; None when one can."""
        try:
            if not self.is_rule:
                self.check_problem(problem, params)
            for each in with_each_answer(problem) if self.is_rule else ():
                self.rule()(ScoreRequest(each, "", 0), params)
        except RewardError as error:
            return str(error)
        return None

    @property
    def is_rule(self) -> bool:
        """Ours, and a function of one sample: it opens no scorer."""
        return self.mode in ("inline", "subprocess")

    def open(self, params: Params, context: Context) -> Scorer:
        """The scorer of any other kind. Raises a GrpoError when what it needs is not there."""
        scorer: Scorer = self.load().open_scorer(params, context)
        return scorer

    def load(self) -> Any:
        """The module that scores."""
        return importlib.import_module(self.module or self.params.__module__)


def with_each_answer(problem: Problem) -> Iterator[Problem]:
    """The problem with each of its reference answers as the only one."""
    for answer in (problem.answer, *problem.other_answers):
        yield replace(problem, answer=answer, other_answers=())


def extract_answer(completion: str, how: Extract) -> str | None:
    """The part of `completion` that is its answer, stripped; None when there is none.

    answer_tag: inside the last `<answer>…</answer>`. hashes: the rest of the line after the last `####`.
    boxed: inside the last `\\boxed{…}`, braces balanced. last_number: the last number in the text. whole: all of it.
    marked: the first of answer_tag, hashes and boxed that is there, else all of it. marked_number: the same, else the
    last number; decimal digits of any script are read as 0 to 9.
    """
    match how:
        case "answer_tag":
            answer = inside_tag(completion, "answer")
            return None if answer is None else answer.strip()
        case "hashes":
            _, marks, rest = completion.rpartition("####")
            return rest.partition("\n")[0].strip() if marks else None
        case "boxed":
            return last_boxed(completion)
        case "last_number":
            numbers = _NUMBER.findall(completion)
            return numbers[-1] if numbers else None
        case "whole":
            return completion.strip()
        case "marked" | "marked_number":
            text = _ascii_digits(completion) if how == "marked_number" else completion
            return extract_answer(text, _mark_in(text) or ("last_number" if how == "marked_number" else "whole"))


def _mark_in(text: str) -> Extract | None:
    """The first of the marks that an answer is behind."""
    return next((mark for mark in _MARKS if extract_answer(text, mark) is not None), None)


def inside_tag(completion: str, tag: str) -> str | None:
    """What the last closed `<tag>…</tag>` holds; None when there is none."""
    end = completion.rfind(f"</{tag}>")
    start = completion.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return completion[start + len(tag) + 2 : end] if start >= 0 else None


def fenced_blocks(lines: Iterable[str], opens: Callable[[str], object]) -> Iterator[tuple[str, list[str]]]:
    """(opening line, lines inside) of each block that a line of ``` closes; `opens` is called on lines without white
    space around them. A scan by line: one pattern with blank lines on either side takes cubic time on empty lines."""
    opening, block = "", list[str]()
    for line in lines:
        mark = line.strip()
        if not opening:
            opening, block = (mark, []) if opens(mark) else ("", block)
        elif mark == "```":
            yield opening, block
            opening = ""
        else:
            block.append(line)


MISSING: Mapping[Extract, str] = {
    "answer_tag": "no <answer>…</answer>",
    "hashes": "no ####",
    "boxed": "no \\boxed{…}",
    "last_number": "no number",
    "whole": "no text",
    "marked": "no text",
    "marked_number": "no number",
}
"""A component's whole detail for when `extract_answer` finds nothing."""


def missing_answer(how: Extract) -> str:
    return MISSING[how]


def reference_texts(problem: Problem, column: str) -> list[str]:
    """The texts in the problem's field `column`, or its answer where that is empty. Raises RewardError where the field
    holds none."""
    reference: Any = problem.meta.get(column) if column else problem.answer
    texts: list[str] = reference if isinstance(reference, list) else [reference]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        where = repr(column) if column else "the reference answer"
        raise RewardError(f"problem {problem.id}: {where} must be a text, or a list of texts, none of them empty")
    return texts


def shown(text: str) -> str:
    """Text for a detail line: cut when long, so that a record does not hold a completion twice, and storable."""
    return UNSTORABLE.sub("\ufffd", text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _ascii_digits(text: str) -> str:
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(char)) if not char.isascii() and char.isdecimal() else char for char in text)
