"""What a job of the reward lab is to do: the file that `grpo lab` reads, and the options that a form fills in.

Loads no torch. The reward's own parameters are checked where a Rubric is made of it.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, JsonValue, model_validator

from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.evaluation import SuiteConfig
from grpo_core.config.messages import validated
from grpo_core.config.prompt import PromptConfig
from grpo_core.config.reward import RewardConfig
from grpo_core.config.yaml_text import parse_yaml
from grpo_core.errors import ConfigError, Conflict
from grpo_core.specs.fields import (
    Count,
    DataColumns,
    DataFormat,
    GreedyTemperature,
    LongText,
    Part,
    StopStrings,
    Temperature,
)

LabKind = Literal["probe", "try", "sample", "estimate", "preview", "doctor", "evaluate", "chat", "rescore", "best_of_n"]
OF_CONFIG: frozenset[str] = frozenset({"estimate", "preview"})
"""Kinds that are about a run's whole config."""
OF_MODEL: frozenset[str] = frozenset({"doctor", "evaluate", "chat"})
"""Kinds that are about a model, and try no reward."""

MAX_TEXTS = 200
MAX_ROWS = 2000
MAX_PROBLEMS = 256
MAX_SAMPLES = 4096
"""Completions of one job."""
MAX_TEXT_CHARS = 200_000
MAX_GIVEN_CHARS = 600_000
"""Of all given texts of one job together: a form takes 1 MiB."""

_Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]


class GivenText(Part):
    """A problem with an answer that a person gives for it."""

    prompt: _Text = ""
    answer: _Text = ""
    """The reference that rewards compare with."""
    completion: _Text
    """What is scored."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)
    """Further fields of the problem, which some rewards read."""


class JudgedText(GivenText):
    """An answer that people judged, whatever a reward gives for it."""

    other_answers: tuple[str, ...] = ()
    """Further reference answers of the problem."""
    right: bool
    """People call it right: a reward is to pass it; else it is not to."""


class TryOptions(Part):
    """Scores answers that are there already: given ones, or those of a dataset's rows."""

    texts: Annotated[tuple[GivenText, ...], Field(max_length=MAX_TEXTS)] = ()
    rows: Annotated[int, Field(ge=0, le=MAX_ROWS)] = 0
    """Score the first so many problems of the dataset with the row's own `completion` or `solution`, or, where it has
    neither, with its reference answer in the form that the reward scores highest."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if bool(self.texts) == bool(self.rows):
            raise ValueError("give either texts to score or a number of rows of the dataset")
        _require_few_characters(self.texts)
        return self


def characters(texts: Iterable[GivenText]) -> int:
    """Of all prompts, answers and completions together."""
    return sum(len(text.prompt) + len(text.answer) + len(text.completion) for text in texts)


def _require_few_characters(texts: Sequence[GivenText]) -> None:
    if (chars := characters(texts)) > MAX_GIVEN_CHARS:
        raise ValueError(f"the texts have {chars:,} characters together; {MAX_GIVEN_CHARS:,} at most are taken")


class SampleOptions(PromptConfig):
    """Samples a base model and scores what it writes, as the first step of a run would."""

    problems: Annotated[int, Field(ge=1, le=MAX_PROBLEMS)] = 64
    """Problems of the dataset, drawn at random by the seed."""
    group_size: Annotated[int, Field(ge=2, le=64, title="Group size G")] = 8
    """G, completions of each problem."""
    temperature: Temperature = 1.0
    """As in a run: 1 samples from the model's own distribution."""
    top_p: Annotated[float, Field(gt=0, le=1, title="Top p")] = 1.0
    """Keep the likeliest tokens up to this mass; 1 keeps all."""
    max_completion_tokens: Annotated[int, Field(ge=1, le=8192, title="Max completion tokens")] = 256
    """Longest completion."""
    stop: StopStrings = ()
    """Texts that end a completion; what is scored ends before them."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Start of every random choice."""

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if (count := self.problems * self.group_size) > MAX_SAMPLES:
            raise ValueError(
                f"{self.problems:,} problems of {self.group_size} completions are {count:,}; {MAX_SAMPLES:,} at most: "
                "take fewer problems or a smaller group"
            )
        return self


LEAST_PROBLEMS = 8
"""Of a best-of-n: intervals over fewer problems would say nothing."""


class BestOfNOptions(SampleOptions):
    """Samples a base model, and looks how the best of n by the reward fares by a verifier as n grows."""

    problems: Annotated[int, Field(ge=LEAST_PROBLEMS, le=MAX_PROBLEMS)] = 32
    """Problems of the dataset, drawn at random by the seed. Intervals are over them."""
    group_size: Annotated[int, Field(ge=8, le=256, title="Samples N")] = 64
    """N, completions of each problem: n goes up to it."""


class ProbeOptions(Part):
    """Probes the reward: does it reward right answers in other forms, and wrong ones?"""

    problems: Annotated[int, Field(ge=1, le=MAX_PROBLEMS)] = 20
    """Problems that answers are made for."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Start of every random choice."""
    judged: Annotated[tuple[JudgedText, ...], Field(max_length=MAX_TEXTS)] = ()
    """Answers that people judged, which are classes of their own."""

    @model_validator(mode="after")
    def _judged_few(self) -> Self:
        _require_few_characters(self.judged)
        return self


MAX_ITEMS = 20_000
"""Items of one evaluation: the scores of more would not fit into a job's result."""


class EvaluateOptions(PromptConfig):
    """Evaluates a model on suites and held-out problems, as a run does before and after training."""

    samples: Annotated[int, Field(ge=1, le=64, title="Samples per item")] = 1
    """Completions per item; their mean counts."""
    temperature: GreedyTemperature = 0.0
    """0 takes the likeliest token each time."""
    max_completion_tokens: Annotated[int, Field(ge=1, le=8192, title="Max completion tokens")] = 256
    """Longest completion, where a suite names no limit of its own."""
    stop: StopStrings = ()
    """Texts that end a completion; what is scored ends before them."""
    limit: Count | None = Field(default=None, title="First items only")
    """Use only the first so many items of each suite, and of the held-out problems; empty means all."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Start of every random choice."""


MAX_MESSAGE_CHARS = 32_000
"""Of one message of a chat, and of its system message."""


class ChatOptions(Part):
    """A conversation with a model, and with another one next to it."""

    system: Annotated[LongText, Field(max_length=MAX_MESSAGE_CHARS, title="System message")] = ""
    """Goes before the first message, through the chat template where the model has one. Empty: none."""


class TurnSettings(Part):
    """How one message of a chat is answered."""

    temperature: GreedyTemperature = 0.7
    """0 takes the likeliest token each time."""
    top_p: Annotated[float, Field(gt=0, le=1, title="Top p")] = 1.0
    """Keep the likeliest tokens up to this mass; 1 keeps all."""
    max_tokens: Annotated[int, Field(ge=1, le=8192, title="Max tokens")] = 256
    """Longest answer."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Start of every random choice, the same for both models."""


class RescoreOptions(Part):
    """Scores the stored samples of a run again. What the run's own scorer was given beyond problem and completion."""

    samples: Count
    """Of the run, for the progress; they come one page after another."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The run's, whose overlong punishment and signal gate belong to its rewards."""
    max_completion_tokens: Count
    """The run's longest completion."""
    prefill: str = ""
    """What the prompt had already written of the answer."""


class NoOptions(Part):
    """Of a job whose settings are all in the run's config, or in the model."""


Options = (
    TryOptions
    | SampleOptions
    | BestOfNOptions
    | ProbeOptions
    | EvaluateOptions
    | ChatOptions
    | RescoreOptions
    | NoOptions
)
OPTIONS: dict[LabKind, type[Options]] = {
    "try": TryOptions,
    "sample": SampleOptions,
    "probe": ProbeOptions,
    "estimate": NoOptions,
    "preview": NoOptions,
    "doctor": NoOptions,
    "evaluate": EvaluateOptions,
    "chat": ChatOptions,
    "rescore": RescoreOptions,
    "best_of_n": BestOfNOptions,
}


def options_of(kind: LabKind, options: Any) -> Options:
    """The options of a job of this kind. Raises ConfigError with `options.<field>` for each fault."""
    return validated(OPTIONS[kind], options, "the options of this job are not valid", prefix="options")


class JobData(Part):
    """A dataset's file."""

    path: Annotated[str, Field(min_length=1)]
    """A relative path starts at the job file's folder."""
    format: DataFormat = "auto"
    columns: DataColumns = DataColumns()


class JobModel(Part):
    """A base model, as a run's config names it."""

    path: Annotated[str, Field(min_length=1)]
    """Folder with safetensors weights, or a Hub id."""
    revision: str | None = None
    """Commit, with a Hub id."""
    dtype: Literal["float32", "bfloat16"] = "float32"


class Job(Part):
    """The file that `grpo lab` reads."""

    kind: LabKind
    reward: RewardConfig | None = None
    """What is tried; of an evaluation, what judges the held-out problems in `data`."""
    verifier: RewardConfig | None = None
    """Of a best-of-n: what says how good a completion is, while the reward chooses."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Of the kind: texts or rows to try, how to sample, how much to probe."""
    data: JobData | None = None
    """Needed to try rows, to sample and for a best-of-n; a probe without it uses its built-in problems. Of an
    evaluation: held-out problems."""
    model: JobModel | None = None
    """Needed to sample, for a best-of-n, to evaluate and to chat, and by the doctor."""
    reference: JobModel | None = None
    """Answers next to the model in a chat."""
    suites: tuple[SuiteConfig, ...] = ()
    """What a model is evaluated on, as in a run's `eval.suites`."""
    config: dict[str, JsonValue] | None = None
    """Needed to estimate and to preview: the run's whole config. Relative paths in it start at the job file's folder,
    and its engine.device decides where it runs."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Where the base model and reward models run."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads; empty means all cores."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.kind == "rescore" and self.data is None:
            raise ValueError("a re-score needs the run's dataset as data")
        if self.kind in ("sample", "best_of_n") and (self.data is None or self.model is None):
            raise ValueError("to sample, a job needs data and a model")
        if (self.kind == "best_of_n") != (self.verifier is not None):
            raise ValueError("a best-of-n has a verifier next to the reward, and no other job has one")
        if self.kind in OF_MODEL and self.model is None:
            raise ValueError(f"a job of the kind {self.kind} needs a model")
        if self.kind == "evaluate":
            self._check_evaluation()
        elif (self.kind in OF_MODEL) != (self.reward is None):
            raise ValueError("a job has a reward, unless it is about a model alone (doctor, chat)")
        elif self.suites:
            raise ValueError("suites are for an evaluation; leave them out")
        if self.reference is not None and self.kind != "chat":
            raise ValueError("a reference is for a chat; leave it out")
        if (self.kind in OF_CONFIG) != (self.config is not None):
            raise ValueError("a job has a run's config where it estimates or previews that run, and nowhere else")
        return self

    def _check_evaluation(self) -> None:
        if not self.suites and self.data is None:
            raise ValueError("an evaluation needs suites, or held-out problems as data")
        if (self.data is None) != (self.reward is None):
            raise ValueError("an evaluation's data and the reward that judges it come together")
        names = [suite.name for suite in self.suites]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise Conflict("suite_given_twice", f"suite names must be unique; given twice: {', '.join(twice)}")

    @classmethod
    def from_file(cls, path: Path) -> "Job":
        """YAML, or JSON where the name ends in .json. Raises ConfigError naming every fault."""
        try:
            text = path.read_text(encoding="utf-8")
            content = json.loads(text) if path.suffix == ".json" else parse_yaml(text)
        except OSError as error:
            raise ConfigError(f"cannot read the job {path}: {error.strerror}") from None
        except (UnicodeDecodeError, json.JSONDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} is neither YAML nor JSON: {error}") from None
        job = validated(cls, content, f"{path} is no valid job")
        job.chosen()
        return job

    def chosen(self) -> Options:
        """The options, checked. Raises ConfigError."""
        options = options_of(self.kind, self.options)
        if isinstance(options, TryOptions) and options.rows and self.data is None:
            raise ConfigError("options.rows: rows are of a dataset; give data, or texts instead")
        return options
