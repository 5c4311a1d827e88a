"""What a node's sandbox can do, as the self-test found it. It travels in heartbeats, manifests and the record, so it is
plain data: nothing here starts or asks anything."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError

from grpo_core.config.messages import field_problems

Level = Literal["bubblewrap", "landlock", "none"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the self-test tried for real."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    level: Level
    version: str
    """`bubblewrap 0.8.0`, `Landlock ABI 7`; empty for level `none`."""
    checks: tuple[Check, ...]
    weaker: tuple[str, ...]
    """What this level does not keep apart, in words."""
    fix: str
    """Empty when a level works; else what to do."""
    tested_at: str
    """ISO 8601, UTC."""

    @property
    def works(self) -> bool:
        return self.level != "none"

    @property
    def words(self) -> str:
        """One line for people; empty when there is no sandbox."""
        return f"{self.version} (weaker)" if self.level == "landlock" else self.version

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = _JSON.dump_python(self, mode="json")
        return plain

    @classmethod
    def from_json(cls, payload: dict[str, Any]) -> "Report":
        """Raises ValueError on anything that `to_json` does not write."""
        try:
            return _JSON.validate_json(json.dumps(payload), strict=True)
        except ValidationError as error:
            faults = "; ".join(map(str, field_problems(error, model=BaseModel)))
            raise ValueError(f"not a sandbox report: {faults}") from None


_JSON = TypeAdapter(Report)
