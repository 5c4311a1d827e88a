"""The run form's drafts: what is saved of a form that was sent, and the form that a draft fills again.

Saved with every check that the page asks for by itself, so that a reload, Back or a sign-out loses nothing.
"""

import re
import secrets
from typing import Any

from cohort.accounts.models import Project, User
from cohort.base.formatting import natural
from cohort.launch.drafts import KEPT, draft_save, drafts_of
from cohort.runs.models import LaunchDraft, Run
from cohort.web.launch.run_form import FORM_TOKEN, RunForm
from cohort.web.launch.sweep import sweep_plan

_OF_THE_PAGE = frozenset({"window", "form_token", "overlap_seen"})
"""Inputs that are no part of a draft: of the window, and what a person ticked at one moment."""
RUNS_OFFERED = 50
_WINDOW = re.compile(r"([0-9a-f]{8})\.(\d{1,9})")


def open_window(form: RunForm, draft: LaunchDraft | None = None) -> None:
    """Make the form one of a newly opened page, of a draft or of none."""
    form.texts["form_token"] = draft.form_token if draft else secrets.token_hex(8)
    form.texts["window"] = f"{secrets.token_hex(4)}.{draft.revision if draft else 0}"


def from_draft(project: Project, draft: LaunchDraft) -> RunForm:
    form = RunForm.posted(project, draft.texts)
    open_window(form, draft)
    return form


def saved(form: RunForm, user: User) -> dict[str, Any]:
    """Save the form, which has been checked, as its draft, and what the page says of it. A form that the page did not
    open has none; nor has one that was launched just so: a check that was on its way then comes too late."""
    token, window = form.texts["form_token"], _WINDOW.fullmatch(form.texts["window"])
    if not FORM_TOKEN.fullmatch(token) or window is None:
        return {}
    if form.config is not None:
        made = Run.objects.filter(project=form.project, created_by=user, form_token=token)
        sweep = sweep_plan(form)
        digests = [config.digest() for config in (sweep.configs if sweep else (form.config,))]
        if made.filter(config_digest__in=digests).exists():
            return {}
    texts = {name: text for name, text in form.texts.items() if name not in _OF_THE_PAGE}
    since = natural(window[2]) or 0
    kept = draft_save(project=form.project, user=user, form_token=token, texts=texts, window=window[1], since=since)
    return {"saved": kept, "not_saved": kept is None}


def starts_offered(form: RunForm, user: User) -> dict[str, Any]:
    """What else a form may start from: drafts of this person, but for that of the form itself, the newest runs, and
    registered checkpoints."""
    others = drafts_of(form.project, user).exclude(form_token=form.texts["form_token"])
    runs = Run.objects.filter(project=form.project).only("name", "state")[:RUNS_OFFERED]
    checkpoints = [model for model in form.choices.base_models.rows if model.checkpoint_id is not None]
    return {"drafts": list(others), "drafts_kept": KEPT, "runs": list(runs), "checkpoints": checkpoints}
