"""Which charts a run of each kind shows, and in which order; the groups that only other kinds than GRPO have."""

from cohort.web.runs.chart_list import GROUPS, Chart, Group, Line, lines_of
from grpo_core.config.stage import Kind

_LOSS = Chart("loss", "Loss", "nats per token", lines_of({"loss": "training"}), "mean of the step", wide=True)
_HELDOUT = Chart(
    "heldout_loss", "Held-out loss", "nats per token", lines_of({"eval/loss": "held-out"}), points=True,
    help="Of conversations that are never trained on. Where it rises while the training loss falls, the model learns "
    "the training conversations by heart.",
)  # fmt: skip
_FIT = (
    _LOSS,
    _HELDOUT,
    Chart(
        "token_accuracy", "Token accuracy", "share of tokens",
        lines_of({"mean_token_accuracy": "training", "eval/mean_token_accuracy": "held-out"}), ceiling=1.0,
        help="Tokens of the answers that the model itself would have chosen as the likeliest.",
    ),
)  # fmt: skip
_PREFERENCES = (
    Chart(
        "accuracies", "Pairs ordered right", "share of pairs",
        lines_of({"rewards/accuracies": "training", "eval/heldout/score": "held-out"}, "--accent", "--right"),
        ceiling=1.0, wide=True, help="The chosen answer has the higher reward. 0.5 is what chance gives.",
    ),
    Chart("loss", "Loss", "loss", lines_of({"loss": "training", "eval/loss": "held-out"}), "mean of the step"),
    Chart(
        "chosen_rejected", "Rewards of chosen and rejected", "reward",
        lines_of({"rewards/chosen": "chosen", "rewards/rejected": "rejected"}, "--right", "--wrong"), floor=None,
    ),
    Chart("margins", "Margin", "reward", lines_of({"rewards/margins": "chosen minus rejected"}), floor=None),
    Chart("mse", "Squared error", "reward²", lines_of({"mse": "training", "eval/mse": "held-out"})),
)  # fmt: skip
_KEPT = (
    Chart(
        "kept", "Kept completions", "share of completions",
        (Line("kept", {"dataset/kept": 1.0}, "--right"),), "of the step", ceiling=1.0, wide=True,
        help="What the filter lets into the dataset; counts by filter come with the dataset, at the run's end.",
    ),
    Chart("rows", "Rows of the dataset", "rows", lines_of({"dataset/rows": "rows"}), "since the first step"),
)  # fmt: skip
_PROGRESS = (
    Chart("epoch", "Epochs", "epochs", lines_of({"epoch": "epochs"}), "of the training rows"),
    Chart("num_tokens", "Tokens learned from", "tokens", lines_of({"num_tokens": "tokens"}), "since the first step"),
)
_BY_ID = {group.id: group for group in GROUPS}


def _shared(*names: str) -> tuple[Group, ...]:
    return tuple(_BY_ID[name] for name in names)


def _only(group: Group, *charts: str) -> tuple[Chart, ...]:
    """Those with these ids of a group's charts."""
    return tuple(chart for chart in group.charts if chart.id in charts)


def _without(group: Group, *charts: str) -> Group:
    """A group whose charts with these ids are in another group of the same page."""
    left = tuple(chart for chart in group.charts if chart.id not in charts)
    return Group(group.id, group.title, left, group.folded)


# What groups give an update to learn from is not asked where there is none.
_COMPLETIONS = _only(_BY_ID["signal"], "verdicts", "right", "duplicates")
_OPTIMISATION = _without(_BY_ID["optimisation"], "loss")
_FINE_TUNING = (
    Group("fit", "Fit", _FIT), _OPTIMISATION, Group("progress", "Progress", _PROGRESS), *_shared("time", "hardware"),
)  # fmt: skip
GROUPS_OF: dict[Kind, tuple[Group, ...]] = {
    "grpo": GROUPS,
    "sft": _FINE_TUNING,
    "distill": _FINE_TUNING,
    "reward_model": (
        Group("preferences", "Preferences", _PREFERENCES),
        _OPTIMISATION,
        Group("progress", "Progress", _PROGRESS),
        *_shared("time", "hardware"),
    ),
    "sample": (
        Group("kept", "Dataset", _KEPT),
        _shared("reward")[0],
        Group("completions", "Completions", _COMPLETIONS),
        *_shared("lengths", "mismatch", "time", "hardware"),
    ),
}  # fmt: skip
"""In the order of the page; those of evaluations, own charts and the rest are added for a run."""
