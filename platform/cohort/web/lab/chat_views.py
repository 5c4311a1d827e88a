"""Chats with base models: begin one, send a message, judge an answer, keep a message as an item of a suite. Texts are a
model's, so they are shown and never rendered."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Project, Role, User
from cohort.base.formatting import natural
from cohort.catalog.models import BaseModel
from cohort.lab import chat
from cohort.lab.evaluations import reference_of
from cohort.lab.models import ChatAnswer, ChatMessage, Conversation, JobState
from cohort.review.models import AnswerJudgement, Verdict
from cohort.review.services import answer_judge
from cohort.web.access import STOP_POLLING, form_page, project_for
from cohort.web.accounts.views import person
from cohort.web.catalog import selectors as catalog
from cohort.web.context import listed, version_of
from cohort.web.lab.estimate_shown import why_waits
from cohort.web.lab.model_forms import SETTINGS, ChatForm, MessageForm, SuiteRowForm
from grpo_core.errors import ConfigError

CHATS = 25
"""Of one page of the list."""


@form_page
def chat_home(request: HttpRequest, slug: str) -> HttpResponse:
    """Every chat of the project, and the form that begins one (POST); `model` is what it begins with."""
    posted = request.method == "POST"
    project = project_for(request, slug, at_least=Role.OPERATOR if posted else Role.VIEWER)
    find = request.GET.get("find", "")
    form = ChatForm(project, request.POST if posted else None, initial=_first_choice(request, project), find=find)
    if posted and form.is_valid():
        try:
            conversation = chat.conversation_begin(actor=person(request), **form.arguments())
        except ConfigError as error:
            form.take_config(error)
        else:
            return redirect("chat_detail", slug, conversation.pk)
    chats = listed(request, chat.conversations(project), CHATS)
    context = {"form": form, "chats": chats, "find": find, "offered": catalog.OFFERED}
    return render(request, "lab/chats.html", context, status=form.status)


def _first_choice(request: HttpRequest, project: Project) -> dict[str, Any]:
    model = BaseModel.objects.filter(project=project, pk=natural(request.GET.get("model")) or 0).first()
    reference = reference_of(model) if model is not None else None
    return {"base_model": model and model.pk, "reference": reference and reference.pk}


@form_page
def chat_detail(request: HttpRequest, slug: str, chat_id: int) -> HttpResponse:
    """The conversation, and the next message (POST)."""
    posted = request.method == "POST"
    project = project_for(request, slug, at_least=Role.OPERATOR if posted else Role.VIEWER)
    conversation = conversation_of(project, chat_id)
    form = MessageForm(request.POST if posted else None, initial=_as_before(conversation))
    if conversation.reference is None:
        del form.fields["sides"]
    if posted and form.is_valid():
        try:
            message = chat.message_send(conversation=conversation, actor=person(request), **form.arguments())
        except ConfigError as error:
            form.take_config(error)
        else:
            return redirect(f"{reverse('chat_detail', args=[slug, chat_id])}#message-{message.number}")
    context = _context(conversation, person(request)) | {"form": form}
    return render(request, "lab/chat.html", context, status=form.status)


def _as_before(conversation: Conversation) -> dict[str, Any]:
    """What the form begins with: the settings of the newest message."""
    newest = conversation.messages.order_by("-number").first()
    return {} if newest is None else {**newest.sampling, "sides": newest.sides}


@require_safe
def chat_live(request: HttpRequest, slug: str, chat_id: int) -> HttpResponse:
    """The newest message while it waits: 204 while nothing changed since `v`, 286 once it is answered."""
    conversation = conversation_of(project_for(request, slug), chat_id)
    context = _context(conversation, person(request), newest=True)
    if context["pending"] and request.GET.get("v") == context["seen"]:
        return HttpResponse(status=204)
    return render(request, "lab/_chat_newest.html", context, status=200 if context["pending"] else STOP_POLLING)


@require_POST
def chat_judge(request: HttpRequest, slug: str, chat_id: int, answer_id: int) -> HttpResponse:
    """Store whether an answer is right. Answers a part of the page to htmx, else redirects."""
    project = project_for(request, slug, at_least=Role.REVIEWER)
    rows = ChatAnswer.objects.select_related("message__conversation__project")
    of_chat = {"message__conversation__project": project, "message__conversation": chat_id}
    answer = get_object_or_404(rows, **of_chat, pk=answer_id)
    actor, fault = person(request), None
    verdict, note = request.POST.get("verdict"), request.POST.get("note")
    try:
        answer_judge(answer=answer, actor=actor, verdict=verdict, note=note)
    except ValidationError as error:
        fault = {"words": " ".join(error.messages), "note": note or ""}
    if not request.htmx and fault is None:  # type: ignore[attr-defined]
        return redirect(f"{reverse('chat_detail', args=[slug, chat_id])}#message-{answer.message.number}")
    judgements = list(answer.judgements.select_related("by"))
    shown = AnswerShown(answer.side, "", answer, judgements, actor)
    context = {"conversation": answer.message.conversation, "shown": shown, "verdicts": Verdict.choices}
    context |= {"fault": fault, "may": True}
    return render(request, "lab/_chat_judgement.html", context, status=422 if fault else 200)


@form_page
def chat_suite_row(request: HttpRequest, slug: str, chat_id: int, number: int) -> HttpResponse:
    """A message as an item of a suite, in a new version of it (POST)."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    message = _message_of(project, chat_id, number)
    form = SuiteRowForm(catalog.own_suites(project), request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        given = {"version": form.cleaned_data["suite"], "target": form.cleaned_data["target"]}
        version = form.call(chat.message_to_suite, message=message, actor=person(request), **given)
        if version is not None:
            messages.success(request, f"Added to {version.suite.name}, now version {version.number}.")
            return redirect("suite_detail", slug, version.suite_id)
    context = {"conversation": message.conversation, "message": message, "form": form}
    return render(request, "lab/chat_suite_row.html", context, status=form.status)


@form_page
def chat_redact(request: HttpRequest, slug: str, chat_id: int, number: int) -> HttpResponse:
    """Delete the texts of a message and its answers (POST), for a reason."""
    project = project_for(request, slug, at_least=Role.ADMIN)
    message = _message_of(project, chat_id, number)
    fault = ""
    if request.method == "POST":
        try:
            chat.message_redact(message=message, actor=person(request), reason=request.POST.get("reason", ""))
        except ConfigError as error:
            fault = " ".join(problem.message for problem in error.problems)
        else:
            messages.success(request, f"The texts of message {message.number} are deleted.")
            return redirect("chat_detail", slug, chat_id)
    context = {"conversation": message.conversation, "message": message, "fault": fault}
    return render(request, "lab/chat_redact.html", context, status=422 if fault else 200)


# ---------------------------------------------------------------------- what pages show


@dataclass(frozen=True)
class AnswerShown:
    """One side's answer to a message, or its place while none is there."""

    side: str
    name: str
    """Of the model."""
    answer: ChatAnswer | None
    judgements: list[AnswerJudgement]
    reader: User

    @property
    def _newest(self) -> dict[int, AnswerJudgement]:
        return {row.by_id: row for row in sorted(self.judgements, key=lambda row: row.pk)}

    @property
    def own(self) -> AnswerJudgement | None:
        """The reader's newest judgement."""
        return self._newest.get(self.reader.pk)

    @property
    def others(self) -> list[AnswerJudgement]:
        return [row for by, row in self._newest.items() if by != self.reader.pk]


@dataclass(frozen=True)
class MessageShown:
    message: ChatMessage
    answers: list[AnswerShown]

    @property
    def settings(self) -> dict[str, Any]:
        return {name: self.message.sampling[name] for name in SETTINGS}


def _context(conversation: Conversation, reader: User, *, newest: bool = False) -> dict[str, Any]:
    """`newest`: of the newest message alone."""
    judged = Prefetch("judgements", AnswerJudgement.objects.select_related("by"))
    answers = Prefetch("answers", ChatAnswer.objects.prefetch_related(judged).order_by("side"))
    rows = conversation.messages.select_related("by").prefetch_related(answers).order_by("-number")
    shown = [_shown(conversation, message, reader) for message in (rows[:1] if newest else rows)]
    job = chat.open_job(conversation)
    pending = bool(shown) and any(
        answer.answer is None for answer in shown[0].answers if shown[0].message.redacted_at is None
    )
    progress: dict[str, Any] = job.progress or {} if job is not None else {}
    why = why_waits(job) if job is not None and pending else ""
    count = sum(answer.answer is not None for answer in shown[0].answers) if shown else 0
    return {
        "conversation": conversation,
        "earlier": shown[:0:-1],
        "newest": shown[0] if shown else None,
        "pending": pending,
        "job": job,
        "running": job is not None and job.state == JobState.RUNNING,
        "progress": progress,
        "why": why,
        "seen": version_of((count, job and (job.pk, job.state), progress.get("phase"), why)),
        "verdicts": Verdict.choices,
    }


def _shown(conversation: Conversation, message: ChatMessage, reader: User) -> MessageShown:
    names = {"model": conversation.base_model.name}
    if conversation.reference is not None:
        names["reference"] = conversation.reference.name
    by_side = {answer.side: answer for answer in message.answers.all()}
    answers = []
    for side in message.sides:
        answer = by_side.get(side)
        judgements = list(answer.judgements.all()) if answer is not None else []
        answers.append(AnswerShown(side, names[side], answer, judgements, reader))
    return MessageShown(message, answers)


def conversation_of(project: Project, pk: int) -> Conversation:
    rows = Conversation.objects.select_related("project", "base_model", "reference", "created_by")
    return get_object_or_404(rows, project=project, pk=pk)


def _message_of(project: Project, chat_id: int, number: int) -> ChatMessage:
    rows = ChatMessage.objects.select_related("conversation__project", "conversation__base_model", "by")
    return get_object_or_404(rows, conversation__project=project, conversation=chat_id, number=number, redacted_at=None)
