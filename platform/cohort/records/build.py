"""A run's governance record, from the facts the platform holds. The same facts and salts give the same bytes."""

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any

from cohort.evidence.record import record_root, seal_of
from cohort.records.facts import Facts, TracesInCard
from cohort.records.fields import FIELDS, Section, Sections
from cohort.records.schema import SCHEMA, Document
from cohort.records.schema_types import Answer, Entry, FileEntry, Head
from cohort.records.sections.behaviour import behaviour
from cohort.records.sections.budget import budget
from cohort.records.sections.data import data
from cohort.records.sections.method import method
from cohort.records.sections.oversight import handling, oversight
from cohort.records.sections.rejected import rejected
from cohort.records.sections.reward import reward
from cohort.records.sections.subject import environment, subject

SALT_BYTES = 16


def new_salt() -> str:
    """From the system's randomness: a withheld field must not be guessed from its hash."""
    return secrets.token_hex(SALT_BYTES)


def build_sections(facts: Facts, *, traces: TracesInCard) -> Sections:
    return Sections(
        subject=subject(facts),
        environment=environment(facts),
        reward=reward(facts),
        data=data(facts),
        method=method(facts),
        rejected=rejected(facts, traces=traces),
        budget=budget(facts),
        oversight=oversight(facts),
        behaviour=behaviour(facts),
        handling=handling(facts),
    )


def build_record(
    facts: Facts,
    *,
    files: Sequence[FileEntry],
    traces: TracesInCard,
    version: int = 1,
    salt: Callable[[], str] = new_salt,
) -> dict[str, Any]:
    """record.json for the project itself, as a value: every field with its audience and salt, the root over them and
    the seal. `files` are the sealed data files in any order; `traces`, the kept groups in the card;
    `version` counts within the run's end."""
    sections = build_sections(facts, traces=traces)
    parts = {name: getattr(sections, name) for name in FIELDS}
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "audience": "internal",
        "head": _head(facts, version).model_dump(mode="json"),
        "sections": {name: _entries(name, part, salt) for name, part in parts.items()},
        "files": [file.model_dump(mode="json") for file in sorted(files, key=lambda file: file.path)],
    }
    body["record_root"] = record_root(body)
    body["seal"] = seal_of(body)
    Document.model_validate(body)
    return body


def _head(facts: Facts, version: int) -> Head:
    sealed_at = facts.sealed_at.astimezone(UTC).isoformat(timespec="microseconds")
    return Head(
        title=facts.run.name,
        run=facts.run.pk,
        end=facts.run.ends,
        version=version,
        sealed_at=sealed_at.replace("+00:00", "Z"),
        state=facts.state,
    )


def _entries(section: str, part: Section, salt: Callable[[], str]) -> dict[str, dict[str, Any]]:
    return {name: _entry(section, name, answer, salt()) for name, answer in part.answers()}


def _entry(section: str, name: str, answer: Answer, salt: str) -> dict[str, Any]:
    audience = answer.audience or FIELDS[section][name].audience
    fields = answer.model_dump(mode="json", exclude={"audience"})
    return Entry(**fields, audience=audience, salt=salt).model_dump(mode="json")
