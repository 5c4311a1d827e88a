"""A record's document with every field, made by hand, as each audience gets it: for tests of the reading copies."""

import copy
import secrets
from typing import Any

from cohort.evidence import record as evidence
from cohort.records.cards.reading import Reading, Series
from cohort.records.fields import COMMON_FIELDS
from tests.tables import cases

HOSTILE = "<script>alert(1)</script> | [x](javascript:y) \u202e #raw $x$ *b* @ref \x1b[31m \ud800 日本語 👩‍👧 e\u0301"
DIGEST = "ab" * 32
BASE_DIGEST = "cd" * 32
ROWS: dict[str, Any] = {case.id: case.values[0] for case in cases("records/rows", "fields")}


def comparison(suite: str = "heldout", *, after: bool = True) -> dict[str, Any]:
    """100 items: 30 right before, 80 after."""
    made = {**copy.deepcopy(ROWS["comparison"]), "suite": suite, "title": suite}
    once = {"after": None, "change": None, "non_inferiority": None, "verdict": "evaluated once only", "slices": []}
    return made if after else {**made, **once}


def entry(text: str, value: Any = None, *, audience: str = "public", source: str = "measured") -> dict[str, Any]:
    evidence_of = {"measured": "reported", "config": "declared", "not stated": "none"}.get(source, "stated")
    stated = {"value": value, "text": text, "source": source, "evidence": evidence_of}
    return {**stated, "audience": audience, "note": "", "salt": secrets.token_hex(16)}


def document(*, text: str = "said", **given: dict[str, Any]) -> dict[str, Any]:
    """The internal document. `given`: entries by section__field."""
    sections = {
        section: {name: entry(text, audience=facts.audience) for name, facts in fields.items()}
        for section, fields in COMMON_FIELDS.items()
    }
    base = {"source": "org/tiny", "revision": "abc", "architecture": "Qwen2ForCausalLM"}
    weights = {"model.safetensors": BASE_DIGEST}
    sections["subject"]["base_model"] = entry("tiny: org/tiny at abc", {**base, "weights": weights})
    sections["subject"]["training_method"] = entry("yes: GRPO, 3 steps", "GRPO")
    sections["behaviour"]["performance"] = entry("as compared", [comparison(), comparison("format", after=False)])
    sections["data"]["prompts"] = entry("20 problems", {"dataset": "additions", "sha256": DIGEST})
    sections["handling"]["trace_policy"] = entry("not stated", source="not stated")
    for path, row in given.items():
        section, name = path.split("__")
        sections[section][name] = row
    head = {"title": text, "run": 7, "end": 1, "version": 1, "sealed_at": "2026-11-22T10:00:00Z", "state": "succeeded"}
    made: dict[str, Any] = {"schema": evidence.SCHEMA, "audience": "internal", "head": head, "sections": sections}
    made |= {"files": [], "record_root": "0" * 64}
    if "\ud800" not in text:  # canonical JSON cannot carry half a pair, and no record holds one
        made["record_root"] = evidence.record_root(made)
    return made | {"seal": evidence.seal_of(made)}


def reading(audience: str = "internal", *, text: str = "said", **given: dict[str, Any]) -> Reading:
    whole = document(text=text, **given)
    shown = evidence.redact(whole, audience) if audience != "internal" else whole
    series = Series(
        steps=range(1, 1001),
        values={"reward": [0.001 * step for step in range(1, 1001)], "frac_reward_zero_std": [0.25] * 1000},
    )
    return Reading(shown, None if audience == "public" else series, {"model.safetensors": DIGEST})
