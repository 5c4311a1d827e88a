"""The card of a pipeline: pipeline.json, the cards of its stages, and what their records say of what passed.

A stage names what it took in its record's lineage (`subject.lineage`, value `stages`); that it was what the earlier
stage gave is seen from the digests in both records. Knows no Django.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cohort.evidence.canonical import canonical, dig, sha256
from cohort.evidence.card_reader import CardReader
from cohort.evidence.compare import NOT_COMPARABLE
from cohort.evidence.items import by_suite
from cohort.evidence.stage_changes import StageState, states_of

SCHEMA = "cohort-pipeline/1"
FILE = "pipeline.json"
PREDICATE_TYPE = "urn:cohort:pipeline:1"
AUDIENCE = "public"
"""Of the stages' cards in it: what they show is enough for every check."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")
"""Of a stage, which is also the name of its card's file."""
GAVE = ("weights", "dataset", "reward_model")


class StageFault(ValueError):
    """Stages that make no pipeline, or whose records do not fit together. The message names the stage."""


def card_path(name: str) -> str:
    """Of a stage's card, in the zip."""
    return f"stages/{name}.zip"


def seal_of(document: Mapping[str, Any]) -> str:
    """Hex digest over all of pipeline.json but the seal itself."""
    return sha256(canonical({name: value for name, value in document.items() if name != "seal"}))


def kind_of(record: Mapping[str, Any]) -> str:
    """What the run of a record did."""
    return str(dig(record, "sections", "stage", "kind", "value") or "grpo")


# ---------------------------------------------------------------------- what passed


def takes_of(record: Mapping[str, Any], stages: Mapping[int, str]) -> list[dict[str, Any]]:
    """[{stage, gave, digests, seal}] of all that the run of this record took from earlier ones; `stages`: run → name.
    Raises StageFault for one that is not among them."""
    run, takes = record["head"]["run"], []
    for entry in dig(record, "sections", "subject", "lineage", "value", "stages") or ():
        if entry["to"] != run:
            continue
        if entry["run"] not in stages:
            raise StageFault(
                f"took its {str(entry['gave']).replace('_', ' ')} from run {entry['run']}, which is no stage of this "
                "pipeline"
            )
        takes.append({"stage": stages[entry["run"]], **{name: entry[name] for name in ("gave", "digests", "seal")}})
    return takes


def require_agreement(giver: Mapping[str, Any], taker: Mapping[str, Any], take: Mapping[str, Any]) -> str:
    """That what the taker's record says it began with is what the giver's says it made. Returns that in words; raises
    StageFault."""
    match take["gave"]:
        case "weights":
            return _same_weights(giver, taker)
        case "dataset":
            return _same_dataset(giver, taker)
        case "reward_model":
            return _same_reward_model(giver, take)
        case other:
            raise StageFault(f"{other!a} is nothing that a stage gives")


def _same_weights(giver: Mapping[str, Any], taker: Mapping[str, Any]) -> str:
    began = dig(taker, "sections", "subject", "base_model", "value")
    read = {
        digest
        for part in ("weights", "adapter", "checkpoint")
        for digest in (dig(began, part) or {}).values()
        if isinstance(digest, str)
    }
    for weights in _weight_sets(giver):
        if weights and set(weights.values()) <= read:
            return f"weights {_short(weights)}"
    raise StageFault("its trainer began from other weights than that stage wrote")


def _same_dataset(giver: Mapping[str, Any], taker: Mapping[str, Any]) -> str:
    written = dig(giver, "sections", "stage", "dataset", "value", "sha256")
    read = dig(taker, "sections", "data", "prompts", "value")
    files = [read or {}, dig(read, "replay") or {}]
    digests = {digest for part in files for digest in (part.get("sha256"), *(part.get("files") or {}).values())}
    if written is None or written not in digests:
        raise StageFault("its trainer read another dataset than that stage wrote")
    return f"dataset {written[:12]}…"


def _same_reward_model(giver: Mapping[str, Any], take: Mapping[str, Any]) -> str:
    """The trainer reports one digest over all files of the model."""
    read = set(take["digests"].values())
    for weights in _weight_sets(giver):
        if weights and (set(weights.values()) <= read and files_digest(weights) in read):
            return f"reward model {_short(weights)}"
    raise StageFault("its reward was scored by another model than that stage wrote")


def _weight_sets(record: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """{file: SHA-256} of the final weights, and of every checkpoint that the record names."""
    subject = dig(record, "sections", "subject") or {}
    files = dig(subject, "trained_policy", "value", "files") or {}
    yield {
        name: str(entry["sha256"]) for name, entry in files.items() if name.endswith(".safetensors") and "/" not in name
    }
    for stored in dig(subject, "old_policy", "value", "stored") or ():
        yield dict(stored["weights"])


def files_digest(files: Mapping[str, str]) -> str:
    """SHA-256 of the lines `<sha256>  <name>`, sorted by name, as a trainer reports a reward model's weights."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _short(weights: Mapping[str, str]) -> str:
    return f"{next(iter(weights.values()))[:12]}…"


# ---------------------------------------------------------------------- states


def state_of(name: str, record: Mapping[str, Any], takes: Sequence[Mapping[str, Any]], card: CardReader) -> StageState:
    """How the stage's weights answered, from its card. Raises as `by_suite` does, and KeyError for what is no
    comparison."""
    comparisons = dig(record, "sections", "behaviour", "performance", "value") or []
    known = [comparison for comparison in comparisons if comparison["verdict"] != NOT_COMPARABLE]
    begins = next((str(take["stage"]) for take in takes if take["gave"] == "weights"), "")
    return StageState(
        name,
        kind_of(record),
        begins,
        before=states_of(known, by_suite(card.lines("evals/before.jsonl"))),
        after=states_of(comparisons, by_suite(card.lines("evals/after.jsonl"))),
    )
