"""What the fields of configs and parameters are made of: the base class and the number types. Loads no torch."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from grpo_core.text import refuse_unstorable

Count = Annotated[int, Field(ge=1, le=10_000_000)]  # more is a slip, and three thousand million fits no column
CountOrZero = Annotated[int, Field(ge=0, le=10_000_000)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
LONG: Final = "long"
CODE: Final = "code"
"""Mark a text as one of several lines, or as a program, for forms."""
LongText = Annotated[str, LONG]
DataFormat = Literal["jsonl", "gsm8k"]


class Part(BaseModel):
    """Base of every part of a config: frozen, no unknown fields, field docstrings kept as descriptions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, protected_namespaces=()
    )

    @field_validator("*")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        return refuse_unstorable(value)
