"""All checks of the card of a pipeline: the cards of its stages, what passed between them, and what each changed."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from cohort.evidence import pipeline
from cohort.evidence.canonical import dig
from cohort.evidence.card_reader import CardReader, Rejected
from cohort.evidence.pipeline import FILE, NAME, SCHEMA, StageFault
from cohort.evidence.plain_text import change_points, counted
from cohort.evidence.stage_changes import StageState, stage_changes
from cohort.evidence.verify import opened, signed
from cohort.evidence.verify.numbers import difference
from cohort.evidence.verify.opened import OpenCard
from cohort.evidence.verify.report import Report, UnknownSigner
from cohort.evidence.zip_layout import LayoutFault, read_layout

if TYPE_CHECKING:
    from cohort.evidence.verify.check import References

CheckCard = Callable[[IO[bytes], str, "References"], Report]

NOT_PROVEN = {
    "layout": "That the contents are unchanged; only that nothing is hidden between them.",
    FILE: "That these were all stages that there were: a stage that nobody registered is in no lineage.",
    "key": "That its holder is who they say, or that nobody else has the key.",
    "attestation": "That the stages did what their records say.",
    "log entry": "That the moment and the person in it are right: the platform wrote them.",
    "inclusion": "That others are shown the same log; compare an older card or the platform's page of checkpoints.",
    "checkpoint": "That the log holds everything that happened.",
    "what passed": "That nothing else went into a stage: a person may have chosen settings by what an earlier one did.",
    "what each stage changed": "Anything about tasks that were not evaluated, or about another seed of the same stage.",
}
_STAGE = "Whether its record was revoked or superseded since: ask with the stage's own card, which is in this zip."
_KEYS = {"schema", "title", "made_at", "audience", "graph", "stages", "changes", "seal"}
_STAGE_KEYS = {"name", "kind", "run", "title", "state", "seal", "card", "card_sha256", "takes"}


@dataclass
class OpenPipeline:
    card: OpenCard
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Stage → its record, of cards that were accepted."""
    states: dict[str, StageState] = field(default_factory=dict)

    @property
    def stages(self) -> list[dict[str, Any]]:
        return list(self.card.document["stages"])


def holds_pipeline(handle: IO[bytes]) -> bool:
    """Whether the zip is the card of a pipeline, as far as the names in it say; one that is damaged is none."""
    try:
        return any(entry.name == FILE for entry in read_layout(handle))
    except LayoutFault:
        return False


def check_pipeline(handle: IO[bytes], name: str, references: "References", check_card: CheckCard) -> Report:
    """Check the card of a pipeline in `handle`; `check_card` checks that of one stage. What happened to the records
    since is not looked for."""
    card = OpenCard(
        CardReader(handle, FILE),
        witnesses=references.witnesses,
        predicate_type=pipeline.PREDICATE_TYPE,
        about=FILE,
        sealed=("seal",),
    )
    report, whole = Report(name), OpenPipeline(card)
    first: dict[str, Callable[[], str | tuple[str, ...]]] = {"layout": card.reader.open, FILE: partial(_read, card)}
    for what, check in first.items():
        good = report.run(what, check, NOT_PROVEN[what])
        report.document = card.document or None
        if not good:
            return report
    checks: dict[str, Callable[[], str | tuple[str, ...]]] = {
        "key": partial(signed.keys, card, references.known),
        "attestation": partial(signed.attestation, card),
        "log entry": partial(opened.entry, card),
        "inclusion": partial(opened.inclusion, card),
        "checkpoint": partial(opened.signature, card),
    }
    for what, check in checks.items():
        report.run(what, check, NOT_PROVEN[what])
    for stage in whole.stages:
        report.run(f"stage {stage['name']}", partial(_stage, whole, stage, references, check_card), _STAGE)
    report.run("what passed", partial(_passed, whole), NOT_PROVEN["what passed"])
    report.run("what each stage changed", partial(_changes, whole), NOT_PROVEN["what each stage changed"])
    return report


def _read(card: OpenCard) -> str:
    """pipeline.json has its shape, every stage a card, and the whole the seal that it names."""
    document = card.canonical(FILE)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or set(document) != _KEYS:
        raise Rejected(f"{FILE}: is no pipeline as {SCHEMA} has it")
    stages = document["stages"]
    if not isinstance(stages, list) or not all(isinstance(s, dict) and set(s) == _STAGE_KEYS for s in stages):
        raise Rejected(f"{FILE}: its stages are not as {SCHEMA} has them")
    names = [str(stage["name"]) for stage in stages]
    if len(set(names)) != len(names) or not all(map(NAME.fullmatch, names)) or not stages:
        raise Rejected(f"{FILE}: its stages have no names, or two the same")
    for stage in stages:
        if stage["card"] != pipeline.card_path(stage["name"]):
            raise Rejected(f"{FILE}: the card of {stage['name']} is elsewhere than where it must be: {stage['card']!a}")
    there = {name for name in card.reader.entries if name.startswith("stages/")}
    if there != {stage["card"] for stage in stages}:
        raise Rejected(f"{FILE}: its stages are not those whose cards are there")
    if (seal := pipeline.seal_of(document)) != document["seal"]:
        raise Rejected(f"{FILE}: has the seal {seal}, and says {document['seal']!a}")
    card.document = document
    return f"canonical bytes, and as {SCHEMA} has it: {counted(len(stages), 'stage')}"


def _stage(whole: OpenPipeline, stage: Mapping[str, Any], references: "References", check_card: CheckCard) -> str:
    """The stage's card is the one that was named, and passes its own check."""
    name, path = stage["name"], stage["card"]
    reader = whole.card.reader
    if (digest := reader.sha256(path)) != stage["card_sha256"]:
        raise Rejected(f"{path}: another card than that of the pipeline: its sha256 is {digest}")
    with tempfile.TemporaryFile() as copy:
        for chunk in reader.chunks(path):
            copy.write(chunk)
        report = check_card(copy, path, _alone(references))
        if report.document is None or report.verdict not in ("accepted", "unknown signer"):
            raise Rejected(f"{path}: {report.verdict}", *report.why)
        record = report.document
        for what, stated, actual in (
            ("seal", stage["seal"], record["seal"]),
            ("run", stage["run"], record["head"]["run"]),
            ("title", stage["title"], record["head"]["title"]),
            ("state", stage["state"], record["head"]["state"]),
            ("kind", stage["kind"], pipeline.kind_of(record)),
        ):
            if stated != actual:
                raise Rejected(f"{path}: is of the {what} {actual!a}, and the pipeline says {stated!a}")
        own = CardReader(copy)
        own.open()
        try:
            state = pipeline.state_of(name, record, stage["takes"], own)
        except (KeyError, TypeError, ValueError) as error:
            raise Rejected(f"{path}: its items cannot be read: {error}") from None
    whole.records[name], whole.states[name] = record, state
    if not report.accepted:
        raise UnknownSigner(*report.why)
    return f"accepted; {record['head']['title']}, run {record['head']['run']}, seal {record['seal'][:16]}…"


def _alone(references: "References") -> "References":
    """The keys alone: what is given with them is about one card."""
    return type(references)(references.known, witnesses=references.witnesses)


def _all_there(whole: OpenPipeline) -> None:
    missing = [stage["name"] for stage in whole.stages if stage["name"] not in whole.records]
    if missing:
        raise Rejected(f"the card of {missing[0]} did not check, so nothing can be said of what passed")


def _passed(whole: OpenPipeline) -> tuple[str, ...]:
    """What each record says it took is what the earlier record says it gave, and no edge is missing."""
    _all_there(whole)
    runs = {stage["run"]: stage["name"] for stage in whole.stages}
    order = [stage["name"] for stage in whole.stages]
    lines, faults = [], []
    for stage in whole.stages:
        name, record = stage["name"], whole.records[stage["name"]]
        try:
            if (takes := pipeline.takes_of(record, runs)) != stage["takes"]:
                raise StageFault("its record names other inputs than the pipeline says")
            for take in takes:
                if order.index(take["stage"]) >= order.index(name):
                    raise StageFault(f"took from {take['stage']}, which comes after it")
                giver = whole.records[take["stage"]]
                if take["seal"] not in (None, giver["seal"], *_earlier_seals(giver)):
                    raise StageFault(f"names another record of {take['stage']}: seal {take['seal']!a}")
                lines.append(
                    f"{take['stage']} → {name}: {pipeline.require_agreement(giver, record, take)}, as both say"
                )
        except (StageFault, KeyError, TypeError) as fault:
            faults.append(f"{name}: {fault}")
    if faults:
        raise Rejected(*faults)
    return tuple(lines) or ("no stage took anything from another",)


def _earlier_seals(record: Mapping[str, Any]) -> list[str]:
    """Of versions that this record superseded, and of earlier ends of its run."""
    earlier = dig(record, "sections", "subject", "earlier_records", "value") or []
    return [str(entry["seal"]) for entry in earlier]


def _changes(whole: OpenPipeline) -> tuple[str, ...]:
    """The table follows from the items in the stages' cards."""
    _all_there(whole)
    try:
        computed = stage_changes([whole.states[stage["name"]] for stage in whole.stages])
    except (KeyError, TypeError, ValueError) as error:
        raise Rejected(f"{FILE}: the items cannot be compared: {error}") from None
    if fault := difference(computed, whole.card.document["changes"], "changes", by="the items"):
        raise Rejected(f"{FILE}: {fault}")
    return tuple(line for row in computed for line in lines_of(row)) or ("no stage was evaluated",)


def lines_of(row: Mapping[str, Any]) -> list[str]:
    """One line for each suite of a pair of states."""
    lines = []
    for comparison in row["comparisons"]:
        text = f"{row['from']} → {row['to']}, {comparison['suite']}: "
        if (change := comparison["change"]) is None:
            text += f"no difference to state ({comparison['why_not'] or comparison['verdict']})"
        else:
            difference_, low, high = change_points(change, comparison["margin"])
            text += f"{difference_} points [{low}, {high}]: {comparison['verdict']}"
        lines.append(text)
    return lines
