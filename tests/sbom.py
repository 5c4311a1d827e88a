"""`make sbom`: what Cohort's images hold, as CycloneDX 1.6, from docker/*.lock, with the licences as installed here.

Names on standard error what has no licence in it: packages that are not installed here, such as torch's for GPUs.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

import cohort

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ("web", "worker")
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass
class Pin:
    """A package of a lock, with the SHA-256 of each of its files."""

    name: str
    version: str
    hashes: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)


def pins(image: str) -> Iterator[Pin]:
    pin: Pin | None = None
    for line in (ROOT / "docker" / f"{image}.lock").read_text(encoding="utf-8").splitlines():
        if match := _PIN.match(line):
            if pin is not None:
                yield pin
            pin = Pin(match["name"], match["version"])
        elif pin is not None:
            pin.hashes += _HASH.findall(line)
    if pin is not None:
        yield pin


def packages() -> list[Pin]:
    """Of all images, each once."""
    known: dict[str, Pin] = {}
    for image in IMAGES:
        for pin in pins(image):
            known.setdefault(pin.name, pin).images.append(image)
    return sorted(known.values(), key=lambda pin: pin.name)


def licence(name: str) -> str:
    """As the package states it: its SPDX expression, else what its field or its classifiers say; empty if neither, or
    where it is not installed."""
    try:
        stated = metadata(name)
    except PackageNotFoundError:
        return ""
    classifiers = [
        line.split(" :: ")[-1] for line in stated.get_all("Classifier") or () if line.startswith("License :: OSI")
    ]
    text = stated.get("License-Expression") or " AND ".join(classifiers) or stated.get("License") or ""
    return text.strip().splitlines()[0] if text.strip() else ""


def component(pin: Pin) -> Component:
    purl = PackageURL("pypi", name=pin.name, version=pin.version)
    stated = licence(pin.name)
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(stated)] if stated else [],
        # Its wheels, of which an installation takes the one for its platform.
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION,
                url=XsUri(str(purl)),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in pin.hashes],
            )
        ],
        properties=[Property(name="cohort:image", value=image) for image in pin.images],
    )


def sbom() -> Bom:
    own = Component(
        name="cohort-grpo",
        version=cohort.__version__,
        type=ComponentType.APPLICATION,
        bom_ref="cohort-grpo",
        licenses=[LicenseFactory().make_from_string("MIT")],
    )
    bom = Bom(components=[component(pin) for pin in packages()])
    bom.metadata.component = own
    bom.register_dependency(own, bom.components)
    return bom


def main() -> int:
    target = Path(sys.argv[1])
    made = sbom()
    target.write_text(JsonV1Dot6(made).output_as_string(indent=1) + "\n", encoding="utf-8")
    unknown = sorted(part.name for part in made.components if not part.licenses)
    print(f"{target}: {len(made.components)} packages")
    if unknown:
        print(f"no licence is known here of {len(unknown)}: {', '.join(unknown)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
