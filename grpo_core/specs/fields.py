"""What the fields of configs and parameters are made of, and the SPECs that the files of a folder declare. Loads no
torch."""

import importlib
import pkgutil
import re
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from grpo_core.errors import Conflict
from grpo_core.text import refuse_unstorable

Spec = TypeVar("Spec")


def specs_in(package: str, kind: type[Spec]) -> list[Spec]:
    """SPEC of each module of the package that has one of this kind, by the modules' names."""
    names = [module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    declared = [getattr(importlib.import_module(f"{package}.{name}"), "SPEC", None) for name in sorted(names)]
    return [spec for spec in declared if isinstance(spec, kind)]


Count = Annotated[int, Field(ge=1, le=10_000_000)]  # more is a slip, and three thousand million fits no column
CountOrZero = Annotated[int, Field(ge=0, le=10_000_000)]
LEAST_NUMBER: Final = 1e-20
LARGEST_NUMBER: Final = 1e9
"""Beyond these a setting vanishes or overflows once it is multiplied in fp32, as 1e-40 and 1e40 do by themselves."""


def _no_denormal(value: float) -> float:
    if 0 < value < LEAST_NUMBER:
        raise Conflict("vanishes", f"must be at least {LEAST_NUMBER:g}, or 0 where it may be: in fp32 less vanishes")
    return value


Positive = Annotated[float, Field(gt=0, le=LARGEST_NUMBER), AfterValidator(_no_denormal)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_NUMBER), AfterValidator(_no_denormal)]
Share = Annotated[float, Field(ge=0, le=1)]
LEAST_TEMPERATURE: Final = 0.01
Temperature = Annotated[float, Field(ge=LEAST_TEMPERATURE, le=100)]  # below, logits over it leave the range of fp32


def _greedy_or_sampled(temperature: float) -> float:
    if 0 < temperature < LEAST_TEMPERATURE:
        raise Conflict(
            "temperature_too_low",
            f"must be 0, which takes the likeliest token, or at least {LEAST_TEMPERATURE}: below, logits divided "
            "by it leave the range of their numbers",
        )
    return temperature


GreedyTemperature = Annotated[float, Field(ge=0, le=100), AfterValidator(_greedy_or_sampled)]
"""0 takes the likeliest token each time."""
LONG: Final = "long"
CODE: Final = "code"
"""Mark a text as one of several lines, or as a program, for forms."""
LongText = Annotated[str, LONG]
_StopString = Annotated[LongText, Field(min_length=1, max_length=200)]
StopStrings = Annotated[tuple[_StopString, ...], Field(max_length=16, title="Stop strings")]
DataFormat = Literal[
    "auto", "plain", "prompt_only", "gsm8k", "math", "verl", "messages", "sharegpt", "alpaca", "choices",
    "humaneval", "mbpp", "reasoning_gym",
]  # fmt: skip
"""Layouts of a row: `grpo_core.data.layouts` says what each takes."""


class Part(BaseModel):
    """Base of every part of a config: frozen, no unknown fields, field docstrings kept as descriptions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, protected_namespaces=()
    )

    @field_validator("*")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        return refuse_unstorable(value)


_Path = Annotated[str, Field(max_length=300)] | None


class DataColumns(Part):
    """Which field of a row is what. A dotted path such as `reward_model.ground_truth` goes into an object or a list."""

    prompt: _Path = Field(default=None, title="Prompt column")
    """Field with the question, a text or a list of messages. Empty: as the layout names it."""
    answer: _Path = Field(default=None, title="Answer column")
    """Field with the reference answer, or a list of several. Empty: as the layout names it; `""` for none."""
    system: _Path = Field(default=None, title="System column")
    """Field with the system message. Empty: `system`, where a row has it; `""` for none."""
    messages: _Path = Field(default=None, title="Messages column")
    """Field with the conversation, in the layouts messages and sharegpt. Empty: as the layout names it."""
    choices: _Path = Field(default=None, title="Options column")
    """Field that lists the options, in the layout choices. Empty: as the layout names it."""
    id: _Path = Field(default=None, title="Id column")
    """Field with the problem's unique id. Empty: `id`, where a row has it; `""` numbers the rows."""


class HubSplit(Part):
    """A dataset on the Hugging Face Hub: which of its files are read."""

    revision: str
    """Commit of the Hub repository, 40 hex digits, so that the run can be repeated."""
    split: Annotated[str, Field(min_length=1)]
    """Such as `train` or `test`."""
    config: Annotated[str, Field(min_length=1)] | None = None
    """Name of the config (subset), of a dataset that has several. Empty: its default."""

    @field_validator("revision")
    @classmethod
    def _pinned(cls, revision: str) -> str:
        if not re.fullmatch(r"[0-9a-f]{40}", revision):
            raise Conflict(
                "data_revision_not_pinned",
                f"{revision!r} is not a commit of 40 hex digits; a branch or tag may move, and the run could not be "
                "repeated. The dataset's page on the Hub lists its commits under Files and versions, History",
            )
        return revision
