"""The card of a pipeline, written: one zip with the cards of its stages, what passed between them, and what each stage
changed, signed and logged as cards of runs are. `cohort.evidence.pipeline` has its layout, and what checks it.

Order as in `cards/issue.py`: every file, the attestation, the log's entry, the proof, the check that anyone makes of
it, then the row. A failure before leaves at most a log entry without a card.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import Any
from uuid import uuid4

from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import Project, User
from cohort.audit import services as audit
from cohort.audit.entries import clock
from cohort.audit.models import AuditEntry
from cohort.base import artifacts
from cohort.base.environment import environment
from cohort.base.scratch import scratch_folder
from cohort.base.storable import storable
from cohort.evidence import dsse, merkle, pipeline, pyz
from cohort.evidence.canonical import canonical, sha256
from cohort.evidence.card_reader import CardReader, Rejected
from cohort.evidence.keys import SigningKey
from cohort.evidence.pipeline import NAME, StageFault
from cohort.evidence.plain_text import named
from cohort.evidence.stage_changes import StageState, stage_changes
from cohort.evidence.verify.check import References, verify_card
from cohort.evidence.verify.opened import ATTESTATION, KEYS, LOG_ENTRY, PROOF
from cohort.evidence.verify.signed import log_keys
from cohort.records.cards.issue import CardRefused, KeysChanged
from cohort.records.cards.pack import Pack, Packed
from cohort.records.models import Card, PipelineCard, PipelineCardStage, Record

_CHUNK = 1 << 20
_README = """\
Governance card of the pipeline {title}

pipeline.json   its stages in order: what each took from earlier ones, and what each changed on the same suites
stages/         the public card of every stage, as it was issued
attestation.dsse.json, log-entry.json, proof.tlog-proof, keys.json   signature, log and keys, as in every card

Check it, and every card in it:
  python -m venv check && check/bin/pip install cryptography
  check/bin/python verify.pyz PIPELINE.zip --key keys.json
keys.json are the platform's public keys: get them from its operator or its page /log/keys.json, NOT from this zip.

What it does not prove: that these were all stages that there were, that the training ran as the trainers reported it,
and anything about behaviour that was not evaluated.
"""


@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline whose card is made, the earlier ones first."""

    name: str
    """As the pipeline calls it: small letters, digits, - and _."""
    record: Record
    """The sealed record of its run; the newest public card of it goes into the zip."""


@dataclass(frozen=True)
class _Read:
    """A stage as its own card has it."""

    card: Card
    document: dict[str, Any]
    packed: Packed
    state: StageState
    takes: list[dict[str, Any]]


def pipeline_card(
    *, project: Project, title: str, stages: Sequence[Stage], graph: Mapping[str, Any] | None = None, actor: User
) -> PipelineCard:
    """Make and store the card of a pipeline of `project`. `graph`: the pipeline as it was written, or None.

    Call it outside of any transaction. Raises ValidationError for stages that make no pipeline: without a card, of
    another project, two of a name, or one that took something from a run that is none of them; and CardTooLarge,
    CardRefused, KeyFault, LogFault and KeysChanged.
    """
    _require_stages(project, stages)
    audit.checkpoint()
    key, (vkeys, rotations) = audit.signing_key(), audit.public_keys()
    listed = {"origin": key.name, "keys": list(vkeys), "rotations": list(rotations)}
    with scratch_folder("cards") as folder, Pack(folder / "pack") as pack:
        read = _read(pack, stages)
        document = _document(storable(title.strip()), stages, read, graph)
        files = [
            pack.whole(pipeline.FILE, canonical(document)),
            *(read[stage.name].packed for stage in stages),
            pack.whole(KEYS, canonical(listed)),
            pack.whole(pyz.NAME, pyz.build()),
            pack.whole("README.txt", _README.format(title=title.strip()).encode()),
        ]
        payload = _statement(files, document)
        entry = _logged(project, actor, document, payload)
        proof = audit.prove(entry)
        if audit.public_keys() != (vkeys, rotations):
            raise KeysChanged("the audit log's key was replaced while the card was being made")
        files += _signed(pack, payload, proof, key)
        path = pack.zip("pipeline.zip", files, first=pipeline.FILE)
        report = verify_card(path, References((log_keys(listed),)))
        if not report.accepted:
            raise CardRefused(f"the card of the pipeline would not pass `cohort verify`: {named(list(report.why), 3)}")
        with path.open("rb") as handle:
            chunks = iter(partial(handle.read, _CHUNK), b"")
            name = f"pipelines/{document['seal'][:16]}-{uuid4().hex[:8]}.zip"
            stored = artifacts.put(name, chunks, to_the_last=True)
    try:
        return _store(project, actor, document, stages, read, stored, proof)
    except BaseException:  # whatever it was, no file may stay without its row; it is raised again
        artifacts.remove(stored.key)
        raise


def _require_stages(project: Project, stages: Sequence[Stage]) -> None:
    names = [stage.name for stage in stages]
    if not stages:
        raise ValidationError("A pipeline has at least one stage.")
    if unfit := [name for name in names if not NAME.fullmatch(name)]:
        raise ValidationError(f"{unfit[0]!r} can be no stage's name: small letters, digits, - and _, at most 60.")
    if len(set(names)) != len(names):
        raise ValidationError("Two stages have one name.")
    for stage in stages:
        if stage.record.run.project_id != project.pk:
            raise ValidationError(f"{stage.name}: its run is of another project.")


def _read(pack: Pack, stages: Sequence[Stage]) -> dict[str, _Read]:
    """The newest public card of every stage. Raises ValidationError for one that is not there, or not as sealed."""
    runs = {stage.record.run_id: stage.name for stage in stages}
    read: dict[str, _Read] = {}
    for stage in stages:
        try:
            card = stage.record.card(pipeline.AUDIENCE)
            with artifacts.open_read(card.artifact) as handle:
                reader = CardReader(handle)
                reader.open()
                document = json.loads(reader.whole("record.json"))
                takes = pipeline.takes_of(document, runs)
                state = pipeline.state_of(stage.name, document, takes, reader)
                handle.seek(0)
                packed = pack.add(pipeline.card_path(stage.name), iter(partial(handle.read, _CHUNK), b""))
        except (Card.DoesNotExist, FileNotFoundError):
            raise ValidationError(f"{stage.name}: the public card of its record is not there.") from None
        except Rejected as fault:
            raise ValidationError(f"{stage.name}: its card is not as it was issued: {fault}") from None
        except StageFault as fault:
            raise ValidationError(f"{stage.name}: {fault}.") from None
        read[stage.name] = _Read(card, document, packed, state, takes)
    return read


def _document(
    title: str, stages: Sequence[Stage], read: Mapping[str, _Read], graph: Mapping[str, Any] | None
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": pipeline.SCHEMA,
        "title": title,
        "made_at": clock().astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "audience": pipeline.AUDIENCE,
        "graph": graph,
        "stages": [
            {
                "name": stage.name,
                "kind": pipeline.kind_of(read[stage.name].document),
                "run": read[stage.name].document["head"]["run"],
                "title": read[stage.name].document["head"]["title"],
                "state": read[stage.name].document["head"]["state"],
                "seal": read[stage.name].document["seal"],
                "card": pipeline.card_path(stage.name),
                "card_sha256": read[stage.name].packed.sha256,
                "takes": read[stage.name].takes,
            }
            for stage in stages
        ],
        "changes": stage_changes([read[stage.name].state for stage in stages]),
    }
    return {**document, "seal": pipeline.seal_of(document)}


def _statement(files: Sequence[Packed], document: Mapping[str, Any]) -> bytes:
    """The in-toto statement's bytes, of every file of the zip."""
    predicate = {"seal": document["seal"], "audience": pipeline.AUDIENCE, "issue": 1, "reason": ""}
    predicate |= {"platform": environment().public_url.rstrip("/")}
    return dsse.statement({file.name: file.sha256 for file in files}, pipeline.PREDICATE_TYPE, predicate)


@transaction.atomic(durable=True)
def _logged(project: Project, actor: User, document: Mapping[str, Any], payload: bytes) -> AuditEntry:
    return audit.log(
        actor=audit.who(actor),
        kind="pipeline_card_made",
        subject=f"pipeline:{document['seal'][:16]}",
        project=project,
        data={
            "seal": document["seal"],
            "stages": {stage["name"]: stage["seal"] for stage in document["stages"]},
            "attestations": {pipeline.AUDIENCE: sha256(payload)},
        },
    )


def _signed(pack: Pack, payload: bytes, proof: audit.Proof, key: SigningKey) -> list[Packed]:
    contents = {
        ATTESTATION: dsse.envelope(payload, dsse.PAYLOAD_TYPE, key),
        LOG_ENTRY: proof.body,
        PROOF: merkle.write(proof.index, proof.path, proof.checkpoint).encode(),
    }
    return [pack.whole(name, content) for name, content in contents.items()]


@transaction.atomic
def _store(
    project: Project,
    actor: User,
    document: Mapping[str, Any],
    stages: Sequence[Stage],
    read: Mapping[str, _Read],
    stored: artifacts.Stored,
    proof: audit.Proof,
) -> PipelineCard:
    card = PipelineCard.objects.create(
        project=project,
        title=document["title"],
        seal=document["seal"],
        changes=document["changes"],
        artifact=stored.key,
        sha256=stored.sha256,
        size=stored.size,
        log_index=proof.index,
        by=actor,
    )
    PipelineCardStage.objects.bulk_create(
        PipelineCardStage(pipeline_card=card, position=at, name=stage.name, card=read[stage.name].card)
        for at, stage in enumerate(stages)
    )
    return card
