"""Was what the record was judged by in the log before the first step? The entries, their places, and what they say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.evidence import merkle
from cohort.evidence.canonical import CanonicalError, dig, parse
from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.merkle import leaf_hash, verify_inclusion
from cohort.evidence.plain_text import counted
from cohort.evidence.preregistration import (
    FILE,
    FIRST_STEP,
    IN_FORCE,
    PLANNED,
    REGISTERED,
    SCHEMA,
    STEPPED,
    margins,
    plan,
)
from cohort.evidence.verify.opened import OpenCard
from cohort.evidence.verify.report import Withheld


@dataclass(frozen=True)
class Logged:
    """An entry that is in the log of the card's checkpoint."""

    index: int
    body: Mapping[str, Any]


def registration(card: OpenCard) -> str | tuple[str, ...]:
    """The registration is in the log before the first step and before the card; its plan is the record's."""
    recorded = card.value("oversight", "preregistration")
    if recorded is None:
        if FILE in card.reader.entries:
            raise Rejected(f"there is a {FILE}, and the record names no registration")
        return "nothing was registered before the first step"
    if FILE not in card.reader.entries:
        raise Rejected(f"the record names a registration, and there is no {FILE}")
    try:
        logged = {name: _logged(card, name, each) for name, each in card.canonical(FILE).items()}
        planned, in_force, step = logged[PLANNED], logged[IN_FORCE], logged.get(STEPPED)
        content = in_force.body["data"]
        if faults := _faults(card, recorded, planned, in_force, step):
            raise Rejected(*(f"{FILE}: {fault}" for fault in faults))
        if plan(planned.body["data"]) != plan(content):
            faults.append("the first registration plans something else than the one in force")
        faults += _content_faults(card, content)
        lines = _lines(planned, in_force, step, content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Rejected(f"{FILE}: cannot be read ({type(error).__name__}: {error})") from None
    if faults:
        raise Rejected(*(f"{FILE}: {fault}" for fault in faults))
    return lines


def _logged(card: OpenCard, name: str, given: Mapping[str, Any]) -> Logged:
    if card.checkpoint is None or card.proof is None:
        raise Cannot(f"there is no checkpoint to look for the entries of {FILE} in")
    entry = str(given["entry"]).encode()
    try:
        body, proof = parse(entry), merkle.parse(given["proof"])
    except (CanonicalError, merkle.ProofError) as error:
        raise Rejected(f"{FILE}: {name}: {error}") from None
    if proof.checkpoint != card.proof.checkpoint:
        raise Rejected(f"{FILE}: {name}: its proof is under another checkpoint than the card's")
    point = card.checkpoint
    if not verify_inclusion(leaf_hash(entry), proof.index, point.size, proof.path, point.root):
        raise Rejected(f"{FILE}: {name}: its proof does not lead to the root of the log")
    return Logged(proof.index, body)


def _faults(
    card: OpenCard, recorded: Mapping[str, Any], planned: Logged, in_force: Logged, step: Logged | None
) -> list[str]:
    """Where the entries are not those that the record names, or not of its run."""
    assert card.proof is not None
    subject = f"run:{card.document['head']['run']}"
    expected = ((PLANNED, planned, REGISTERED), (IN_FORCE, in_force, REGISTERED), (STEPPED, step, FIRST_STEP))
    faults = []
    for name, entry, kind in expected:
        if entry is None:
            continue
        if (entry.body["kind"], entry.body["subject"]) != (kind, subject):
            faults.append(f"{name} is {entry.body['kind']!a} of {entry.body['subject']!a}, not {kind} of {subject}")
        if entry.index >= card.proof.index:
            faults.append(f"{name} has the index {entry.index:,}, which is not before that of the card's own entry")
    named = {
        "the registration": ({"index": recorded["index"], "at": recorded["at"]}, planned),
        "the registration in force": (recorded["in_force"], in_force),
        "the first step": (recorded["first_step"], step),
    }
    for what, (stated, entry) in named.items():
        actual = None if entry is None else {"index": entry.index, "at": entry.body["at"]}
        if stated != actual:
            faults.append(f"{what} is {actual!a} in the log, and the record says {stated!a}")
    if recorded["before_first_step"] != (step is None or planned.index < step.index):
        faults.append("the record says the wrong order of registration and first step")
    if recorded["content"] != in_force.body["data"]:
        faults.append("the record says another content of the registration than the log")
    return faults


def _content_faults(card: OpenCard, content: Mapping[str, Any]) -> list[str]:
    """Where the record was made, or judged, by something else than was registered."""
    faults = [] if content["schema"] == SCHEMA else [f"is no {SCHEMA}"]
    try:
        config = dig(card.value("method", "config"), "sha256")
        if content["config_sha256"] != config:
            faults.append(f"registered was the config {content['config_sha256']!a}, and the record's is {config!a}")
        registered = margins(content)
        for comparison in card.value("behaviour", "performance") or ():
            suite, margin = comparison["suite"], comparison["margin"]
            if suite not in registered:
                faults.append(f"the suite {suite} was not registered")
            elif registered[suite] != margin:
                faults.append(f"{suite} was registered with the margin {registered[suite]}, judged by {margin}")
    except Withheld:  # the fields are public unless somebody kept them back: then there is less to compare
        pass
    return faults


def _lines(planned: Logged, in_force: Logged, step: Logged | None, content: Mapping[str, Any]) -> tuple[str, ...]:
    where = f"registered at index {planned.index:,}, {planned.body['at']}"
    if step is None:
        first = f"{where}; no first step is recorded"
    else:
        order = "before" if planned.index < step.index else "AFTER"
        first = f"{where}, {order} the first step, index {step.index:,}, {step.body['at']}"
    suites, hypotheses = counted(len(content["suites"]), "suite"), content["hypotheses"]
    expected = counted(len(hypotheses), "hypothesis", "hypotheses")
    lines = [first, f"{suites} with margins, the verifier, the config's digest and {expected}, as the record has them"]
    if in_force.index != planned.index:
        lines.append(f"registered again at index {in_force.index:,} with another config and the same plan")
    return tuple(lines)
