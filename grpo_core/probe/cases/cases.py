"""From problems to cases: what kind of answer each has, and the text of the right one."""

import ast
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.probe.cases.case import Case, Form, Subject
from grpo_core.probe.cases.forms import REFERENCE_FIELDS
from grpo_core.probe.cases.mutants import parsed
from grpo_core.probe.cases.schema_example import schema_example
from grpo_core.probe.hacks.base import Target, target_of
from grpo_core.rewards.code.params import CodeParams
from grpo_core.rewards.kinds.choice import LETTERS, ChoiceParams
from grpo_core.rewards.kinds.json_schema import JsonSchemaParams
from grpo_core.rewards.kinds.latex import is_latex
from grpo_core.rewards.kinds.numeric import parse_number
from grpo_core.rewards.rubric import Rubric

_OPTION = re.compile(r"(?:^|\n|\s)\(?([A-J])[).:]\s+([^\n]+?)(?=\s+\(?[A-J][).:]\s|\n|$)")
_LETTER = re.compile(r"\(?([A-J])[).]?")
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Question:
    """A problem with what is known of its answer."""

    problem: Problem
    subject: Subject
    gold: str
    letter: str = ""
    options: dict[str, str] = field(default_factory=dict)
    target: Target | None = None

    def case(self, index: int, form: Form, others: tuple[str, ...], *, seed: int, of_target: int) -> Case:
        return Case(index=index, form=form, others=others, seed=seed, of_target=of_target, **vars(self))


def chosen(problems: Sequence[Problem], *, limit: int, seed: int) -> list[Problem]:
    """At most `limit` of them, picked by seed, in their own order."""
    if len(problems) <= limit:
        return list(problems)
    return [problems[index] for index in sorted(random.Random(seed).sample(range(len(problems)), limit))]


def read_questions(rubric: Rubric, problems: Sequence[Problem]) -> list[Question]:
    code = next((part.params for part in rubric.parts if isinstance(part.params, CodeParams)), None)
    schemas = next((part.params for part in rubric.parts if isinstance(part.params, JsonSchemaParams)), None)
    choices = next((part.params for part in rubric.parts if isinstance(part.params, ChoiceParams)), None)
    letters = all(_LETTER.fullmatch(problem.answer.strip()) for problem in problems)
    questions = []
    for problem in problems:
        if code is not None:
            questions.append(Question(problem, "code", _solution(problem), target=_target(problem, code)))
        elif choices is not None or letters:
            questions.append(_choice(problem, choices or ChoiceParams()))
        else:
            subject = _subject(problem.answer, schemas is not None)
            gold = problem.answer
            if schemas is not None and subject != "json":
                subject, gold = "json", schema_example(problem, schemas) or ""
            questions.append(Question(problem, subject, gold))
    return questions


def cases(questions: Sequence[Question], form: Form, *, seed: int) -> list[Case]:
    made = []
    for index, question in enumerate(questions):
        after = [*questions[index + 1 :], *questions[:index]]
        others = [other.gold for other in after if other.subject == question.subject and other.gold]
        nth = sum(before.target is not None and before.target.form == _form(question) for before in questions[:index])
        alone = question.case(index, form, (), seed=seed, of_target=nth)
        differ = tuple(dict.fromkeys(other for other in others if not alone.is_right(other)))
        made.append(question.case(index, form, differ, seed=seed, of_target=nth))
    return made


def _form(question: Question) -> str:
    return question.target.form if question.target is not None else ""


def _subject(answer: str, is_json: bool) -> Subject:
    if is_json or answer.lstrip()[:1] in ("{", "["):
        try:
            json.loads(answer)
        except ValueError:
            pass
        else:
            return "json"
    if parse_number(answer) is not None and "%" not in answer:
        return "number"
    return "expression" if is_latex(answer) or parse_number(answer) is not None else "words"


def _choice(problem: Problem, params: ChoiceParams) -> Question:
    """The right option's letter, however the problem's answer names it."""
    column = problem.meta.get(params.column) if params.column else None
    if isinstance(column, list):
        options = {LETTERS[index]: str(text) for index, text in enumerate(column[: len(LETTERS)])}
    else:
        options = {letter: text.strip() for letter, text in _OPTION.findall(problem.prompt)}
        options = options if len(options) > 1 else dict.fromkeys(LETTERS[: params.options], "")
    answer = problem.answer.strip()
    letter = ""
    if params.reference == "text":
        letter = next((label for label, text in options.items() if text.strip() == answer), "")
    elif params.reference == "letter":
        match = _LETTER.fullmatch(answer.upper())
        letter = match[1] if match else ""
    elif answer.isdecimal():
        index = int(answer) - (params.reference == "from_1")
        letter = LETTERS[index] if 0 <= index < len(LETTERS) else ""
    gold = letter if params.reference.startswith("from") else answer
    return Question(problem, "choice" if letter else "words", gold, letter, options if letter else {})


def _target(problem: Problem, params: CodeParams) -> Target | None:
    try:
        return target_of(problem, tests=params.tests, entry_point=params.entry_point)
    except RewardError:
        return None  # scoring reports the error, with every completion of the problem


def _solution(problem: Problem) -> str:
    """The problem's own program; empty where it has none that Python can read. A body alone, as HumanEval has it, goes
    behind the prompt."""
    texts = [problem.meta.get(field) for field in REFERENCE_FIELDS]
    for text in [*texts, problem.answer]:
        if not isinstance(text, str) or not text.strip():
            continue
        fenced = _FENCE.findall(text)
        for source in (*fenced[-1:], text, problem.prompt + text):
            tree = parsed(source)
            if tree is not None and any(not _is_word(node) for node in tree.body):
                return str(source)
    return ""


def _is_word(node: object) -> bool:
    """A name or a constant alone, such as an answer that is no program."""
    return isinstance(node, ast.Expr) and isinstance(node.value, (ast.Name, ast.Constant, ast.UnaryOp))
