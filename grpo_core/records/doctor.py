"""What `grpo doctor` reports of a model folder. Loads no torch, so that the platform can show it."""

from collections.abc import Iterable
from typing import Literal

from grpo_core.records.bounds import Name
from grpo_core.records.types import Body, Event

Severity = Literal["error", "warning", "note"]
"""error: a run does not start, or learns nothing. warning: numbers or texts differ from what is expected. note: true of
the folder, and harmless in a run of Cohort."""


class Finding(Body):
    """One thing about a model folder."""

    code: Name
    """Stable word."""
    severity: Severity
    message: str
    """What is so, with numbers."""
    fix: str
    """What to do; of a note, where it matters."""

    def event(self) -> Event:
        """For a run's record."""
        return Event(type="model", message=f"{self.message}; {self.fix}", data={"code": self.code})


class Diagnosis(Body):
    """Of one model folder, for the config that was given or for none."""

    model: str
    architecture: str | None
    """None where the model does not load."""
    parameters: int | None
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        """Whether something would go wrong."""
        return any(finding.severity == "error" for finding in self.findings)


def text_report(diagnosis: Diagnosis) -> str:
    """For a person: errors first."""
    first: Iterable[Severity] = ("error", "warning", "note")
    ordered = [finding for severity in first for finding in diagnosis.findings if finding.severity == severity]
    head = diagnosis.model
    if diagnosis.parameters is not None:
        head += f": {diagnosis.architecture}, {diagnosis.parameters:,} parameters"
    rows = [f"{f.severity:8} {f.code}: {f.message}\n{'':9}fix: {f.fix}" for f in ordered]
    return "\n".join([head, *(rows or ["nothing to mend"])]) + "\n"
