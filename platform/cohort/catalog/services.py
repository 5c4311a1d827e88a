"""Writes to the catalog. Input is checked completely first; an error stores nothing and names its field.

Every function raises ValidationError keyed by the field of its own name, so that a form can put the message there.
"""

import logging
import re
import tempfile
from collections.abc import Iterable
from typing import Any, get_args

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction
from django.db.models import Sum
from django.db.models.functions import Now
from pydantic import ValidationError as PydanticError

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project, require_within
from cohort.audit import services as audit
from cohort.base import artifacts
from cohort.base.environment import environment
from cohort.catalog.dataset_files import content_of, spool, survey
from cohort.catalog.model_folder import read_model_folder
from cohort.catalog.models import (
    BaseModel,
    DatasetContent,
    EvalSuiteVersion,
    PromptDataset,
    Verifier,
    VerifierVersion,
    dataset_added,
)
from grpo_core.config.messages import field_problems
from grpo_core.config.run import DataFormat, RewardConfig
from grpo_core.data.loaders import AS_NAMED
from grpo_core.errors import ConfigError, DataError, FieldProblem, ModelError
from grpo_core.rewards import Rubric
from grpo_core.specs.fields import DataColumns

log = logging.getLogger(__name__)

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def base_model_register(*, project: Project, actor: User | None, name: str, path: str, revision: str = "") -> BaseModel:
    """Register a folder below the models folder, or with `revision` a Hub repository at that commit.

    A folder is read and hashed here. A Hub repository is not read here: weights, architecture and size stay
    empty, and each run's worker reads and hashes what it fetched (`selectors.read_by_run`).
    """
    model = BaseModel(project=project, created_by=actor, name=name, path=path, revision=revision)
    _name_free(model, "base model")
    if revision:
        if not _HUB_ID.fullmatch(path):
            raise ValidationError(
                {"path": f"{path!r} is not a Hub repository such as Qwen/Qwen2.5-0.5B. A folder takes no revision."}
            )
        if not _COMMIT.fullmatch(revision):
            raise ValidationError(
                {
                    "revision": "Give the commit's 40 hex digits, not a branch or tag: those move, and the run could "
                    "not be repeated."
                }
            )
    else:
        try:
            folder = read_model_folder(environment().models_folder, path)
        except ModelError as error:
            raise ValidationError({"path": str(error)}) from None
        for field, value in vars(folder).items():
            setattr(model, field, value)
    _clean(model, "path", "revision")
    base_model_store(model=model, actor=actor)
    return model


def base_model_store(*, model: BaseModel, actor: User | None) -> None:
    """Store a model whose files the caller has read. Only its name is checked here."""
    _name_free(model, "base model")
    _clean(model, "name")
    after = {name: getattr(model, name) for name in ("name", "path", "revision", "weights_digest")}
    if model.checkpoint_id is not None:
        after["checkpoint"] = model.checkpoint_id
    _save_new(model, "base model", actor, after)
    log.info("base model %r registered in %r", model.name, model.project.slug)


@transaction.atomic
def base_model_archive(*, model: BaseModel, actor: User, archived: bool) -> bool:
    """Leave the model out of every choice, or offer it again; runs, records and files stay. Returns whether it
    changed."""
    model = BaseModel.objects.select_for_update(of=["self"]).select_related("project").get(pk=model.pk)
    if (model.archived_at is not None) == archived:
        return False
    BaseModel.objects.filter(pk=model.pk).update(archived_at=Now() if archived else None)
    audit.log(
        actor=audit.who(actor),
        kind="base_model_archived" if archived else "base_model_unarchived",
        subject=f"base_model:{model.pk}",
        project=model.project,
        after={"archived": archived},
    )
    return True


def dataset_create(
    *,
    project: Project,
    actor: User | None,
    name: str,
    content: str = DatasetContent.PROBLEMS,
    format: str = "auto",
    columns: DataColumns = AS_NAMED,
    chunks: Iterable[bytes],
    source: str = "",
    file_name: str = "file",
    made: dict[str, Any] | None = None,
) -> PromptDataset:
    """Store a file of problems, conversations or preferences under its SHA-256, once every row of it is known to be
    good.

    `content` is of DatasetContent, or auto, as the first row says. `format` and `columns` are of problems.
    `chunks` may be cut anywhere. `file_name` is used in messages only. `made` is how a task made it.
    """
    if format not in get_args(DataFormat):
        raise ValidationError({"format": f"{format!r} is not a format; there are {', '.join(get_args(DataFormat))}."})
    if content not in ("auto", *DatasetContent.values):
        raise ValidationError({"content": f"{content!r} is none of auto, {', '.join(DatasetContent.values)}."})
    dataset = PromptDataset(project=project, created_by=actor, name=name, source=source, made=made)
    dataset.format, dataset.mapping = format, columns.model_dump(exclude_none=True)
    _name_free(dataset, "dataset")
    with tempfile.TemporaryFile() as spooled:
        dataset.sha256, dataset.size = spool(chunks, spooled)
        try:
            dataset.content = content_of(spooled, content, file_name)
            survey(dataset, spooled, file_name)
        except DataError as error:
            raise ValidationError({"file": str(error)}) from None
        _clean(dataset, "name", "source")
        with transaction.atomic():  # before the file is stored, and again with its row
            require_upload_room(lock_project(project), dataset.size, field="file")
        if not artifacts.exists(dataset.artifact):
            spooled.seek(0)
            artifacts.put(dataset.artifact, iter(lambda: spooled.read(1 << 20), b""))
    after = {"name": name, "sha256": dataset.sha256, "problems": dataset.problems, "source": source}
    if dataset.content != DatasetContent.PROBLEMS:
        after["content"] = dataset.content
    with transaction.atomic():
        require_upload_room(lock_project(project), dataset.size, field="file")
        _save_new(dataset, "dataset", actor, after)
        dataset_added.send(sender=PromptDataset, dataset=dataset)
    log.info("dataset %r of %d rows stored in %r", name, dataset.problems, project.slug)
    return dataset


def require_upload_room(project: Project, size: int, *, field: str) -> None:
    """Raises ValidationError of `field` when the project's datasets and suites may not grow by so many bytes. The
    project is the one that `lock_project` returned."""
    require_within(project, "max_upload_bytes", used=uploaded_bytes(project), more=size, field=field)


def uploaded_bytes(project: Project) -> int:
    """Of the project's datasets and of every version of its suites."""
    suites = EvalSuiteVersion.objects.filter(suite__project=project)
    return sum(rows.aggregate(total=Sum("size", default=0))["total"] for rows in (project.datasets.all(), suites))


def verifier_version_create(
    *, project: Project, actor: User | None, name: str, spec: dict[str, Any], description: str = ""
) -> VerifierVersion:
    """A new version of the verifier `name`, made when there is none yet.

    When the newest version rewards exactly the same, that one is returned and nothing is written. Faults of `spec`
    are raised as SpecInvalid with their paths.
    """
    rubric = checked_rubric(spec)
    canonical = rubric.config.model_dump(mode="json")
    with transaction.atomic():
        # The project's row orders those who make versions at the same time; a new name has no row to lock.
        Project.objects.select_for_update().get(pk=project.pk)
        verifier = Verifier.objects.filter(project=project, name=name).first()
        if verifier is None:
            verifier = Verifier(project=project, name=name, description=description)
            _clean(verifier, "name", "description")
            verifier.save()
        newest = verifier.versions.order_by("-number").first()
        if newest is not None and newest.digest == rubric.digest:
            return newest
        version = VerifierVersion.objects.create(
            verifier=verifier,
            number=newest.number + 1 if newest else 1,
            spec=canonical,
            digest=rubric.digest,
            created_by=actor,
        )
        audit.log(
            actor=audit.who(actor),
            kind="verifier_version_created",
            subject=f"verifier:{verifier.pk}",
            project=project,
            before={"version": newest.number, "digest": newest.digest} if newest else None,
            after={"name": name, "version": version.number, "digest": version.digest},
        )
    log.info("verifier %r version %d made in %r", name, version.number, project.slug)
    return version


class SpecInvalid(ValidationError):
    """A reward specification that cannot be built; `problems` carries each fault with its path in the spec."""

    def __init__(self, problems: tuple[FieldProblem, ...]) -> None:
        super().__init__({"spec": [str(problem) for problem in problems]})
        self.problems = problems


def checked_rubric(spec: dict[str, Any]) -> Rubric:
    """The rubric that `spec` describes. Raises SpecInvalid with paths such as `components.0.params.extract`."""
    try:
        return Rubric(RewardConfig.model_validate(spec))
    except PydanticError as error:
        raise SpecInvalid(field_problems(error, model=RewardConfig)) from None
    except ConfigError as error:
        raise SpecInvalid(
            tuple(FieldProblem(problem.path.removeprefix("reward."), problem.message) for problem in error.problems)
        ) from None


def _clean(row: models.Model, *given: str) -> None:
    """Check the fields that a person gave; the others are set by the platform."""
    row.clean_fields(exclude={field.name for field in row._meta.fields} - set(given))


def _name_free(row: BaseModel | PromptDataset, noun: str) -> None:
    """An early check, before the long work; `_save_new` also refuses the second of two at the same time."""
    manager: models.Manager[Any] = type(row)._default_manager
    if not row.name.strip():
        raise ValidationError({"name": "A name is needed."})
    if manager.filter(project=row.project, name=row.name).exists():
        raise _taken(row, noun)


def _save_new(row: BaseModel | PromptDataset, noun: str, actor: User | None, after: dict[str, Any]) -> None:
    """Store it with its entry in the audit log, whose `after` holds its main values."""
    kind = "base_model_registered" if noun == "base model" else "dataset_created"
    subject = noun.replace(" ", "_")
    try:
        with transaction.atomic():
            row.save()
            audit.log(
                actor=audit.who(actor), kind=kind, subject=f"{subject}:{row.pk}", project=row.project, after=after
            )
    except IntegrityError:
        raise _taken(row, noun) from None


def _taken(row: BaseModel | PromptDataset, noun: str) -> ValidationError:
    return ValidationError({"name": f"The project has a {noun} named {row.name} already. Choose another name."})
