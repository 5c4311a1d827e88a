"""training-content-summary.json as types: the parts of the template of the European Commission's AI Office, filled."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["filled", "not applicable", "to be stated", "withheld"]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Field(Part):
    """One question of the template."""

    heading: str
    status: Status
    text: str
    """The answer; of what is not applicable, why; of what is to be stated, by whom it can be."""
    sources: list[str]
    """Fields of the record that it is from, as `section.field`."""
    source: str
    """As the record marks them: measured, config, stated by …; empty where nothing was filled."""
    question: str
    """The record's field whose statement would answer it; empty where there is no such question."""

    @property
    def anchor(self) -> str:
        """Of the question on the page of statements."""
        return self.question.replace(".", "-")


class Section(Part):
    number: str
    heading: str
    fields: list[Field]


class Summary(Part):
    """training-content-summary.json"""

    format: Literal["cohort-training-content/1"] = "cohort-training-content/1"
    draft: Literal[True] = True
    model: str
    version: str
    """Of the record that it is made from, which is dated too."""
    last_update: str
    """UTC."""
    seal: str
    audience: str
    covers: str
    template: str
    read: str
    """Day on which the template was read."""
    dates: list[str]
    sections: list[Section]

    @property
    def to_state(self) -> list[Field]:
        return [field for section in self.sections for field in section.fields if field.status == "to be stated"]

    @property
    def total(self) -> int:
        return sum(len(section.fields) for section in self.sections)
