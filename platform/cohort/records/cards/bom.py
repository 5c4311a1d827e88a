"""bom.cdx.json: the trained model as a CycloneDX 1.7 ML-BOM, with its model card.

CycloneDX's Python library has no model card, so the document is put together by hand; a test checks it with the
library's strict validator. CycloneDX has no fields for a run's settings: they are properties `cohort:…`.
Metric values and bounds are text there.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from cohort import __version__
from cohort.evidence.model_signing import CARD_BUNDLE, WEIGHTS_BUNDLE, digest_of
from cohort.records.cards.bom_elements import element_properties
from cohort.records.cards.bom_parts import (
    declared,
    generic_purl,
    hashes,
    hub_purl,
    infrastructure,
    is_digest,
    plain,
    properties,
)
from cohort.records.cards.reading import Reading
from cohort.records.fields import FIELDS

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
_APPROACHES = {
    "grpo": "reinforcement-learning", "sft": "supervised", "distill": "supervised", "reward_model": "supervised",
}  # fmt: skip
"""Kind of run → how it learned; sampling learns nothing."""
_LIMITATIONS = (
    "reward.brittleness", "data.decontamination", "behaviour.benchmark_contamination", "behaviour.safety_regressions",
)  # fmt: skip
BEHAVIOUR = {
    "hallucination": "hallucination", "refusal_calibration": "refusal calibration",
    "jailbreak_robustness": "jailbreak robustness", "harmful_capability": "harmful capabilities",
    "multilingual": "multilingual behaviour", "tool_use": "use of tools",
}  # fmt: skip


def bom(reading: Reading) -> bytes:
    """The document's bytes: the same for the same record and audience."""
    seal = reading.seal
    component = declared(_model(reading))
    parts = [declared(part) for part in (*_datasets(reading), *infrastructure(reading))]
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{seal} {reading.audience}')}",
        "version": 1,
        "metadata": {
            "timestamp": reading.head["sealed_at"],
            "lifecycles": [{"phase": "post-build"}],
            "tools": {"components": [{"type": "application", "name": "Cohort", "version": __version__}]},
            "manufacturer": {"name": _platform(reading)},
            "component": component,
            "properties": [
                {"name": "cohort:seal", "value": seal},
                {"name": "cohort:record_root", "value": reading.document["record_root"]},
                {"name": "cohort:audience", "value": reading.audience},
            ],
        },
        "components": parts,
        "externalReferences": [{"type": "digital-signature", "url": CARD_BUNDLE}, *_OF_THE_CARD],
    }
    base = _base(reading)
    refs = ([base["bom-ref"]] if base else []) + [part["bom-ref"] for part in parts]
    document["dependencies"] = [{"ref": component["bom-ref"], "dependsOn": refs}, *({"ref": ref} for ref in refs)]
    document["compositions"] = [{"aggregate": "unknown", "dependencies": [component["bom-ref"], *refs]}]
    document["properties"] = list(element_properties(document, reading))
    return json.dumps(document, ensure_ascii=False, sort_keys=True, indent=2).encode() + b"\n"


def _platform(reading: Reading) -> str:
    return plain(f"Cohort platform with the log {reading.log}")


_OF_THE_CARD = (
    {"type": "attestation", "url": "attestation.dsse.json"},
    {"type": "log", "url": "log-entry.json"},
    {"type": "evidence", "url": "record.json"},
)
"""What in the card vouches for this document."""


def _model(reading: Reading) -> dict[str, Any]:
    head = reading.head
    base = _base(reading)
    version = f"run {head['run']}, end {head['end']}, record version {head['version']}"
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": plain(head["title"]),
        "version": version,
        "purl": generic_purl(f"cohort-run-{head['run']}", f"{head['end']}.{head['version']}", reading.weights),
        "description": plain(reading.text("subject.outcome") or f"The run {head['state']}."),
        "externalReferences": [{"type": "model-card", "url": "CARD.md"}],
        "modelCard": {
            "modelParameters": _parameters(reading),
            "quantitativeAnalysis": {"performanceMetrics": list(_metrics(reading))},
            "considerations": _considerations(reading),
            "properties": list(_properties(reading)),
        },
    }
    component["supplier"] = {"name": _platform(reading)}
    if project := reading.value("subject.run", "project"):
        component["manufacturer"] = {"name": plain(f"project {project}")}
    if base is not None:
        component["pedigree"] = {"ancestors": [declared(base)]}
        if notes := reading.text("subject.lineage"):
            component["pedigree"]["notes"] = plain(notes)
    if reading.weights:
        component["externalReferences"].append({"type": "digital-signature", "url": WEIGHTS_BUNDLE})
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
    files = value.get("checkpoint") or value.get("weights") or {}
    weights = {name: digest for name, digest in files.items() if is_digest(digest)}
    revision = str(value.get("revision") or "")
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "base-model",
        "name": plain(name),
        "purl": hub_purl(str(name), revision) or generic_purl(str(value.get("name") or name), revision, weights),
        "description": plain(entry["text"]),
    }
    if revision:
        component["version"] = plain(revision)
    return component | _files(weights, "base-weights")


def _files(weights: Mapping[str, str], ref: str) -> dict[str, Any]:
    """A component's data on its weights: the hash of the only file; of several a component for each, and the digest
    over their digests in the order of their names, which a model signing bundle has as its subject."""
    if len(weights) == 1:
        return {"hashes": hashes(*weights.values())}
    files = [
        {"type": "file", "name": plain(name), "bom-ref": f"{ref}/{number}", "hashes": hashes(digest)}
        for number, (name, digest) in enumerate(sorted(weights.items()), start=1)
    ]
    return {"components": files, "hashes": hashes(digest_of(dict(sorted(weights.items())).values()))} if files else {}


def _parameters(reading: Reading) -> dict[str, Any]:
    text = [{"format": "text"}]
    parameters: dict[str, Any] = {"task": "text-generation", "inputs": text, "outputs": text}
    if reading.kind == "reward_model":
        parameters |= {"task": "text-classification", "outputs": [{"format": "number"}]}
    if reading.value("subject.training_method") != "none" and reading.kind in _APPROACHES:
        parameters["approach"] = {"type": _APPROACHES[reading.kind]}
    if architecture := reading.value("subject.base_model", "architecture"):
        parameters["modelArchitecture"] = plain(architecture)
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
        figures = {"problems": value.get("problems"), **_lengths(value.get("prompt_tokens"))}
        component = _data(ref, value.get("dataset") or default, entry["text"], value.get("sha256"), figures)
        provenance = reading.filled_entry("data.provenance")
        if ref == "training-prompts" and provenance is not None:
            component["pedigree"] = {"notes": plain(f"{provenance['text']} ({provenance['source']})")}
        yield component
    for number, comparison in enumerate(reading.comparisons, start=1):
        if comparison["suite"] == "heldout":
            continue
        title = comparison.get("title") or comparison["suite"]
        text = f"{title}, {comparison['problems']} items, category {comparison['category']}"
        figures = {"problems": comparison["problems"], "sensitive": comparison["sensitive"]}
        yield _data(f"suite/{number}", comparison["suite"], text, comparison["protocol"].get("sha256"), figures)


def _lengths(tokens: Any) -> dict[str, object]:
    return {f"prompt_tokens:{name}": tokens[name] for name in sorted(tokens)} if isinstance(tokens, Mapping) else {}


def _data(ref: str, name: object, text: object, digest: object, figures: Mapping[str, object]) -> dict[str, Any]:
    """`figures`: of what the data hold, as the record has them; None where it has none."""
    content: dict[str, Any] = {"type": "dataset", "name": plain(name), "description": plain(text)}
    component: dict[str, Any] = {
        "type": "data", "bom-ref": ref, "name": plain(name), "description": plain(text), "data": [content],
        "properties": properties(figures),
    }  # fmt: skip
    if not is_digest(digest):
        return component | {"purl": generic_purl(str(name), "", {})}
    digests = {"": str(digest)}
    return component | {
        "version": f"sha256:{digest}", "purl": generic_purl(str(name), "", digests), "hashes": hashes(str(digest)),
    }  # fmt: skip


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
                yield {**_metric(name, side["share"], side["interval"]), "slice": plain(part["slice"])}


def _metric(kind: str, value: float, interval: Mapping[str, float]) -> dict[str, Any]:
    bounds = {"lowerBound": f"{interval['low']:.6g}", "upperBound": f"{interval['high']:.6g}"}
    return {"type": plain(kind), "value": f"{value:.6g}", "confidenceInterval": bounds}


def _considerations(reading: Reading) -> dict[str, Any]:
    considerations: dict[str, Any] = {}
    limits = [entry for path in _LIMITATIONS if (entry := reading.filled_entry(path)) is not None]
    listed = [plain(f"{entry['text']} ({entry['source']})") for entry in limits]
    considerations["technicalLimitations"] = [*listed, *_not_evaluated(reading)]
    kept = [
        {"name": f"cohort:{path}", "value": plain(text)}
        for path in ("budget.energy", "budget.compute")
        if (text := reading.text(path))
    ]
    if kept:
        considerations["environmentalConsiderations"] = {"properties": kept}
    return considerations


def _not_evaluated(reading: Reading) -> Iterator[str]:
    """Kinds of behaviour that no suite of the run measured, and what scores leave open."""
    missing = [
        title for name, title in BEHAVIOUR.items()
        if reading.filled_entry(f"behaviour.{name}") is None and reading.withheld(f"behaviour.{name}") is None
    ]  # fmt: skip
    if missing:
        yield f"not evaluated: {', '.join(missing)}"
    yield "scores hold for these problems under this protocol, and for nothing beyond them"


def _properties(reading: Reading) -> Iterator[dict[str, str]]:
    for path in (*_PROPERTIES, *(facts.path for facts in FIELDS["stage"].values())):
        entry = reading.filled_entry(path)
        if entry is not None:
            yield {"name": f"cohort:{path}", "value": plain(entry["text"])}
            yield {"name": f"cohort:{path}:source", "value": plain(entry["source"])}
