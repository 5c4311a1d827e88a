"""What the audit log holds from before the run's first step: the registration, its index and time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.audit.models import AuditEntry, AuditLeaf
from cohort.evidence.plain_text import counted
from cohort.evidence.preregistration import IN_FORCE, PLANNED, STEPPED, plan
from cohort.records.answers import count, measured, moment, not_stated
from cohort.records.schema_types import Answer
from cohort.runs.models import Run
from cohort.runs.preregistration import registration_entries


@dataclass(frozen=True)
class Registered:
    planned: AuditEntry | None
    """The first registration that plans what the newest one does; None for a run of before there were any."""
    in_force: AuditEntry | None
    """The newest."""
    first_step: AuditEntry | None
    """None where no step has arrived."""
    earlier: int
    """Registrations that another one replaced."""
    indices: dict[int, int]
    """By the id of an entry, its index in the log."""


def content(entry: AuditEntry) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(bytes(entry.body))["data"]
    return data


def named_entries(document: Mapping[str, Any]) -> dict[str, AuditEntry]:
    """Entries of preregistration.json by name, as the record of the project itself names them by their indices; none
    where it names no registration."""
    value = document["sections"]["oversight"].get("preregistration", {}).get("value")
    if value is None:
        return {}
    indices = {PLANNED: value["index"], IN_FORCE: value["in_force"]["index"]}
    if value["first_step"] is not None:
        indices[STEPPED] = value["first_step"]["index"]
    leaves = AuditLeaf.objects.filter(idx__in=indices.values()).select_related("entry")
    entries = {leaf.idx: leaf.entry for leaf in leaves}
    return {name: entries[index] for name, index in indices.items()}


def registered(run: Run) -> Registered:
    """Needs the log numbered up to the run's entries (`audit.integrate`)."""
    entries, first_step = registration_entries(run)
    in_force = entries[-1] if entries else None
    planned = next((each for each in entries if in_force and plan(content(each)) == plan(content(in_force))), None)
    pks = [entry.pk for entry in (*entries, first_step) if entry is not None]
    indices = dict(AuditLeaf.objects.filter(entry__in=pks).values_list("entry_id", "idx"))
    return Registered(planned, in_force, first_step, max(0, len(entries) - 1), indices)


def preregistration_answer(known: Registered) -> Answer:
    planned, in_force, step = known.planned, known.in_force, known.first_step
    if planned is None or in_force is None:
        return not_stated("The log has no registration of this run.", text="not registered")
    registered_content = content(in_force)
    value: dict[str, Any] = {
        "index": known.indices[planned.pk],
        "at": _at(planned),
        "first_step": None if step is None else {"index": known.indices[step.pk], "at": _at(step)},
        "before_first_step": step is None or known.indices[planned.pk] < known.indices[step.pk],
        "in_force": {"index": known.indices[in_force.pk], "at": _at(in_force)},
        "earlier": known.earlier,
        "content": registered_content,
    }
    suites = registered_content["suites"]
    verifier = registered_content["verifier"]  # None of a run without a reward
    what = [f"verifier {verifier['name']}, version {verifier['version']}" if verifier else "no reward"]
    what.append(f"{counted(len(suites), 'suite')} with margins" if suites else "no suite")
    primary = registered_content["primary"]
    what.append(f"primary outcome the change of {primary}" if primary else "no primary outcome")
    hypotheses = registered_content["hypotheses"]
    what.append(f"hypotheses: {' / '.join(hypotheses)}" if hypotheses else "no hypothesis")
    text = f"at index {count(value['index'])} of the audit log, {moment(planned.at)}, {_order(value, step)}: "
    notes = []
    if in_force.pk != planned.pk:
        notes.append(
            f"Registered again at index {count(known.indices[in_force.pk])}, {moment(in_force.at)}, with another "
            "config and the same plan."
        )
    if known.earlier:
        notes.append(f"{counted(known.earlier, 'registration')} of this run came before the one in force.")
    notes.append("The entries and their proofs are in preregistration.json.")
    return measured(value, text + "; ".join(what), evidence="recomputable", note=" ".join(notes))


def _order(value: dict[str, Any], step: AuditEntry | None) -> str:
    if step is None:
        return "and no step was trained"
    order = "before" if value["before_first_step"] else "after"
    return f"{order} the first step, index {count(value['first_step']['index'])}, {moment(step.at)}"


def _at(entry: AuditEntry) -> str:
    at: str = json.loads(bytes(entry.body))["at"]
    return at
