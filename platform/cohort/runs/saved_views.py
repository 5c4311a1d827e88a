"""Saved views of the list of runs (a search, its columns and its order) and of a run's samples (a filter), each under
a name."""

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet

from cohort.accounts.models import Project, User
from cohort.base.storable import storable
from cohort.runs.models import SavedView

MOST_VIEWS = 50
"""Of one person in one project, of each page."""


def views_for(*, project: Project, user: User, page: str = SavedView.Page.RUNS) -> QuerySet[SavedView]:
    """The person's own, and those that others share."""
    views = SavedView.objects.filter(Q(owner=user) | Q(shared=True), project=project, page=page)
    return views.select_related("owner")


@transaction.atomic
def view_save(
    *,
    project: Project,
    actor: User,
    name: str,
    query: str,
    page: str = SavedView.Page.RUNS,
    shared: bool = False,
    default: bool = False,
) -> SavedView:
    """Under a name that the person has used before, that view is replaced. Raises ValidationError."""
    name = _name(name)
    _owner_lock(actor)
    own = SavedView.objects.filter(project=project, owner=actor, page=page)
    view = own.filter(name=name).first() or SavedView(project=project, owner=actor, page=page, name=name)
    if view.pk is None and own.count() >= MOST_VIEWS:
        raise ValidationError(f"A person has at most {MOST_VIEWS} views in a project. Delete one first.")
    if len(query) > _longest("query"):
        raise ValidationError(f"The search and its columns have more than {_longest('query'):,} characters.")
    view.query, view.shared = storable(query), shared
    _default(view, default)
    return view


@transaction.atomic
def view_change(*, view: SavedView, name: str, shared: bool, default: bool) -> None:
    """Its name, who sees it, and whether it opens with the list. Raises ValidationError."""
    name = _name(name)
    _owner_lock(view.owner)
    own = SavedView.objects.filter(project=view.project, owner=view.owner, page=view.page)
    others = own.filter(name=name).exclude(pk=view.pk)
    if others.exists():
        raise ValidationError(f"Another view of yours is called {name}. Choose another name.")
    view.name, view.shared = name, shared
    _default(view, default)


def view_delete(*, view: SavedView) -> None:
    view.delete()


def _default(view: SavedView, default: bool) -> None:
    """Save the view; a person has one default."""
    if default:
        own = SavedView.objects.filter(project=view.project, owner=view.owner, page=view.page, default=True)
        own.exclude(pk=view.pk).update(default=False)
    view.default = default
    view.save()


def _owner_lock(owner: User) -> None:
    """Two windows of one person save one after the other."""
    User.objects.select_for_update(no_key=True).get(pk=owner.pk)


def _name(text: str) -> str:
    name = storable(" ".join(text.split()))
    if not name:
        raise ValidationError("A view needs a name.")
    if len(name) > _longest("name"):
        raise ValidationError(f"A name has at most {_longest('name')} characters; this one has {len(name)}.")
    return name


def _longest(field: str) -> int:
    longest: int = getattr(SavedView, field).field.max_length
    return longest
