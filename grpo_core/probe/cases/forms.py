"""Forms of a right answer, and which of them a rubric is tried with first.

A verifier rewards only the form that it reads, and does not say which that is: the probe tries them and keeps the one
that earns most.
"""

from collections.abc import Iterable

from grpo_core.data.problem import Problem
from grpo_core.probe.cases.case import ANSWER, THINK, Form, Subject
from grpo_core.rewards.kinds.tags import TagsParams
from grpo_core.rewards.rubric import Rubric

REFERENCE_FIELDS = ("completion", "solution", "response", "canonical_solution", "reference_solution", "code")
"""Where a dataset keeps a worked answer, in this order."""


def _fixed(name: str, title: str, text: str) -> Form:
    built = text.replace("{think}", THINK).replace("{answer}", ANSWER)
    return Form(name, title, lambda problem: built)


def _given(problem: Problem) -> str | None:
    """The dataset's own worked answer, its last mention of the reference answer open for another."""
    for field in REFERENCE_FIELDS:
        text = problem.meta.get(field)
        if isinstance(text, str) and problem.answer and problem.answer in text:
            before, _, after = text.rpartition(problem.answer)
            return before + ANSWER + after
    return None


R1 = _fixed("r1", "think and answer tags", "<think>{think}</think><answer>{answer}</answer>")
TAG = _fixed("answer_tag", "answer tags", "{think}\n<answer>{answer}</answer>")
BOXED = _fixed("boxed", "a LaTeX box", "{think}\n\\boxed{{answer}}")
HASHES = _fixed("hashes", "after ####", "{think}\n#### {answer}")
SENTENCE = _fixed("sentence", "the sentence “The answer is …”", "{think}\nThe answer is {answer}.")
COLON = _fixed("colon", "after “Answer:” on the last line", "{think}\nAnswer: {answer}")
WHOLE = _fixed("whole", "nothing but the answer", "{answer}")
R1_BOXED = _fixed(
    "r1_boxed", "a box inside answer tags", f"<think>{{think}}</think><answer>\\boxed{{{ANSWER}}}</answer>"
)
THINK_BOXED = _fixed(
    "think_boxed", "think tags, then a box", f"<think>{{think}}</think>\nThe answer is $\\boxed{{{ANSWER}}}$."
)
THINK_SENTENCE = _fixed(
    "think_sentence", "think tags, then a sentence", "<think>{think}</think>\nThe answer is {answer}."
)
JSON_TEXT = Form("json", 'a JSON object {"answer": "…"}', lambda problem: f'{{"answer": "{ANSWER}"}}')
JSON_VALUE = Form("json_value", 'a JSON object {"answer": …}', lambda problem: f'{{"answer": {ANSWER}}}')
FENCED = _fixed("fenced", "a fenced block", "{think}\n```\n{answer}\n```")
GIVEN = Form("given", "the dataset's own worked answer", _given)
R1_PROMPT = Form(
    "r1_prompt",
    "think and answer tags, the prompt as thought",
    lambda problem: f"<think>{problem.prompt}</think><answer>{ANSWER}</answer>",
)
R1_EQUATION = _fixed(
    "r1_equation",
    "think and answer tags, one true equation",
    "<think>{think}\n1 + 1 = 2\n</think><answer>{answer}</answer>",
)
PYTHON = _fixed("python", "a fenced block of Python", "{think}\n```python\n{answer}\n```")
R1_PYTHON = _fixed(
    "r1_python", "Python in answer tags", "<think>{think}</think><answer>\n```python\n{answer}\n```\n</answer>"
)
R1_CODE = _fixed("r1_code", "plain code in answer tags", "<think>{think}</think><answer>\n{answer}\n</answer>")

_BY_EXTRACT = {
    "answer_tag": (R1, TAG),
    "hashes": (HASHES,),
    "boxed": (BOXED, R1_BOXED),
    "last_number": (SENTENCE, HASHES),
    "whole": (WHOLE,),
    "fenced": (PYTHON,),
    "fence": (WHOLE, FENCED),
}
_ANSWERS = (
    R1,
    TAG,
    BOXED,
    HASHES,
    SENTENCE,
    COLON,
    WHOLE,
    R1_BOXED,
    THINK_BOXED,
    THINK_SENTENCE,
    JSON_TEXT,
    JSON_VALUE,
)
_CODE = (PYTHON, R1_PYTHON, R1_CODE, WHOLE)


def forms_for(rubric: Rubric, subjects: Iterable[Subject]) -> list[Form]:
    """The forms to try, those that the components' own parameters name first; the first of equals is kept."""
    named: list[Form] = []
    if any(part.component.kind == "r1_format" for part in rubric.parts):
        named += [R1, R1_BOXED]
    named += _tagged(rubric)
    for part in rubric.parts:
        named += _BY_EXTRACT.get(str(getattr(part.params, "extract", "")), ())
    kept = [*named]
    subjects = set(subjects)
    if subjects - {"code"}:
        kept += _ANSWERS
    if "json" in subjects:
        kept += [FENCED]
    if "code" in subjects:
        kept += _CODE
    kept += [R1_EQUATION, R1_PROMPT, GIVEN]
    return list({form.name: form for form in kept}.values())


def _tagged(rubric: Rubric) -> list[Form]:
    """A form of the tags that a component's parameters list: the answer in the last, a thought in the others."""
    forms = []
    for index, part in enumerate(rubric.parts):
        if not isinstance(part.params, TagsParams):
            continue
        names = [name for entry in part.params.sequence for name in _as_often_as_needed(entry)]
        text = "".join(f"<{name}>{THINK}</{name}>" for name in names[:-1]) + f"<{names[-1]}>{ANSWER}</{names[-1]}>"
        forms.append(_fixed(f"tags_{index}", f"the tags {', '.join(names)}", text))
    return forms


def _as_often_as_needed(entry: str) -> list[str]:
    """`step{3}`: three times; `note?` and `note*`: not at all."""
    name, _, times = entry.rstrip("?*+").partition("{")
    least = int(times.partition(",")[0].rstrip("}")) if times else 0 if entry[-1] in "?*" else 1
    return [name] * least
