"""What a worker does to a chat: gets the message that waits for its answers, and hands them over.

A person's message is answered before the next one can be sent, so at most one waits. What each model is given is its
own history: the messages that were sent to it, with its own answers.
"""

from collections.abc import Sequence
from datetime import timedelta

from django.db.models import Q
from django.db.models.functions import Now

from cohort.base.storable import Refused, storable
from cohort.lab.models import ChatAnswer, ChatMessage, Conversation, JobState, LabJob
from grpo_core.protocol.messages import ChatAnswer as Answered
from grpo_core.protocol.messages import ChatText, ChatTurn, Side

IDLE = timedelta(minutes=10)
"""How long a job keeps its models loaded for the next message, where no other job waits."""
LONGEST = timedelta(minutes=45)
"""After which a job ends, and the next message gets another: below the deadline of every job."""

CALLED_OFF = "The chat was called off before this was answered."


class BadAnswer(Refused, code="bad_answer"):
    """An answer to what the job's conversation did not ask of its worker. Nothing of the beat is stored."""


def unanswered(conversation: Conversation) -> list[tuple[ChatMessage, list[Side]]]:
    """Messages that wait, each with the sides that have not answered it."""
    messages = conversation.messages.filter(redacted_at=None).prefetch_related("answers").order_by("number")
    waiting = []
    for message in messages:
        answered = {answer.side for answer in message.answers.all()}
        if missing := [side for side in message.sides if side not in answered]:
            waiting.append((message, missing))
    return waiting


def pending_turns(conversation: Conversation) -> list[ChatTurn]:
    return [
        ChatTurn(
            turn=message.pk,
            histories={side: [*history(message, side), ChatText(role="user", text=message.text)] for side in sides},
            **message.sampling,
        )
        for message, sides in unanswered(conversation)
    ]


def history(message: ChatMessage, side: Side) -> list[ChatText]:
    """What this model was sent and answered before the message; without what it could not answer, or was deleted."""
    answers = ChatAnswer.objects.select_related("message").filter(
        message__conversation=message.conversation_id,
        message__number__lt=message.number,
        message__redacted_at=None,
        side=side,
        error="",
    )
    texts: list[ChatText] = []
    for answer in answers.order_by("message__number"):
        texts += [ChatText(role="user", text=answer.message.text), ChatText(role="assistant", text=answer.text)]
    return texts


def answers_store(*, job: LabJob, answers: Sequence[Answered]) -> None:
    """Once each: a repeated one changes nothing, and one whose message was deleted meanwhile is dropped. Raises
    BadAnswer."""
    if not answers:
        return
    messages = ChatMessage.objects.in_bulk([answer.turn for answer in answers])
    rows = []
    for answer in answers:
        message = messages.get(answer.turn)
        of_job = message is not None and message.conversation_id == job.conversation_id
        if message is None or not of_job or answer.side not in message.sides:
            raise BadAnswer(f"job {job.pk} has no turn {answer.turn} for the {answer.side}")
        if message.redacted_at is None:
            fields = answer.model_dump(exclude={"turn", "text", "finish", "error"})
            texts = {"text": storable(answer.text), "finish": answer.finish or "", "error": storable(answer.error)}
            rows.append(ChatAnswer(message=message, **fields, **texts))
    ChatAnswer.objects.bulk_create(rows, ignore_conflicts=True)


def is_to_close(job: LabJob, *, waiting: bool) -> bool:
    """Whether the job is to end: it is old, or nothing waits for it and it is idle, or another job needs its worker."""
    if LabJob.objects.filter(pk=job.pk, started_at__lt=Now() - LONGEST).exists():
        return True
    if waiting:
        return False
    if LabJob.objects.filter(state=JobState.WAITING).exists():
        return True
    recent = Q(at__gt=Now() - IDLE) | Q(answers__at__gt=Now() - IDLE)
    return not ChatMessage.objects.filter(recent, conversation=job.conversation_id).exists()


def answers_give_up(job: LabJob, reason: str) -> None:
    """Of a chat's job that ended without answering: every answer that is missing is an error with this reason."""
    if job.conversation is None:
        return
    ChatAnswer.objects.bulk_create(
        [
            ChatAnswer(message=message, side=side, tokens=0, prompt_tokens=0, seconds=0.0, error=reason)
            for message, sides in unanswered(job.conversation)
            for side in sides
        ],
        ignore_conflicts=True,
    )
