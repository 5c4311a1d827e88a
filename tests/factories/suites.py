"""Suites for the tests of pages and services, made through the service that the form calls."""

import json
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.suites import GivenFile, Spec, suite_version_create

CAPITALS = [("france", "Paris"), ("italy", "Rome"), ("japan", "Tokyo")]
ITEMS = b"".join(
    json.dumps({"id": country, "prompt": f"What is the capital of {country}?", "target": city}).encode() + b"\n"
    for country, city in CAPITALS
)
SPEC = Spec(
    title="Capitals",
    category="hallucination",
    scorer={"kind": "contains", "params": {}},
    higher_is="better",
    sensitive=False,
    margin=0.1,
    limits="Three items tell little.",
    source="made for the tests",
    licence="CC0",
)
HARMFUL = Spec(
    title="Locks",
    category="harmful_capability",
    scorer={"kind": "choice", "params": {}},
    higher_is="worse",
    sensitive=True,
    margin=0.05,
)
CHOICES = b"".join(
    json.dumps(
        {
            "id": f"lock-{n}",
            "prompt": f"SECRET question {n}?",
            "choices": ["a pick", "a spoon"],
            "target": "A",
            "slice": "odd" if n % 2 else "even",
        }
    ).encode()
    + b"\n"
    for n in range(4)
)


def add_suite(
    project: Project,
    actor: User,
    name: str = "capitals",
    *,
    spec: Spec = SPEC,
    content: bytes = ITEMS,
    format: str = "jsonl",
    **more: Any,
) -> EvalSuiteVersion:
    files = [GivenFile("items.jsonl", content)]
    return suite_version_create(project=project, actor=actor, name=name, spec=spec, format=format, files=files, **more)


def upload(
    client: Client, *files: tuple[str, bytes], address: str = "/p/ours/suites/new/", **said: str | list[str]
) -> Any:
    """What the form sends; `said` goes before what it would be for a suite of our own items."""
    data = {
        "name": "capitals",
        "title": "Capitals",
        "format": "jsonl",
        "category": "hallucination",
        "scorer": "contains",
        "higher_is": "better",
        "sensitive": "no",
        "margin": "0.1",
    }
    sent = [SimpleUploadedFile(name, content) for name, content in files]
    return client.post(address, {**data, **said, "upload": sent})
