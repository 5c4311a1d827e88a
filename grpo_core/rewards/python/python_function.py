"""python: a person's own function `verify(sample)` scores the completion, in the sandbox.

The function is given text and returns a number; what runs in the box is `python_inside.py` with the person's source. It
must not run what a model wrote (`exec`, `eval`): completions of one run share a box. The kind `code` does that.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Context, Kind, Params, ScoreRequest
from grpo_core.rewards.python.python_check import MOST_BYTES, PACKAGES, check_source
from grpo_core.rewards.python.session import Sessions
from grpo_core.rewards.scoring import failed
from grpo_core.specs.fields import CODE, Positive
from grpo_core.text import UNSTORABLE

FILE = "verifier.py"
Package = Literal["jsonschema", "math-verify", "numpy", "regex", "scipy", "sympy"]
assert set(get_args(Package)) == set(PACKAGES)


class PythonParams(Params):
    source: Annotated[str, Field(min_length=1, max_length=MOST_BYTES), CODE]
    """Python source that defines `verify(sample)`. sample.prompt, .completion, .answer and .tokens are the sample's,
    .answers are all that are right, .prefill is what the completion continues, .meta holds the fields named below. It
    returns a number, True or False, or a dict with value, passed, detail and steps."""
    columns: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], Field(max_length=50)] = ()
    """Fields of each problem, besides prompt and answer, that `verify` finds in sample.meta."""
    packages: tuple[Package, ...] = ()
    """Packages, besides Python's own modules, that the source may import. They must be installed on the worker."""
    memory_mb: Annotated[int, Field(ge=64, le=16384)] = 512
    """Most memory of the process that runs it, in MiB."""
    call_seconds: Positive | None = None
    """Longest that one call may take, at most the reward's limits.deadline_seconds; empty: as long as that."""
    pass_at: float = 1.0
    """A sample passes when its value is at least this, where `verify` does not itself say whether it did."""


def faults(params: PythonParams) -> Iterator[tuple[str, str]]:
    """(parameter, what is wrong); runs none of the source."""
    for fault in check_source(params.source, params.packages):
        yield "source", str(fault)
    for name in sorted({"prompt", "answer", "answers", "completion", "prefill", "tokens"} & set(params.columns)):
        yield "columns", f"{name!r} is no further field of a problem: the sample always has it, as sample.{name}"


class PythonScorer:
    """Holds open the boxes that the source is loaded in."""

    def __init__(self, params: PythonParams, context: Context) -> None:
        self._params = params
        self._sessions = Sessions(
            "python_inside.py",
            context.limits,
            hello={"source": params.source},
            packages=params.packages,
            files=[FILE],
            memory_mb=params.memory_mb,
            call_seconds=params.call_seconds,
        )

    def score(self, samples: Sequence[ScoreRequest], check: Callable[[], None]) -> list[ComponentScore]:
        answers = self._sessions.submit([self._request(sample) for sample in samples], check)
        return [
            answer.score(lambda reply, sample=sample: self._score(reply, sample))  # type: ignore[misc]
            for sample, answer in zip(samples, answers, strict=True)
        ]

    def facts(self) -> dict[str, Any]:
        digest = hashlib.sha256(self._params.source.encode()).hexdigest()
        return {"source_sha256": digest, **self._sessions.facts()}

    def close(self) -> None:
        self._sessions.close()

    def _request(self, sample: ScoreRequest) -> dict[str, Any]:
        meta = sample.problem.meta
        return {
            "prompt": sample.problem.prompt,
            "completion": sample.completion,
            "answer": sample.problem.answer,
            "answers": [sample.problem.answer, *sample.problem.other_answers],
            "prefill": sample.prefill,
            "tokens": sample.tokens,
            "meta": {name: meta[name] for name in self._params.columns if name in meta},
        }

    def _score(self, reply: dict[str, Any], sample: ScoreRequest) -> ComponentScore:
        """The reply as a score; it comes from a process that a person's code shares, so it is checked again."""
        try:
            score = ComponentScore.model_validate(
                {name: reply[name] for name in ("value", "passed", "detail", "steps") if name in reply}, strict=False
            )
        except ValidationError as error:
            return failed("value", f"the verifier's reply is not valid: {error.errors()[0]['msg']}")
        if score.value is None or any(step.end > len(sample.completion) for step in score.steps or ()):
            return failed("value", "the verifier's reply has no value, or a step after the end of the completion")
        passed = score.value >= self._params.pass_at if score.passed is None else score.passed
        return score.model_copy(update={"passed": passed, "detail": UNSTORABLE.sub("\ufffd", score.detail)})


open_scorer = PythonScorer


SPEC = Kind(
    "python",
    PythonParams,
    "a function of your own, in Python, run in the sandbox",
    "sandbox",
    steps=True,
    check=faults,
    columns=lambda params: frozenset(params.columns),
)
