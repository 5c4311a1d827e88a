"""What training a base model took, so that a run's operations can be compared with it: as a person stated it on the
model's page, else as its makers published it. A run's own statement goes before both (records/sections/compute.py)."""

import math
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.catalog.models import BaseModel
from grpo_core.compute.base_models import READ, Pretraining, published
from grpo_core.compute.words import format_count, format_flop
from grpo_core.text import UNSTORABLE

ON_ITS_PAGE = "on the base model's page"


@dataclass(frozen=True)
class Original:
    """Operations of a base model's training."""

    flop: float
    source: str
    """Whose number it is, as a record's source: `stated by …`."""
    words: str
    """Where it is from, in a sentence."""
    public: bool
    """Whether anybody could look it up; what a person stated is for whom the record's field is for."""


def original_of(model: BaseModel) -> Original | None:
    """None where nobody stated it and the table has nothing of it."""
    return stated_original(model) or published_original(model)


def stated_original(model: BaseModel) -> Original | None:
    """As a person stated it on the base model's page."""
    if model.pretraining is None:
        return None
    stated = model.pretraining
    words = f"{stated['by']} stated on {stated['at'][:10]} {ON_ITS_PAGE}: {stated['source']}"
    return Original(float(stated["flop"]), f"stated by {stated['by']}", words, public=False)


def origin_of(model: BaseModel) -> BaseModel:
    """What the model's weights came from: through registered checkpoints back to what the first of their runs began
    with."""
    seen = {model.pk}
    while model.checkpoint is not None and model.checkpoint.run.base_model is not None:
        model = model.checkpoint.run.base_model
        if model.pk in seen:
            break
        seen.add(model.pk)
    return model


MOST_CHARS = 2_000


@transaction.atomic
def pretraining_state(*, model: BaseModel, actor: User, flop: str, source: str) -> None:
    """State what training the model took, and by which source; both empty take the statement back. The log keeps every
    one. Raises ValidationError."""
    text, source = flop.strip(), source.strip()
    model = BaseModel.objects.select_for_update(of=["self"]).select_related("project").get(pk=model.pk)
    after = None
    if text or source:
        after = {"flop": _number(text), "source": _source(source), "by": actor.username}
        after["at"] = timezone.now().isoformat(timespec="seconds")
    before, model.pretraining = model.pretraining, after
    if before is None and after is None:
        raise ValidationError("Give a number of FLOP, such as 8.3e22, and its source.")
    model.save(update_fields=["pretraining"])
    audit.log(
        actor=audit.who(actor),
        kind="base_model_pretraining_stated",
        subject=f"base_model:{model.pk}",
        project=model.project,
        before={"pretraining": _logged(before)},
        after={"pretraining": after},
    )


def _logged(stated: dict[str, Any] | None) -> dict[str, Any] | None:
    """PostgreSQL gives 8.3e22 back as a whole number, which the log's canonical JSON has no room for."""
    return None if stated is None else {**stated, "flop": float(stated["flop"])}


def _number(text: str) -> float:
    try:
        flop = float(text.replace(",", "").replace("×10^", "e"))
    except ValueError:
        flop = math.nan
    if not 1 <= flop < 1e40:
        raise ValidationError(f"{text[:40]!r} is no number of FLOP: give one from 1 to 1e40, such as 8.3e22.")
    return flop


def _source(text: str) -> str:
    if not text or len(text) > MOST_CHARS or UNSTORABLE.search(text):
        raise ValidationError(
            f"Say where the number is from, in at most {MOST_CHARS:,} characters: a paper, a model card, a letter of "
            "the provider. Without a source it cannot be checked."
        )
    return text


def published_original(model: BaseModel) -> Original | None:
    """As its makers published it; only a Hub repository is known by its name."""
    row = published_row(model)
    if row is None:
        return None
    return Original(row.flop, "stated by the model's makers", published_text(row), public=True)


def published_row(model: BaseModel) -> Pretraining | None:
    hub = model.path if model.revision else str((model.adapter or {}).get("base") or "")
    return published(hub)


def published_text(row: Pretraining) -> str:
    """The reasoning behind a number of the table."""
    words = (
        f"6 × {format_count(row.parameters)} parameters × {format_count(row.tokens)} tokens = {format_flop(row.flop)}, "
        f"from {row.source} ({row.published}; read {READ}). Post-training is not in it, so that it took at least this."
    )
    return f"{words} {row.caveat}".strip()
