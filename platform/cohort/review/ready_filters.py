"""The ready-made filters of one run: those of every run, and one of its newest re-score."""

from cohort.review.filters import READY, ReadyFilter
from cohort.review.models import Rescore
from cohort.runs.models import Run


def ready_filters(run: Run) -> list[ReadyFilter]:
    """One query."""
    finished = Rescore.objects.filter(run=run, figures__isnull=False).order_by("-pk")
    newest = finished.values_list("pk", flat=True).first()
    return [*READY, *([disagreement(newest)] if newest is not None else [])]


def rescore_filters(rescore: int) -> list[ReadyFilter]:
    """Of one re-score."""
    either = "Right by one of both rewards and wrong by the other."
    return [disagreement(rescore), ReadyFilter("Called otherwise", f"rescore={rescore}%3Adiffers", either)]


def disagreement(rescore: int) -> ReadyFilter:
    return ReadyFilter(
        "Rewarded, second verifier disagrees",
        f"verifier=right&rescore={rescore}%3Adiffers",
        f"The verifier passed it, and the second reward of re-score {rescore} does not.",
    )
