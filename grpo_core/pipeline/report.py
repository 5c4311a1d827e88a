"""Where a pipeline's stages are, as a table for the terminal: state, steps, what each gave, and each suite's score
before and after it. Loads no torch."""

from collections.abc import Sequence
from pathlib import Path

from grpo_core.evaluate.text_report import Measured, mean_score, measured_in
from grpo_core.pipeline.config import PipelineConfig
from grpo_core.pipeline.folder import STATE_WORDS, PipelineFolder, StageStatus
from grpo_core.text import format_percent, printable

COLUMNS = ("stage", "kind", "state", "steps", "gave", "scores, before → after")


def pipeline_table(pipeline: PipelineConfig, folder: PipelineFolder) -> list[str]:
    """Its lines, and below them why a stage is not finished."""
    statuses = folder.status(pipeline)
    rows = [COLUMNS, *(_row(pipeline, folder, slug, status) for slug, status in statuses.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines + [f"{slug}: {printable(status.reason)}" for slug, status in statuses.items() if status.reason]


def _row(pipeline: PipelineConfig, folder: PipelineFolder, slug: str, status: StageStatus) -> Sequence[str]:
    run, ended = folder.run_folder(slug), status.outcome
    shown = status.state not in ("waiting", "ready")
    return (
        slug,
        pipeline.stage(slug).kind,
        STATE_WORDS[status.state],
        f"{ended.steps_done:,} of {ended.steps_planned:,}" if ended is not None else "",
        status.output.words if status.output is not None else "",
        "; ".join(scores(run)) if shown else "",
    )


def scores(run: Path) -> list[str]:
    """Of each suite of a run, such as `heldout 12.5 % → 50 %`; with one end where only that was measured."""
    before, after = ({each.result.suite: each for each in measured_in(run / f"evals/{end}.jsonl")} for end in _ENDS)
    return [
        f"{suite} {_score(before.get(suite))} → {_score(after.get(suite))}"
        for suite in dict.fromkeys([*before, *after])
    ]


_ENDS = ("before", "after")


def _score(measured: Measured | None) -> str:
    score = mean_score(measured.items) if measured is not None else None
    return "–" if score is None else format_percent(score)
