"""The page that checks a card for anyone, without signing in: it runs the verify.pyz that it also gives away, in a
separate process with bounded time and memory, and keeps nothing of what was uploaded. It knows what a card cannot
show: the keys of this platform's log, and what happened to its own records since. It asks no other platform."""

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from django import forms
from django.contrib.auth.decorators import login_not_required
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.audit.services import keys_file
from cohort.base.scratch import scratch_folder
from cohort.evidence import pyz
from cohort.evidence.canonical import canonical
from cohort.evidence.keys import KeyFault, parse_vkey
from cohort.evidence.plain_text import one_line
from cohort.evidence.verify.command import NEVER_PROVEN
from cohort.evidence.verify.report import EXIT_STATUS, VERDICTS, Verdict, verdict_of
from cohort.records.models import Audience, Record
from cohort.records.status.document import life_of
from cohort.server.limits import MAX_CARD_BYTES
from cohort.web.access import file_response, form_page

MAX_SECONDS = 40
MAX_MEMORY_BYTES = 3 * 1024**3
_AT_ONCE = BoundedSemaphore(2)
"""Checks in this process; each may take a processor for `MAX_SECONDS`."""
_CARD, _OLDER = "the uploaded card", "the uploaded older card"
"""Names of the files, as messages of the command have them."""
_BY_COMMAND = "Check it on your own machine: `cohort verify CARD.zip`, or `python verify.pyz CARD.zip`."
_OF_DATABASE = "By this platform's own database, at this moment."
_OF_ZIP = (
    "By the status in the zip alone, as of its date: this page asks no other platform. `cohort verify CARD.zip` on "
    "your own machine asks the one that issued the card."
)
_BOUNDED = (
    "import os, resource, runpy, sys\n"
    "os.nice(10)\n"
    f"resource.setrlimit(resource.RLIMIT_CPU, ({MAX_SECONDS}, {MAX_SECONDS}))\n"
    f"resource.setrlimit(resource.RLIMIT_AS, ({MAX_MEMORY_BYTES}, {MAX_MEMORY_BYTES}))\n"
    "sys.argv = sys.argv[1:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)


class CardField(forms.FileField):
    """A zip of at most `MAX_CARD_BYTES`."""

    def clean(self, data: Any, initial: Any = None) -> "UploadedFile[Any] | None":
        file: UploadedFile[Any] | None = super().clean(data, initial)
        if file and (file.size or 0) > MAX_CARD_BYTES:
            raise forms.ValidationError(f"Larger than the {MAX_CARD_BYTES // 1024**2} MiB of this page. {_BY_COMMAND}")
        return file

    def widget_attrs(self, widget: forms.Widget) -> dict[str, Any]:
        return {**super().widget_attrs(widget), "accept": ".zip"}


class CardForm(forms.Form):
    card = CardField(label="Card", help_text="The zip as it was downloaded, up to 64 MiB.")
    older = CardField(
        required=False,
        label="Older card",
        help_text="Of the same platform: was its log only added to between the two?",
    )
    key = forms.CharField(
        required=False,
        max_length=400,
        label="Another platform's public key",
        help_text="As name+hash+base64, from that platform's operator and not from the card. The keys of this platform "
        "are known here.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )

    def clean_key(self) -> str:
        """Only as a key: the command would also accept the name of a file, which a server must not read."""
        try:
            return parse_vkey(text).vkey if (text := str(self.cleaned_data["key"]).strip()) else ""
        except KeyFault as fault:
            raise forms.ValidationError(f"{fault}.") from None


@dataclass(frozen=True)
class Outcome:
    """The result of the check; without checks, why there is no result."""

    verdict: Verdict
    words: str
    seal: str | None = None
    about: str = ""
    checks: tuple[dict[str, Any], ...] = ()
    why: tuple[str, ...] = ()
    """What decided the verdict."""
    known_by: str = ""
    """Where it is known from what happened to the record since its seal."""

    @property
    def tone(self) -> str:
        grave = ("changed", "revoked", "rejected")
        return "is-right" if self.verdict == "accepted" else "is-wrong" if self.verdict in grave else "is-suspect"

    @property
    def mark(self) -> str:
        marks = {"accepted": "✓", "changed": "✕", "revoked": "⊘", "rejected": "✕", "superseded": "»"}
        return marks.get(self.verdict, "?")


@login_not_required
@form_page
def verify_page(request: HttpRequest) -> HttpResponse:
    form = CardForm(request.POST, request.FILES) if request.method == "POST" else CardForm()
    outcome, status = None, 200
    if request.method == "POST":
        status = 400
        if form.is_valid():
            outcome = _checked(form.cleaned_data)
            status = 503 if outcome is None else 200
            outcome = outcome or Outcome(
                "cannot check", "Other cards are being checked at this moment; try again in a minute."
            )
    context = {
        "form": form,
        "outcome": outcome,
        "pyz": {"sha256": pyz.digest(), "size": len(pyz.build())},
        "never_proven": NEVER_PROVEN,
    }
    return render(request, "records/verify.html", context, status=status)


@login_not_required
@require_safe
def verify_pyz(request: HttpRequest) -> HttpResponse:
    response = file_response(pyz.build(), "application/octet-stream", pyz.NAME)
    response["ETag"] = f'"{pyz.digest()}"'
    return response


def _checked(given: dict[str, Any]) -> Outcome | None:
    """None when too many checks run already."""
    if not _AT_ONCE.acquire(blocking=False):
        return None
    try:
        with scratch_folder("verify") as folder:
            options = [_CARD, "--json", "--offline"]
            _store(folder / _CARD, given["card"].chunks())
            if given["older"]:
                _store(folder / _OLDER, given["older"].chunks())
                options += ["--against", _OLDER]
            if given["key"]:
                options.append(f"--key={given['key']}")
            if (own := keys_file())["keys"]:
                _store(folder / "keys.json", [canonical(own)])
                options.append("--key=keys.json")
            _store(folder / pyz.NAME, [pyz.build()])
            return _run(folder, options)
    finally:
        _AT_ONCE.release()


def _store(path: Path, chunks: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)


def _run(folder: Path, options: list[str]) -> Outcome:
    command = [sys.executable, "-I", "-c", _BOUNDED, pyz.NAME, *options]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=MAX_SECONDS + 5)
    except subprocess.TimeoutExpired:
        return Outcome(
            "cannot check", f"The check takes longer than the {MAX_SECONDS} seconds of this page. {_BY_COMMAND}"
        )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        if done.returncode == EXIT_STATUS["cannot check"]:
            reason = done.stderr.strip().removeprefix(f"{pyz.NAME}: cannot check: ")
            return Outcome("cannot check", f"{one_line(reason)}.")
        return Outcome("cannot check", f"The check needs more time or memory than this page has for it. {_BY_COMMAND}")
    verdict: Verdict = report["verdict"]
    why, known_by = tuple(report["why"]), ""
    if verdict not in ("changed", "cannot check", "unknown signer"):
        record = Record.objects.filter(seal=report["seal"]).select_related("run").defer("document").first()
        known_by = _OF_ZIP
        if record is not None:
            state = life_of(record, Audience.PUBLIC, "")["state"]
            verdict, why, known_by = verdict_of(state["name"]), (state["words"],), _OF_DATABASE
    return Outcome(
        verdict, f"{VERDICTS[verdict]}.", report["seal"], report["about"], tuple(report["checks"]), why, known_by
    )
