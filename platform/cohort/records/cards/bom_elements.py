"""The G7's "SBOM for AI, minimum elements" (BSI and partners, May 2026) in bom.cdx.json: where each element of its
seven clusters is, and which nobody stated.

Names of elements are those of the schema shiftleftcyber/ai-bom 1.0.0, which is made from that text. CycloneDX 1.7 has
no list of them, so the document carries this map itself, as properties `cohort:element:<cluster>.<element>`.
`securityAssurance` is what they call by a word that no card uses, as it reads like a judgement.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.records.cards.bom_parts import NO_LICENCE, NOT_ASSERTED
from cohort.records.cards.reading import Reading

_MODEL = "metadata.component"
_CARD = f"{_MODEL}.modelCard"
_DATA = "components[data]"
NOT_STATED, WITHHELD = "not stated", "withheld from this audience"


@dataclass(frozen=True)
class Element:
    cluster: str
    name: str
    paths: tuple[str, ...]
    """Where it is in the document, the first of them that is filled: keys joined by full stops; `[data]` means each
    component of that type. Empty: a run's record has nothing to fill it from."""
    fields: tuple[str, ...] = ()
    """Fields of the record that fill it: where one of them is withheld from the audience, so is the element."""

    @property
    def key(self) -> str:
        return f"cohort:element:{self.cluster}.{self.name}"


ELEMENTS = (
    Element("metadata", "sbomAuthor", ("metadata.manufacturer.name",)),
    Element("metadata", "sbomVersion", ("version",)),
    Element("metadata", "sbomDataFormatName", ("bomFormat",)),
    Element("metadata", "sbomDataFormatVersion", ("specVersion",)),
    Element("metadata", "sbomAuthorSignature", ("externalReferences",)),
    Element("metadata", "sbomToolName", ("metadata.tools.components[application].name",)),
    Element("metadata", "sbomToolVersion", ("metadata.tools.components[application].version",)),
    Element("metadata", "sbomGenerationContext", ("metadata.lifecycles",)),
    Element("metadata", "sbomTimestamp", ("metadata.timestamp",)),
    Element("metadata", "sbomDependencyRelationships", ("dependencies",)),
    Element("system", "systemName", (f"{_MODEL}.name",)),
    Element("system", "systemComponents", ("components",)),
    Element("system", "systemProducer", (f"{_MODEL}.manufacturer.name", f"{_MODEL}.supplier.name"), ("subject.run",)),
    Element("system", "systemVersion", (f"{_MODEL}.version",)),
    Element("system", "systemTimestamp", ("metadata.timestamp",)),
    Element("system", "systemDataFlow", ()),
    Element("system", "systemDataUsage", ()),
    Element("system", "systemInputOutputProperties", (f"{_CARD}.modelParameters.inputs",)),
    Element("system", "intendedApplicationArea", ()),
    Element("models", "modelName", (f"{_MODEL}.name",)),
    Element("models", "modelIdentifiers", (f"{_MODEL}.purl",)),
    Element("models", "modelVersion", (f"{_MODEL}.version",)),
    Element("models", "modelTimestamp", ("metadata.timestamp",)),
    Element("models", "modelProducers", (f"{_MODEL}.manufacturer.name", f"{_MODEL}.supplier.name"), ("subject.run",)),
    Element("models", "modelDescription", (f"{_MODEL}.description",), ("subject.outcome",)),
    Element("models", "modelHashValue", (f"{_MODEL}.hashes",)),
    Element("models", "modelHashAlgorithm", (f"{_MODEL}.hashes",)),
    Element("models", "modelProperties", (f"{_CARD}.modelParameters.modelArchitecture",), ("subject.base_model",)),
    Element("models", "modelInputOutputProperties", (f"{_CARD}.modelParameters.inputs",)),
    Element("models", "modelTrainingProperties", (f"{_CARD}.modelParameters.approach",), ("subject.training_method",)),
    Element("models", "modelLicense", (f"{_MODEL}.licenses",)),
    Element("models", "modelExternalReferences", (f"{_MODEL}.externalReferences",)),
    Element("datasets", "datasetName", (f"{_DATA}.name",), ("data.prompts",)),
    Element("datasets", "datasetDescription", (f"{_DATA}.description",), ("data.prompts",)),
    Element("datasets", "datasetContent", (f"{_DATA}.data",), ("data.prompts",)),
    Element("datasets", "datasetIdentifiers", (f"{_DATA}.purl",), ("data.prompts",)),
    Element("datasets", "datasetHash", (f"{_DATA}.hashes",), ("data.prompts",)),
    Element("datasets", "datasetProvenance", (f"{_DATA}.pedigree.notes",), ("data.provenance",)),
    Element("datasets", "datasetStatisticalProperties", (f"{_DATA}.properties",), ("data.prompts",)),
    Element("datasets", "datasetSensitivity", ()),
    Element("datasets", "datasetDependencyRelationships", ("dependencies",)),
    Element("datasets", "datasetLicense", (f"{_DATA}.licenses",)),
    Element("infrastructure", "infrastructureSoftware", ("components[library].version",), ("environment.packages",)),
    Element("infrastructure", "infrastructureHardware", ("components[device].description",), ("environment.machine",)),
    Element("security", "securityControls", ()),
    Element("security", "securityAssurance", ()),
    Element("security", "cybersecurityPolicyInformation", ()),
    Element("security", "vulnerabilityReferencing", ()),
    Element("key figures", "securityMetrics", (f"{_CARD}.quantitativeAnalysis.securityMetrics",)),
    Element(
        "key figures", "operationalPerformanceKpis", (f"{_CARD}.quantitativeAnalysis.performanceMetrics",),
        ("behaviour.performance",),
    ),
)  # fmt: skip


def element_properties(document: Mapping[str, Any], reading: Reading) -> Iterator[dict[str, str]]:
    """A property for each element: where it is, of how many parts where not of all, or why it is not there."""
    for element in ELEMENTS:
        yield {"name": element.key, "value": _value(element, document, reading)}


def _value(element: Element, document: Mapping[str, Any], reading: Reading) -> str:
    for path in element.paths:
        reached = list(reach(document, path))
        filled = sum(value not in (None, "", [], {}, NOT_ASSERTED, NO_LICENCE) for value in reached)
        if filled:
            return path if filled == len(reached) else f"{path} (of {filled} of {len(reached)})"
    withheld = any(reading.withheld(path) for path in element.fields)
    return WITHHELD if withheld else NOT_STATED


def reach(value: Any, path: str) -> Iterator[Any]:
    """The values at `path`: one, or as many as there are components of the type that it names; None where a key is
    missing."""
    key, _, rest = path.partition(".")
    name, _, kind = key.partition("[")
    inner = value.get(name) if isinstance(value, Mapping) else None
    of_kind = [part for part in inner or () if part["type"] == kind.removesuffix("]")] if kind else [inner]
    for part in of_kind:
        if rest:
            yield from reach(part, rest)
        else:
            yield part
