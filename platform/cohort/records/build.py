"""A run's governance record, from the facts the platform holds. The same facts and salts give the same bytes."""

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any

from cohort.evidence.record import SALT_BYTES, record_root, seal_of
from cohort.records.facts import Facts, TracesInCard
from cohort.records.fields import FIELDS, Section
from cohort.records.schema import SCHEMA, Document
from cohort.records.schema_types import Answer, Entry, FileEntry, Head
from cohort.records.sections.behaviour import behaviour
from cohort.records.sections.budget import budget
from cohort.records.sections.data import data
from cohort.records.sections.method import method
from cohort.records.sections.oversight import handling, oversight
from cohort.records.sections.policy import policy_answer
from cohort.records.sections.rejected import rejected
from cohort.records.sections.reward import reward
from cohort.records.sections.stage import stage_section
from cohort.records.sections.subject import environment, subject


def new_salt() -> str:
    """From the system's randomness: a withheld field must not be guessed from its hash."""
    return secrets.token_hex(SALT_BYTES)


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
    early: tuple[Section, ...] = (subject(facts), environment(facts), reward(facts), data(facts), method(facts))
    own = () if (stage := stage_section(facts)) is None else (stage,)
    late = (rejected(facts, traces=traces), budget(facts), oversight(facts), behaviour(facts), handling(facts))
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "audience": "internal",
        "head": _head(facts, version).model_dump(mode="json"),
        "sections": {
            (section := type(part).__name__.lower()): {
                name: _entry(section, name, answer, salt()) for name, answer in part.answers()
            }
            for part in (*early, *own, *late)
        },
        "files": [file.model_dump(mode="json") for file in sorted(files, key=lambda file: file.path)],
    }
    if facts.policy is not None:  # judged by all the other fields
        answer = policy_answer(facts.policy, body)
        body["sections"]["oversight"]["policy"] = _entry("oversight", "policy", answer, salt())
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


def _entry(section: str, name: str, answer: Answer, salt: str) -> dict[str, Any]:
    audience = answer.audience or FIELDS[section][name].audience
    return Entry(**{**dict(answer), "audience": audience}, salt=salt).model_dump(mode="json")
