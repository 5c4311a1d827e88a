"""What a node's sandbox can do, as the self-test found it. It travels in heartbeats, manifests and the record, so it is
plain data: nothing here starts or asks anything."""

from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

Level = Literal["bubblewrap", "landlock", "none"]
LEVELS: tuple[Level, ...] = get_args(Level)


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
        return {
            "level": self.level,
            "version": self.version,
            "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in self.checks],
            "weaker": list(self.weaker),
            "fix": self.fix,
            "tested_at": self.tested_at,
        }

    @classmethod
    def from_json(cls, payload: dict[str, Any]) -> Self:
        """Raises ValueError on anything that `to_json` does not write."""
        try:
            level, checks, weaker = payload["level"], payload["checks"], payload["weaker"]
            if level not in LEVELS:
                raise ValueError(f"a sandbox report has the level {level!r}, which is none of {', '.join(LEVELS)}")
            made = cls(
                level=level,
                version=_text(payload["version"]),
                checks=tuple(Check(_text(c["name"]), _truth(c["passed"]), _text(c["detail"])) for c in checks),
                weaker=tuple(_text(line) for line in weaker),
                fix=_text(payload["fix"]),
                tested_at=_text(payload["tested_at"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a sandbox report: {type(error).__name__} {error}") from None
        return made


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value
