"""Parameters of the kind `code`, and the code block that a completion holds. Read by forms too, so it knows nothing
of how code is run."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.rewards.base import Kind, Params, extract_answer, fenced_blocks
from grpo_core.rewards.code.cases import read_cases
from grpo_core.rewards.python.python_check import PACKAGES

CodeExtract = Literal["fenced", "whole", "answer_tag"]
_PYTHON = frozenset({"python", "python3", "py", "py3"})


def extract_code(completion: str, how: CodeExtract) -> str | None:
    """fenced: the last closed block between lines of ``` that is marked as Python; where none is marked, the last one
    without a mark. answer_tag: inside the last `<answer>…</answer>`, without a fence around it. whole: all of it.
    None when there is no such part or it is empty."""
    match how:
        case "whole":
            code: str | None = completion
        case "answer_tag":
            inside = extract_answer(completion, "answer_tag")
            code = inside if inside is None or "```" not in inside else _last_fenced(inside)
        case "fenced":
            code = _last_fenced(completion)
    return code if code is not None and code.strip() else None


def _last_fenced(text: str) -> str | None:
    blocks: dict[bool, str] = {}
    for opening, lines in fenced_blocks(text.splitlines(keepends=True), lambda line: line.startswith("```")):
        mark = (opening[3:].split() or [""])[0].lower()
        if not mark or mark in _PYTHON:
            blocks[bool(mark)] = "".join(lines)
    return blocks.get(True, blocks.get(False))


_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


class CodeParams(Params):
    language: Literal["python"] = "python"
    """Language of the programs."""
    extract: CodeExtract = "fenced"
    """Where the program is: fenced (the last closed block between ``` that is marked as Python, else the last
    without a mark), answer_tag (inside the last `<answer>…</answer>`), whole."""
    tests: Annotated[str, Field(min_length=1, max_length=100)] = "tests"
    """Field of each problem that holds its test cases."""
    entry_point: Annotated[str, Field(pattern=r"^([A-Za-z_]\w*)?$", max_length=100)] = ""
    """Name that the tests call. Empty: what the problem's field `entry_point` says, else what the tests call."""
    prelude: Annotated[str, Field(max_length=100)] = ""
    """Field of each problem with code that goes before the solution's, such as HumanEval's `prompt`. The tests use
    its functions themselves, so that a solution cannot replace them. Empty: none."""
    pay: Literal["all", "share"] = "all"
    """all: 1 when every case passes, else 0. share: the share of cases that pass."""
    compare: Literal["exact", "tokens", "numbers"] = "exact"
    """How what is printed is compared: exact (line by line, but for white space at the ends of lines and empty lines at
    the end), tokens (word by word), numbers (word by word, two numbers within the tolerance)."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 1e-9
    """Two numbers, one of them with a decimal point, are equal within this difference, or this share of the larger one:
    returned by a call, or printed where `compare` is numbers."""
    case_seconds: Annotated[float, Field(ge=0.1, le=600)] = 5.0
    """Processor time of one case; by the clock it may take three times as long and five seconds more. All cases of a
    solution together end with `limits.deadline_seconds`."""
    memory_mb: Annotated[int, Field(ge=64, le=65536)] = 512
    """Memory of the solution, in MiB."""
    packages: tuple[Annotated[str, Field(pattern=_NAME)], ...] = ()
    """Installed distributions that solutions and tests may import, such as numpy. The standard library is there
    always."""
    hidden: bool = True
    """A sample's detail says which case failed and what the solution returned, not what was expected."""


def faults(params: CodeParams) -> Iterator[tuple[str, str]]:
    """(parameter, what is wrong) beyond what the types say."""
    if params.tests in ("prompt", "answer"):
        yield "tests", "the tests need a field other than prompt and answer"
    if params.prelude == params.tests:
        yield "prelude", "names the field of the tests; name the one that holds code"
    for package in params.packages:
        if package not in PACKAGES:
            known = ", ".join(sorted(PACKAGES))
            yield "packages", f"{package!r} is not one that programs may import; there are {known}"


def prelude_of(problem: Problem, params: CodeParams) -> str:
    """Raises RewardError where the field holds no code."""
    prelude = {**problem.meta, "": "", "prompt": problem.prompt, "answer": problem.answer}.get(params.prelude)
    if not isinstance(prelude, str):
        raise RewardError(f"problem {problem.id}: field {params.prelude!r} holds no code to put before the solution")
    return prelude


def check_problem(problem: Problem, params: CodeParams) -> None:
    read_cases(problem, tests=params.tests, entry_point=params.entry_point)
    prelude_of(problem, params)


SPEC = Kind(
    "code",
    CodeParams,
    "the program in the completion passes the problem's tests, run in the sandbox",
    "sandbox",
    version=4,
    module="grpo_core.rewards.code.kind",
    check=faults,
    check_problem=check_problem,
    columns=lambda params: frozenset({params.tests, params.prelude} - {"", "prompt"}),
)
