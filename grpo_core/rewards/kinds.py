"""The table of reward kinds: their parameters, where each one runs, what it asks of a problem.

Importing it loads no torch and starts nothing; what is heavy is imported when a kind is first used.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from grpo_core.config_reward import RewardKind
from grpo_core.records import ComponentScore
from grpo_core.rewards.base import Context, Params, Scorer, Unscored
from grpo_core.rewards.choice import ChoiceParams
from grpo_core.rewards.choice import columns as choice_columns
from grpo_core.rewards.choice import faults as choice_faults
from grpo_core.rewards.code_params import CodeParams
from grpo_core.rewards.code_params import columns as code_columns
from grpo_core.rewards.code_params import faults as code_faults
from grpo_core.rewards.equations import EquationsParams
from grpo_core.rewards.exact import ExactParams
from grpo_core.rewards.gym import GymParams
from grpo_core.rewards.gym import columns as gym_columns
from grpo_core.rewards.gym import faults as gym_faults
from grpo_core.rewards.json_schema import JsonSchemaParams
from grpo_core.rewards.json_schema import columns as json_schema_columns
from grpo_core.rewards.json_schema import faults as json_schema_faults
from grpo_core.rewards.judge import JudgeParams
from grpo_core.rewards.judge import check as judge_check
from grpo_core.rewards.language import LanguageParams
from grpo_core.rewards.length import LengthParams
from grpo_core.rewards.length import columns as length_columns
from grpo_core.rewards.length import faults as length_faults
from grpo_core.rewards.math_symbolic import MathParams
from grpo_core.rewards.numeric import NumericParams
from grpo_core.rewards.process import ProcessParams
from grpo_core.rewards.process import check as process_check
from grpo_core.rewards.python_function import PythonParams
from grpo_core.rewards.python_function import columns as python_columns
from grpo_core.rewards.python_function import faults as python_faults
from grpo_core.rewards.r1_format import R1FormatParams
from grpo_core.rewards.regex_kind import RegexParams
from grpo_core.rewards.regex_kind import faults as regex_faults
from grpo_core.rewards.reward_model import RewardModelParams
from grpo_core.rewards.reward_model import check as reward_model_check
from grpo_core.rewards.similarity import SimilarityParams
from grpo_core.rewards.similarity import columns as similarity_columns
from grpo_core.rewards.soft_overlong import SoftOverlongParams
from grpo_core.rewards.soft_overlong import faults as soft_overlong_faults
from grpo_core.rewards.tags import TagsParams
from grpo_core.rewards.tags import faults as tags_faults

Place = Literal["here", "aside", "sandbox", "model", "judge"]
"""here: a rule of our own that takes time linear in the text, so it needs no deadline and may run in any process.
aside: ours too, but a text can make it slow: in a process that is killed at its deadline. sandbox: code that a person
or a model wrote runs, in the sandbox only. model: weights in the trainer's process. judge: asks a server."""


@dataclass(frozen=True)
class Kind:
    params: type[Params]
    place: Place
    module: str
    """Of grpo_core.rewards. It has `score(sample, params)` where place is here or aside, else
    `open_scorer(params, context)`."""
    summary: str
    """What it pays for, in one line, for forms and lists."""
    steps: bool = False
    """Scores steps of a completion, for supervision: process."""
    check: Callable[[Any], Iterable[tuple[str, str]]] = lambda params: ()
    """(parameter, what is wrong) beyond what the types say; cheap, runs no given code."""
    columns: Callable[[Any], frozenset[str]] = lambda params: frozenset()
    """Fields that each problem must have beside prompt and answer."""

    def rule(self) -> Callable[[Unscored, Any], ComponentScore]:
        """The function of a kind that runs here or aside."""
        found: Callable[[Unscored, Any], ComponentScore] = self._module().score
        return found

    def open(self, params: Params, context: Context) -> Scorer:
        """The scorer of any other kind. Raises a GrpoError when what it needs is not there."""
        found: Scorer = self._module().open_scorer(params, context)
        return found

    def _module(self) -> Any:
        return importlib.import_module(f"grpo_core.rewards.{self.module}")


KINDS: dict[RewardKind, Kind] = {
    "exact": Kind(ExactParams, "here", "exact", "the answer equals the reference, character by character"),
    "numeric": Kind(NumericParams, "here", "numeric", "answer and reference are the same number"),
    "r1_format": Kind(R1FormatParams, "here", "r1_format", "think and answer tags, as DeepSeek-R1, and nothing else"),
    "equations": Kind(
        EquationsParams, "here", "equations", "the share of true ones among the equations written out", steps=True
    ),
    "math": Kind(
        MathParams, "aside", "math_symbolic", "the same expression, set, interval, tuple, matrix or equation, in LaTeX"
    ),
    "choice": Kind(
        ChoiceParams,
        "here",
        "choice",
        "the option named is the right one, by its letter or its text",
        check=choice_faults,
        columns=choice_columns,
    ),
    "similarity": Kind(
        SimilarityParams,
        "here",
        "similarity",
        "closeness to a reference text: ROUGE-L, BLEU, chrF, F1 of words, edit distance",
        columns=similarity_columns,
    ),
    "tags": Kind(
        TagsParams, "here", "tags", "a sequence of tags of your own, each as often as you say", check=tags_faults
    ),
    "regex": Kind(RegexParams, "aside", "regex_kind", "a pattern is in the text, or is not", check=regex_faults),
    "json_schema": Kind(
        JsonSchemaParams,
        "aside",
        "json_schema",
        "one JSON value, as a JSON Schema wants it",
        check=json_schema_faults,
        columns=json_schema_columns,
    ),
    "length": Kind(
        LengthParams,
        "here",
        "length",
        "a length within bounds, or by its cosine, apart for right and wrong answers",
        check=length_faults,
        columns=length_columns,
    ),
    "soft_overlong": Kind(
        SoftOverlongParams,
        "here",
        "soft_overlong",
        "nothing; takes away up to 1 near the limit of tokens (DAPO)",
        check=soft_overlong_faults,
    ),
    "language": Kind(LanguageParams, "here", "language", "the share that is in the prompt's language, or in another"),
    "reward_model": Kind(
        RewardModelParams,
        "model",
        "reward_model",
        "the number that a trained classifier gives the text (transformers, safetensors)",
        check=reward_model_check,
    ),
    "process": Kind(
        ProcessParams,
        "model",
        "process",
        "each step's number of a process reward model (a classifier of tokens)",
        steps=True,
        check=process_check,
    ),
    "judge": Kind(
        JudgeParams,
        "judge",
        "judge",
        "a language model's grade, asked of an OpenAI-compatible server",
        check=judge_check,
    ),
    "python": Kind(
        PythonParams,
        "sandbox",
        "python_function",
        "a function of your own, in Python, run in the sandbox",
        steps=True,
        check=python_faults,
        columns=python_columns,
    ),
    "reasoning_gym": Kind(
        GymParams,
        "sandbox",
        "gym",
        "the scorer of the reasoning-gym task that made the problem",
        check=gym_faults,
        columns=gym_columns,
    ),
    "code": Kind(
        CodeParams,
        "sandbox",
        "code",
        "the program in the completion passes the problem's tests, run in the sandbox",
        check=code_faults,
        columns=code_columns,
    ),
}
assert set(KINDS) == set(get_args(RewardKind))
