"""What training a base model took, so that a run's operations can be compared with it: as a person stated it on the
model's page, else as its makers published it."""

from dataclasses import dataclass

from cohort.catalog.models import BaseModel
from grpo_core.compute.base_models import READ, Pretraining, published
from grpo_core.compute.words import format_count, format_flop


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
    words = f"{stated['by']} stated on {stated['at'][:10]} on the base model's page: {stated['source']}"
    return Original(float(stated["flop"]), f"stated by {stated['by']}", words, public=False)


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
