"""Writes of evaluation suites: a version from uploaded files, and the starter suites that come with Cohort.

Input is checked completely first; an error stores nothing and is raised as ValidationError keyed by its field.
"""

import hashlib
import io
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from django.core.exceptions import ValidationError
from django.db import transaction
from pydantic import ValidationError as PydanticError

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project
from cohort.audit import services as audit
from cohort.base import artifacts
from cohort.catalog.models import EvalSuite, EvalSuiteVersion, suite_version_added
from cohort.catalog.services import require_upload_room
from grpo_core.config.evaluation import Category, ScorerConfig, SuiteConfig
from grpo_core.config.messages import field_problems
from grpo_core.data.lines import lines_of
from grpo_core.errors import ConfigError, DataError
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorer import SCORERS as SUITE_SCORERS
from grpo_core.evaluate.scorer import Scorer, scorer
from grpo_core.evaluate.suites.formats import FORMATS, convert
from grpo_core.evaluate.suites.load import starters
from grpo_core.evaluate.suites.reader import scan_items
from grpo_core.rewards import KINDS

CATEGORIES: dict[str, str] = {name: name.replace("_", " ") for name in get_args(Category)}
"""In words."""

SAFETY = frozenset({"hallucination", "refusal_calibration", "jailbreak_robustness", "harmful_capability"})
"""Tested together: their p values are adjusted for there being several."""

SCORERS: dict[str, str] = {name: KINDS[kind].summary for name, (kind, _) in SUITE_SCORERS.items()}

HARM = {
    "better": "harm is a fall of the score",
    "worse": "harm is a rise of the score",
    "neutral": "neither way counts as harm",
}


log = logging.getLogger(__name__)

MAX_SUITE_BYTES = 64 * 1024 * 1024
"""All files of one version together. They are converted in memory."""
MAX_SUITE_ITEMS = 100_000
PREVIEW_ITEMS = 5
PREVIEW_CHARS = 1000
DEFAULT_MARGIN = 0.05
_OF_THE_CONFIG = ("title", "category", "scorer", "higher_is", "sensitive", "margin")


@dataclass(frozen=True)
class Spec:
    """Metadata of a suite, as a person gives it; without its items."""

    title: str
    category: str
    scorer: Mapping[str, Any]
    """{kind, params}, as grpo_core.config.evaluation.ScorerConfig."""
    higher_is: str
    sensitive: bool
    margin: float
    limits: str = ""
    source: str = ""
    licence: str = ""


@dataclass(frozen=True)
class GivenFile:
    name: str
    content: bytes

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "sha256": hashlib.sha256(self.content).hexdigest(), "size": len(self.content)}


def suite_version_create(
    *,
    project: Project,
    actor: User | None,
    name: str,
    spec: Spec,
    format: str,
    files: Sequence[GivenFile],
    limit: int | None = None,
    attacks: Sequence[str] = (),
    reason: str = "",
) -> EvalSuiteVersion:
    """A new version of the suite `name`, which is made when there is none yet. When the newest version is exactly the
    same, that one is returned and nothing is written. `limit` and `attacks` as `grpo_core.evaluate.suites.convert`;
    `reason` goes into the audit log."""
    if format not in FORMATS:
        raise ValidationError({"format": f"{format!r} is not a format; there are {', '.join(FORMATS)}."})
    if not files:
        raise ValidationError({"upload": "A suite needs a file with its items."})
    if (size := sum(len(file.content) for file in files)) > MAX_SUITE_BYTES:
        raise ValidationError(
            {"upload": f"The files are {size:,} bytes; a suite takes at most {MAX_SUITE_BYTES:,}. Take a sample of it."}
        )
    try:
        given = [(file.name, file.content) for file in files]
        content = convert(format, given, limit=limit, attacks=attacks, most=MAX_SUITE_ITEMS)
    except DataError as error:
        raise ValidationError({"upload": str(error)}) from None
    except ConfigError as error:  # an unknown attack, or several files where one is read
        raise ValidationError({"upload": _sentence(str(error))}) from None
    if format == "jsonl" and limit is None and not attacks:
        content = files[0].content  # unchanged, so that messages and digests refer to the file itself
    if len(content) > MAX_SUITE_BYTES:
        raise ValidationError(
            {"upload": f"The items made of it are {len(content):,} bytes; at most {MAX_SUITE_BYTES:,} are taken."}
        )
    taken = {"limit": limit, "attacks": list(attacks)} if limit is not None or attacks else {}
    described = [file.as_dict() for file in files]
    return _create(project, actor, name, spec, content, format=format, files=described, taken=taken, reason=reason)


def suite_item_add(
    *, version: EvalSuiteVersion, actor: User, item: Mapping[str, str], reason: str = ""
) -> EvalSuiteVersion:
    """A new version of the suite with one more item {id, prompt, target} and fields that nothing reads, such as its
    source. Raises ValidationError keyed by `suite`, and as `suite_version_create`, which checks the target against the
    suite's scorer."""
    if version.builtin:
        raise ValidationError({"suite": "A starter suite stays as it comes; choose one of your own."})
    content = b"".join(artifacts.read_chunks(version.artifact))
    for other in scan_items(lines_of(io.BytesIO(content), version.suite.name), scorer=None, source=version.suite.name):
        if _folded(other.prompt) == _folded(item["prompt"]):
            raise ValidationError({"suite": f"{version} has this prompt already, as item {other.id!r}."})
    line = json.dumps(dict(item), ensure_ascii=False).encode()
    whole = b"".join((content, b"" if not content or content.endswith(b"\n") else b"\n", line, b"\n"))
    same = {field.name: getattr(version, field.name) for field in fields(Spec)}
    return suite_version_create(
        project=version.suite.project,
        actor=actor,
        name=version.suite.name,
        spec=Spec(**same),
        format="jsonl",
        files=[GivenFile(f"{version.suite.name}.jsonl", whole)],
        reason=reason,
    )


def _folded(prompt: str) -> str:
    """Prompts that differ in white space and letter case alone are one."""
    return " ".join(prompt.casefold().split())


@dataclass(frozen=True)
class StartersAdded:
    added: list[EvalSuiteVersion]
    present: list[str]
    """Names of those that the project already had unchanged."""
    in_the_way: list[str]
    """Names that suites of the project's own have taken."""


def starters_add(*, project: Project, actor: User | None, names: Iterable[str] | None = None) -> StartersAdded:
    """Add the starter suites, or those named, to the project: each once, and a new version where a newer Cohort has
    other items. A suite of the project's own under the same name stays as it is."""
    known = {starter.name: starter for starter in starters()}
    chosen = set(known) if names is None else set(names)
    if unknown := sorted(chosen - set(known)):
        raise ValidationError({"names": f"There is no starter suite {unknown[0]!r}; there are {', '.join(known)}."})
    result = StartersAdded([], [], [])
    for name in sorted(chosen):
        starter, newest = known[name], newest_version(project, name)
        if newest is not None and not newest.builtin:
            result.in_the_way.append(name)
            continue
        same = ("title", "category", "higher_is", "sensitive", "limits", "source", "licence")
        spec = Spec(
            **{field: getattr(starter, field) for field in same},
            scorer=starter.scorer.model_dump(mode="json"),
            margin=DEFAULT_MARGIN,
        )
        version = _create(project, actor, name, spec, starter.content, format="jsonl", files=[], builtin=name)
        if newest is not None and version.pk == newest.pk:
            result.present.append(name)
        else:
            result.added.append(version)
    return result


def newest_version(project: Project, name: str) -> EvalSuiteVersion | None:
    versions = EvalSuiteVersion.objects.filter(suite__project=project, suite__name=name)
    return versions.select_related("suite").order_by("-number").first()


def _create(
    project: Project,
    actor: User | None,
    name: str,
    spec: Spec,
    content: bytes,
    *,
    format: str,
    files: list[dict[str, Any]],
    taken: dict[str, Any] | None = None,
    builtin: str = "",
    reason: str = "",
) -> EvalSuiteVersion:
    """`content` is the items' file as it is stored and handed to workers."""
    config, checked = _scorer(name, spec)
    surveyed = _survey(content, checked, files[0]["name"] if len(files) == 1 else name)
    columns: dict[str, Any] = {**asdict(spec), "scorer": config.model_dump(mode="json"), "builtin": builtin}
    columns |= {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "format": format, "files": files}
    columns["taken"] = taken or {}
    with transaction.atomic():
        # The project's row orders those who make versions at the same time; a new name has no row to lock.
        project = lock_project(project)
        suite = EvalSuite.objects.filter(project=project, name=name).first()
        if suite is None:
            suite = EvalSuite.objects.create(project=project, name=name)
        newest = suite.versions.order_by("-number").first()
        if newest is not None and all(getattr(newest, field) == value for field, value in columns.items()):
            return newest
        require_upload_room(project, len(content), field="upload")
        version = EvalSuiteVersion(
            suite=suite, number=newest.number + 1 if newest else 1, created_by=actor, **columns, **surveyed
        )
        version.clean_fields(exclude={"suite", "created_by", "files", "taken", "preview", "slices", "scorer"})
        if not artifacts.exists(version.artifact):
            artifacts.put(version.artifact, [content])
        version.save()
        suite_version_added.send(sender=EvalSuiteVersion, version=version)
        audit.log(
            actor=audit.who(actor),
            kind="suite_version_added",
            subject=f"suite:{name}",
            project=project,
            reason=reason,
            before={"version": newest.number, "sha256": newest.sha256} if newest else None,
            after={"version": version.number, "items": version.items}
            | {field: columns[field] for field in ("sha256", "category", "scorer", "higher_is", "sensitive", "margin")},
        )
    log.info("suite %r version %d of %d items stored in %r", name, version.number, version.items, project.slug)
    return version


def _scorer(name: str, spec: Spec) -> tuple[ScorerConfig, Scorer]:
    """The spec's scorer, once the whole spec has been checked. A SuiteConfig checks it, so that what is
    stored can be put into a run's config unchanged."""
    faults: dict[str, list[str]] = {}
    given = {"name": name, "path": "inputs/items.jsonl", **{key: getattr(spec, key) for key in _OF_THE_CONFIG}}
    config = None
    try:
        config = SuiteConfig.model_validate(given)
    except PydanticError as error:
        for problem in field_problems(error, model=SuiteConfig):
            faults.setdefault(_field(problem.path), []).append(problem.message)
    if config is not None:
        try:
            return config.scorer, scorer(config.scorer.kind, config.scorer.params)
        except ConfigError as error:
            for problem in error.problems:
                inner = problem.path.removeprefix("params").lstrip(".")
                faults.setdefault("params", []).append(": ".join(filter(None, (inner, problem.message))))
            if not error.problems:
                faults["params"] = [str(error)]
    raise ValidationError({field: list(map(_sentence, messages)) for field, messages in faults.items()})


def _field(path: str) -> str:
    """The form's field that a fault of the SuiteConfig belongs to."""
    first, _, rest = path.partition(".")
    return ("params" if rest.startswith("params") else "scorer") if first == "scorer" else first or "name"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _survey(content: bytes, checked: Scorer, source: str) -> dict[str, Any]:
    """Read every item once: how many, their clusters and slices, the first few. Raises ValidationError of `upload`."""
    items, clusters, slices = 0, set[str](), Counter[str]()
    preview: list[dict[str, Any]] = []
    try:
        for item in scan_items(lines_of(io.BytesIO(content), source), scorer=checked, source=source):
            items += 1
            if items > MAX_SUITE_ITEMS:
                raise DataError(f"{source} holds more than {MAX_SUITE_ITEMS:,} items. Take a sample of it.")
            slices.update([item.slice] if item.slice else [])
            clusters.update([item.cluster] if item.cluster else [])
            if len(preview) < PREVIEW_ITEMS:
                preview.append(shown(item))
    except DataError as error:
        raise ValidationError({"upload": str(error)}) from None
    return {"items": items, "clusters": len(clusters), "slices": dict(slices), "preview": preview}


def shown(item: SuiteItem) -> dict[str, Any]:
    """An item as a preview holds it."""
    return {
        "id": item.id,
        "prompt": _cut(item.prompt),
        "target": _cut(item.answer()),
        "choices": [_cut(choice) for choice in item.choices],
        "slice": item.slice,
        "attack": item.attack,
    }


def _cut(text: str) -> str:
    return text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"
