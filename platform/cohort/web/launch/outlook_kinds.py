"""What a run of another kind than GRPO will do, as lines of the form's running summary: only what its inputs give."""

from cohort.base.formatting import exact, num
from cohort.catalog.models import PromptDataset
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.schema import lookup
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.run import RunConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.config.sft import MANY_EPOCHS, SftConfig


def facts_of(form: RunForm) -> list[tuple[str, str]]:
    """(label, text) of each line; empty of GRPO, and of a form that is not valid, but for the rows."""
    if form.kind == "grpo":
        return []
    rows = _rows(form)
    known = [("Rows", _rows_text(rows, form))] if rows else []
    config = form.config
    if config is None or rows is None:
        return known
    if isinstance(config, SampleConfig):
        return known + _sampled(config, min(rows, config.data.limit or rows))
    return known + _learned(config, form, rows)


def _rows(form: RunForm) -> int | None:
    """Of the dataset and what is read with it."""
    if form.dataset is None:
        return None
    return form.dataset.problems + sum(dataset.problems for dataset in form.further_data.more)


def _rows_text(rows: int, form: RunForm) -> str:
    content = form.dataset.content if form.dataset else "rows"
    more = len(form.further_data.more)
    return f"{num(rows)} {content}" + (f", of {1 + more} datasets" if more else "")


def _sampled(config: SampleConfig, problems: int) -> list[tuple[str, str]]:
    completions, keeps = problems * config.sampling.group_size, config.filter.per_problem
    kept = f"at most {num(problems * keeps)}" if keeps else "what the filter keeps"
    return [
        ("Steps", f"{num(config.steps_for(problems))}, each problem once"),
        ("Completions", num(completions)),
        ("Tokens, at most", num(completions * config.sampling.max_completion_tokens)),
        ("Rows of the dataset", f"{kept}, as {config.rows}"),
    ]


def _learned(config: AnyConfig, form: RunForm, rows: int) -> list[tuple[str, str]]:
    assert not isinstance(config, RunConfig | SampleConfig)
    taken = min(rows, config.data.limit or rows) - (0 if config.data.heldout_path else config.data.holdout)
    drawn = config.steps * config.optim.batch_size
    epochs = drawn / taken
    many = f": above {MANY_EPOCHS}, the rows are learned by heart" if epochs > MANY_EPOCHS else ""
    return [
        ("Steps", num(config.steps)),
        ("Rows learned from", f"{num(drawn)}, {exact(round(epochs, 2))} epoch{'' if epochs == 1 else 's'}{many}"),
        ("Tokens, at most", num(drawn * config.data.max_tokens * (2 if _pairs(config) else 1))),
        ("Held out", _held_out(config, form.further_data.heldout)),
        ("Weights", f"LoRA of rank {config.model.lora.rank}" if config.model.lora.rank else "all"),
        *_evaluated(config, form),
    ]


def _pairs(config: SftConfig | RewardModelConfig) -> bool:
    """Whether a row is two texts."""
    return isinstance(config, RewardModelConfig) and config.objective == "bradley_terry"


def _held_out(config: SftConfig | RewardModelConfig, dataset: PromptDataset | None) -> str:
    if dataset is not None:
        return f"{num(dataset.problems)} of {dataset.name}"
    return f"{num(config.data.holdout)} of the dataset" if config.data.holdout else "none: overfitting would not show"


def _evaluated(config: AnyConfig, form: RunForm) -> list[tuple[str, str]]:
    if not isinstance(config, SftConfig) or not config.eval.has_something:
        return []
    when = [word for word in ("before", "after") if lookup(form.settings, f"eval.{word}") is True]
    suites = len(config.eval.suites) + (config.eval.path is not None)
    return [("Evaluation", f"{suites} suite{'' if suites == 1 else 's'}, {' and '.join(when) or 'while'} training")]
