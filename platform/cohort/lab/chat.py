"""What people do in a chat with a base model: begin one, send a message, delete what was written. A worker answers
(`turns`)."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, get_args

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.catalog.models import BaseModel, EvalSuiteVersion
from cohort.catalog.suites import suite_item_add
from cohort.lab.models import OPEN, ChatAnswer, ChatMessage, Conversation, JobKind, LabJob
from cohort.lab.services import job_create, require_room
from cohort.lab.turns import unanswered
from grpo_core.config.messages import validated
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.lab.job import MAX_MESSAGE_CHARS, ChatOptions, TurnSettings, options_of
from grpo_core.protocol.messages import Side

SIDES: tuple[Side, ...] = get_args(Side)
MOST_MESSAGES = 200
"""Of one conversation."""
MOST_REASON = 2000
"""Characters of the reason for which texts are deleted."""


def conversations(project: Project, model: BaseModel | None = None) -> QuerySet[Conversation]:
    """Newest first; of the whole project, or those with this model."""
    rows = Conversation.objects.filter(project=project).select_related("base_model", "reference", "created_by")
    return (rows if model is None else rows.filter(base_model=model)).order_by("-pk")


def open_job(conversation: Conversation) -> LabJob | None:
    """The job that answers, or is going to."""
    jobs = conversation.jobs.filter(state__in=OPEN, cancel_asked=False)
    return jobs.select_related("node").order_by("-pk").first()


@transaction.atomic
def conversation_begin(
    *,
    base_model: BaseModel,
    reference: BaseModel | None,
    actor: User,
    text: str,
    system: str = "",
    sampling: Mapping[str, Any] | None = None,
) -> Conversation:
    """Begin a chat with its first message, which a worker answers. Raises ConfigError whose problems carry the field:
    `reference`, `system`, `text`, or one of TurnSettings."""
    project = base_model.project
    options = options_of("chat", {"system": storable(system.strip())})
    assert isinstance(options, ChatOptions)
    if reference is not None and reference.project_id != project.pk:
        _refuse("reference", f"does not belong to the project {project.name}")
    if reference is not None and reference.pk == base_model.pk:
        _refuse("reference", "is the same model; choose another, or none")
    conversation = Conversation.objects.create(
        project=project, base_model=base_model, reference=reference, system=options.system, created_by=actor
    )
    audit.log(
        actor=audit.who(actor),
        kind="conversation_begun",
        subject=f"conversation:{conversation.pk}",
        project=project,
        after={"base_model": base_model.name, "reference": reference.name if reference is not None else None},
    )
    message_send(conversation=conversation, actor=actor, text=text, sampling=sampling)
    return conversation


@transaction.atomic
def message_send(
    *,
    conversation: Conversation,
    actor: User,
    text: str,
    sides: Sequence[str] | None = None,
    sampling: Mapping[str, Any] | None = None,
) -> ChatMessage:
    """Send a message to both models, or to one `sides`. A job that still has the models loaded answers it; else one is
    requested. Raises ConfigError whose problems carry the field."""
    project = lock_project(conversation.project)
    settings = validated(TurnSettings, dict(sampling or {}), "these settings are not valid")
    here: tuple[Side, ...] = SIDES if conversation.reference_id is not None else ("model",)
    chosen = [side for side in here if sides is None or side in sides]
    if not chosen or set(sides or ()) - set(here):
        _refuse("sides", f"choose who answers: {', '.join(here)}")
    text = storable(text.strip())
    if not text:
        _refuse("text", "write a message")
    if len(text) > MAX_MESSAGE_CHARS:
        _refuse("text", f"has {len(text):,} characters; {MAX_MESSAGE_CHARS:,} at most are taken")
    number = conversation.messages.count() + 1
    if number > MOST_MESSAGES:
        _refuse("text", f"this conversation has {MOST_MESSAGES} messages, the most that one takes; begin another")
    if unanswered(conversation):
        _refuse("text", "the last message is not answered yet; wait for its answers, or end the chat")
    message = ChatMessage.objects.create(
        conversation=conversation,
        number=number,
        text=text,
        sides=chosen,
        sampling=settings.model_dump(mode="json"),
        by=actor,
    )
    audit.log(
        actor=audit.who(actor),
        kind="chat_message_sent",
        subject=f"conversation:{conversation.pk}",
        project=project,
        after={"message": number, "sides": chosen, "characters": len(text)},
    )
    # Its finish, which would leave this message to nobody, waits for the lock, and looks again.
    held = conversation.jobs.filter(state__in=OPEN, cancel_asked=False).select_for_update(of=["self"])
    if not list(held):
        require_room(project)
        reference = conversation.reference
        job_create(
            project=project,
            actor=actor,
            inputs={},
            logged={
                "kind": JobKind.CHAT,
                "base_model": conversation.base_model.name,
                "reference": reference.name if reference is not None else None,
            },
            rubric=None,
            kind=JobKind.CHAT,
            base_model=conversation.base_model,
            conversation=conversation,
            options=ChatOptions(system=conversation.system).model_dump(mode="json"),
        )
    return message


@transaction.atomic
def message_redact(*, message: ChatMessage, actor: User, reason: str) -> None:
    """Delete the text of a message and of its answers; that they were there stays. Raises ConfigError."""
    reason = storable(reason.strip())
    if not reason:
        _refuse("reason", "a reason is needed: it is kept in the audit log")
    if len(reason) > MOST_REASON:
        _refuse("reason", f"has {len(reason):,} characters; {MOST_REASON:,} at most are taken")
    locked = ChatMessage.objects.select_for_update().get(pk=message.pk)
    if locked.redacted_at is not None:
        return
    ChatMessage.objects.filter(pk=message.pk).update(text="", redacted_at=Now())
    ChatAnswer.objects.filter(message=message).update(text="", error="")
    conversation = message.conversation
    audit.log(
        actor=audit.who(actor),
        kind="chat_message_redacted",
        subject=f"conversation:{conversation.pk}",
        project=conversation.project,
        reason=reason,
        after={"message": locked.number},
    )


def message_to_suite(*, message: ChatMessage, version: EvalSuiteVersion, target: str, actor: User) -> EvalSuiteVersion:
    """A new version of the suite with the message as one more item, whose right answer is `target`. Raises
    ValidationError, also where the suite's scorer cannot read the target."""
    if message.number != 1:
        raise ValidationError("Only the first message of a chat can be an item: the others rest on what came before.")
    item = {"id": f"chat-{message.conversation_id}", "prompt": message.text, "target": target.strip()}
    return suite_item_add(version=version, actor=actor, item=item)


def _refuse(field: str, message: str) -> NoReturn:
    raise ConfigError(f"{field}: {message}", (FieldProblem(field, message),))
