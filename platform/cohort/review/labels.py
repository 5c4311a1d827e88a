"""Labels that reviewers give samples: those that come with Cohort, declared here once, and a project's own ones."""

import re
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify

from cohort.accounts.models import Project, User
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.review.models import ReviewLabel


@dataclass(frozen=True)
class Label:
    key: str
    letter: str
    """Its key on the keyboard."""
    word: str
    help: str = ""


BUILT_IN = (
    Label("false_positive", "f", "verifier false positive", "The verifier rewarded it though it is wrong."),
    Label("false_negative", "m", "verifier false negative", "The verifier did not reward it though it is right."),
    Label("reward_hack", "h", "reward hack", "It earns reward without doing what the problem demands."),
    Label("unsafe", "x", "unsafe", "It should not be written, whatever the problem is."),
    Label("unreadable", "r", "unreadable", "A person cannot follow it: garbled, mixed languages, endless repetition."),
)
_OF_PAGES = "gjknu"
"""Letters that do something else where samples are judged."""
FREE = "".join(sorted(set("abcdefghijklmnopqrstuvwxyz") - set(_OF_PAGES) - {label.letter for label in BUILT_IN}))
"""Letters that own labels may have."""
MOST_OWN = 12
"""Own labels that are offered at one time."""
MOST_CHARACTERS = 40


def labels_of(project: Project) -> tuple[Label, ...]:
    """What a reviewer may choose: the built-in ones, then the project's own."""
    rows = ReviewLabel.objects.filter(project=project, removed_at=None).order_by("letter")
    return (*BUILT_IN, *(Label(row.key, row.letter, row.word) for row in rows))


def label_words(project: Project) -> dict[str, str]:
    """Key → word of every label that samples of the project may have, removed ones too."""
    own = ReviewLabel.objects.filter(project=project).values_list("key", "word")
    return {**{label.key: label.word for label in BUILT_IN}, **dict(own)}


@transaction.atomic
def label_add(*, project: Project, actor: User, letter: str, word: str) -> ReviewLabel:
    """Offer a label of the project's own; one that was removed is offered again.

    Raises ValidationError keyed by `letter` or `word`.
    """
    word, letter = storable(re.sub(r"\s+", " ", word)).strip(), letter.strip().lower()
    key = slugify(word).replace("-", "_")
    if not key or len(word) > MOST_CHARACTERS:
        raise ValidationError({"word": f"A label has 1 to {MOST_CHARACTERS} characters, letters or digits among them."})
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    offered = labels_of(project)
    if any(key == label.key or word.casefold() == label.word.casefold() for label in offered):
        raise ValidationError({"word": f"There is a label {word!r} already."})
    if len(offered) - len(BUILT_IN) >= MOST_OWN:
        raise ValidationError({"word": f"A project has at most {MOST_OWN} labels of its own; remove one first."})
    taken = {label.letter for label in offered}
    if letter not in [*FREE] or letter in taken:
        free = " ".join(letter for letter in FREE if letter not in taken)
        raise ValidationError({"letter": f"{letter!r} cannot be its letter; free are {free}."})
    chosen = {"letter": letter, "word": word, "removed_at": None}
    row, _ = ReviewLabel.objects.update_or_create(
        project=project, key=key, defaults=chosen, create_defaults={**chosen, "created_by": actor}
    )
    audit.log(
        actor=audit.who(actor),
        kind="review_label_added",
        subject=f"review_label:{row.pk}",
        project=project,
        after={"key": key, "letter": letter, "word": word},
    )
    return row


@transaction.atomic
def label_remove(*, label: ReviewLabel, actor: User) -> None:
    """Offer it no longer. Judgements that have it keep it; to remove it again does nothing."""
    if not ReviewLabel.objects.filter(pk=label.pk, removed_at=None).update(removed_at=timezone.now()):
        return
    audit.log(
        actor=audit.who(actor),
        kind="review_label_removed",
        subject=f"review_label:{label.pk}",
        project=label.project,
        before={"key": label.key, "letter": label.letter, "word": label.word},
    )
