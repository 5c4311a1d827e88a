"""bom.cdx.json: the trained model as a CycloneDX 1.7 ML-BOM, with its model card.

CycloneDX's Python library has no model card, so the document is put together by hand; a test checks it with the
library's strict validator. CycloneDX has no fields for GRPO's settings: they are properties `cohort:…`.
Metric values and bounds are text there.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from cohort.records.cards.reading import Reading
from grpo_core.text import printable

FILE = "bom.cdx.json"
_NAMESPACE = uuid.UUID("6f2b1c0e-8f0a-5d54-9d55-3f0c1a7b9e21")
"""Of serial numbers made from seals."""

_PROPERTIES = (
    "subject.training_method", "subject.reference_policy", "subject.old_policy", "reward.source", "reward.verifier",
    "reward.rule_or_model", "reward.domain", "reward.verifiable_or_social", "method.loss", "method.normalization",
    "method.clipping", "method.kl", "method.group_size", "method.sampling", "method.optimiser", "method.preset",
    "method.config", "rejected.samples", "rejected.groups", "rejected.truncated", "rejected.traces",
    "rejected.commitments", "budget.steps", "budget.time", "budget.tokens", "budget.compute", "environment.seeds",
    "environment.code", "handling.trace_policy",
)  # fmt: skip
_LIMITATIONS = (
    "reward.brittleness", "data.decontamination", "behaviour.benchmark_contamination", "behaviour.safety_regressions",
)  # fmt: skip
_TEXT = 8_000
"""Characters of a field that go into a property; record.json has all of it."""


def bom(reading: Reading) -> bytes:
    """The document's bytes: the same for the same record and audience."""
    seal = reading.seal
    component = _model(reading)
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{seal} {reading.audience}')}",
        "version": 1,
        "metadata": {
            "timestamp": reading.head["sealed_at"],
            "tools": {"components": [{"type": "application", "name": "Cohort"}]},
            "component": component,
            "properties": [
                {"name": "cohort:seal", "value": seal},
                {"name": "cohort:record_root", "value": reading.document["record_root"]},
                {"name": "cohort:audience", "value": reading.audience},
            ],
        },
        "components": list(_datasets(reading)),
    }
    base = _base(reading)
    parts = ([base["bom-ref"]] if base else []) + [dataset["bom-ref"] for dataset in document["components"]]
    document["dependencies"] = [{"ref": component["bom-ref"], "dependsOn": parts}]
    return json.dumps(document, ensure_ascii=False, sort_keys=True, indent=2).encode() + b"\n"


def _model(reading: Reading) -> dict[str, Any]:
    head = reading.head
    base = _base(reading)
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": _plain(head["title"]),
        "version": f"run {head['run']}, end {head['end']}, record version {head['version']}",
        "description": _plain(reading.text("subject.outcome") or f"The run {head['state']}."),
        "modelCard": {
            "modelParameters": _parameters(reading),
            "quantitativeAnalysis": {"performanceMetrics": list(_metrics(reading))},
            "considerations": _considerations(reading),
            "properties": list(_properties(reading)),
        },
    }
    if base is not None:
        component["pedigree"] = {"ancestors": [base]}
        if notes := reading.text("subject.lineage"):
            component["pedigree"]["notes"] = _plain(notes)
    return component | _files(reading.weights, "weights")


def _base(reading: Reading) -> dict[str, Any] | None:
    """The model that training began with; None where it is withheld from this audience."""
    entry = reading.filled_entry("subject.base_model")
    if entry is None:
        return None
    value = entry["value"] if isinstance(entry["value"], Mapping) else {}
    # Of a registered checkpoint the source is a path inside a run's directory, which says nothing elsewhere.
    named_by = ("name",) if "trained_by" in value else ("source", "path", "name")
    name = next(filter(None, map(value.get, named_by)), entry["text"])
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "base-model",
        "name": _plain(name),
        "description": _plain(entry["text"]),
    }
    if value.get("revision"):
        component["version"] = _plain(value["revision"])
    files = value.get("checkpoint") or value.get("weights") or {}
    weights = {name: digest for name, digest in files.items() if _is_digest(digest)}
    return component | _files(weights, "base-weights")


def _files(weights: Mapping[str, str], ref: str) -> dict[str, Any]:
    """A component's data on its weights: the hash of the only file, or a component for each."""
    if len(weights) == 1:
        return {"hashes": _hashes(*weights.values())}
    files = [
        {"type": "file", "name": _plain(name), "bom-ref": f"{ref}/{number}", "hashes": _hashes(digest)}
        for number, (name, digest) in enumerate(sorted(weights.items()), start=1)
    ]
    return {"components": files} if files else {}


def _parameters(reading: Reading) -> dict[str, Any]:
    parameters: dict[str, Any] = {"task": "text-generation"}
    if reading.value("subject.training_method") != "none":
        parameters["approach"] = {"type": "reinforcement-learning"}
    if architecture := reading.value("subject.base_model", "architecture"):
        parameters["modelArchitecture"] = _plain(architecture)
    if refs := [{"ref": dataset["bom-ref"]} for dataset in _datasets(reading)]:
        parameters["datasets"] = refs
    return parameters


def _datasets(reading: Reading) -> Iterator[dict[str, Any]]:
    """Training and held-out problems, and every other suite: components of type data."""
    for ref, path, default in (
        ("training-prompts", "data.prompts", "training prompts"),
        ("held-out-problems", "data.heldout", "held-out problems"),
    ):
        entry = reading.filled_entry(path)
        if entry is None or entry["source"] == "not applicable":
            continue
        value = entry["value"] if isinstance(entry["value"], Mapping) else {}
        yield _data(ref, value.get("dataset") or default, entry["text"], value.get("sha256"))
    for number, comparison in enumerate(reading.comparisons, start=1):
        if comparison["suite"] == "heldout":
            continue
        title = comparison.get("title") or comparison["suite"]
        text = f"{title}, {comparison['problems']} items, category {comparison['category']}"
        yield _data(f"suite/{number}", comparison["suite"], text, comparison["protocol"].get("sha256"))


def _data(ref: str, name: object, text: object, digest: object) -> dict[str, Any]:
    content: dict[str, Any] = {"type": "dataset", "name": _plain(name), "description": _plain(text)}
    component = {"type": "data", "bom-ref": ref, "name": _plain(name), "data": [content]}
    return component | ({"hashes": _hashes(str(digest))} if _is_digest(digest) else {})


def _metrics(reading: Reading) -> Iterator[dict[str, Any]]:
    """Scores before and after with their intervals, the difference, and each slice after training."""
    for comparison in reading.comparisons:
        for phase in ("before", "after"):
            if (side := comparison[phase]) is not None:
                yield _metric(f"{comparison['suite']}: score {phase} training", side["share"], side["interval"])
        if (change := comparison["change"]) is not None:
            yield _metric(f"{comparison['suite']}: after minus before", change["difference"], change["interval"])
        for part in comparison.get("slices", ()):
            if (side := part["after"]) is not None:
                name = f"{comparison['suite']}: score after training"
                yield {**_metric(name, side["share"], side["interval"]), "slice": _plain(part["slice"])}


def _metric(kind: str, value: float, interval: Mapping[str, float]) -> dict[str, Any]:
    bounds = {"lowerBound": f"{interval['low']:.6g}", "upperBound": f"{interval['high']:.6g}"}
    return {"type": _plain(kind), "value": f"{value:.6g}", "confidenceInterval": bounds}


def _considerations(reading: Reading) -> dict[str, Any]:
    considerations: dict[str, Any] = {}
    limits = [entry for path in _LIMITATIONS if (entry := reading.filled_entry(path)) is not None]
    if limits:
        considerations["technicalLimitations"] = [_plain(f"{entry['text']} ({entry['source']})") for entry in limits]
    kept = [
        {"name": f"cohort:{path}", "value": _plain(text)}
        for path in ("budget.energy", "budget.compute")
        if (text := reading.text(path))
    ]
    if kept:
        considerations["environmentalConsiderations"] = {"properties": kept}
    return considerations


def _properties(reading: Reading) -> Iterator[dict[str, str]]:
    for path in _PROPERTIES:
        entry = reading.filled_entry(path)
        if entry is not None:
            yield {"name": f"cohort:{path}", "value": _plain(entry["text"])}
            yield {"name": f"cohort:{path}:source", "value": _plain(entry["source"])}


def _plain(text: object) -> str:
    """Text without the characters that steer a terminal; cut, with a note of it, at `_TEXT`."""
    clean = printable(str(text))
    return clean if len(clean) <= _TEXT else f"{clean[:_TEXT]}… (cut here; whole in record.json)"


def _hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and all(sign in "0123456789abcdef" for sign in text)
