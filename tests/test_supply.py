"""docker/*.lock hold what an image needs, as it is tested, each with its hashes; the SBOM made of them is valid."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.sbom import IMAGES, ROOT, packages, pins

EXTRAS = {"web": ("platform",), "worker": ("worker", "train")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILD = PROJECT["build-system"]["requires"]


def of_torch(name: str) -> bool:
    """Whether torch's build for GPUs pins it, which is not the one here."""
    return name.startswith(("nvidia-", "cuda-", "triton"))


def needed(image: str) -> list[Requirement]:
    project = PROJECT["project"]
    extras = [text for extra in EXTRAS[image] for text in project["optional-dependencies"][extra]]
    return [Requirement(text) for text in (*project["dependencies"], *extras, *BUILD)]


def closure(image: str) -> set[str]:
    """All that these need on Linux, as far as it is installed here."""
    left, seen = needed(image), set[tuple[str, str]]()
    while left:
        wanted = left.pop()
        for extra in ("", *wanted.extras):
            if (known := (canonicalize_name(wanted.name), extra)) in seen:
                continue
            seen.add(known)
            try:
                further = [Requirement(text) for text in requires(wanted.name) or []]
            except PackageNotFoundError:
                continue
            here = {"extra": extra, "sys_platform": "linux"}
            left += [need for need in further if need.marker is None or need.marker.evaluate(here)]
    return {name for name, _ in seen}


@pytest.mark.parametrize("image", IMAGES)
def test_a_lock_has_all_that_its_image_needs_as_tested_and_with_hashes(image: str) -> None:
    locked = {pin.name: pin for pin in pins(image)}
    assert sorted(closure(image) - set(locked)) == [], "run: make lock"
    assert [text for text in needed(image) if locked[canonicalize_name(text.name)].version not in text.specifier] == []
    tested = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    tested = {canonicalize_name(name): version for name, version in tested.items()}
    other = {name: pin.version for name, pin in locked.items() if tested.get(name) != pin.version}
    assert [name for name in other if not of_torch(name)] == []
    assert [pin.name for pin in locked.values() if not pin.hashes] == []


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_nothing_but_what_its_lock_has(image: str) -> None:
    """Each call of pip either checks hashes or reaches no index."""
    lines = (ROOT / "docker" / f"{image}.Dockerfile").read_text(encoding="utf-8").splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) == 2
    assert [line for line in installs if "--require-hashes" not in line and "--no-index --no-deps" not in line] == []


def test_pip_refuses_a_file_that_the_lock_does_not_know(tmp_path: Path) -> None:
    """With the options of the images, on an index of one package."""
    wheel = tmp_path / "rfc8785-0.1.4-py3-none-any.whl"
    wheel.write_bytes(b"another file")
    lock = tmp_path / "lock"
    digest = next(pin for pin in packages() if pin.name == "rfc8785").hashes[0]
    lock.write_text(f"rfc8785==0.1.4 --hash=sha256:{digest}\n")
    words = [sys.executable, "-m", "pip", "install", "--only-binary", ":all:", "--require-hashes", "--no-deps"]
    more = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "to"), "--requirement", str(lock)]
    done = subprocess.run([*words, *more], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "HASH" in done.stderr


def test_the_sbom_is_valid_and_names_every_locked_package(tmp_path: Path) -> None:
    target = tmp_path / "sbom.json"
    done = subprocess.run([sys.executable, "-m", "tests.sbom", str(target)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = target.read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    shown = {part["name"]: part for part in document["components"]}
    locked = {pin.name: pin for pin in packages()}
    assert {name: part["version"] for name, part in shown.items()} == {pin.name: pin.version for pin in packages()}
    for name, part in shown.items():
        (files,) = part["externalReferences"]
        assert sorted(row["content"] for row in files["hashes"]) == sorted(set(locked[name].hashes)), name
    without = [name for name, part in shown.items() if "licenses" not in part]
    assert [name for name in without if not of_torch(name) and name != "async-timeout"] == []
    (own,) = [row for row in document["dependencies"] if row["ref"] == document["metadata"]["component"]["bom-ref"]]
    assert len(own["dependsOn"]) == len(shown)
