"""The samples that a filter shows, as a file: JSON lines, CSV, Parquet, a log of Inspect, trajectories (ATIF).

Written while it is sent: at most a batch of samples is in memory, of Parquet a row group.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe
from pydantic_core import to_json

from cohort import __version__
from cohort.accounts.models import Role
from cohort.base.inspect_log import log_header, log_sample, written
from cohort.review.export import COLUMNS, sample_rows
from cohort.review.facets import component_order
from cohort.review.filters import SampleFilter
from cohort.runs.models import Run
from cohort.web.access import reviewed_run_for, streamed
from cohort.web.audit.selectors import csv_line, downloaded
from cohort.web.review.judging import shows_samples
from cohort.web.runs.series import file_stem

Rows = Iterable[dict[str, Any]]
ATIF = "ATIF-v1.7"
_STOPS = {"eos": "stop", "stop": "stop", "length": "max_tokens"}
"""Ends of a completion by Inspect's words."""
_GROUP_ROWS, _GROUP_CHARACTERS = 2000, 8_000_000
"""At most, of a row group of Parquet: rows, and characters of completions and prompts."""


@dataclass(frozen=True)
class Format:
    name: str
    title: str
    suffix: str
    media_type: str
    write: Callable[[Run, SampleFilter, Rows], Iterator[str | bytes]]
    holds: str


@require_safe
@shows_samples
def samples_export(request: HttpRequest, slug: str, run_id: int) -> HttpResponseBase:
    """`?format=` and a filter; `names=1` names the reviewers. For reviewers, as cards with texts are."""
    run = reviewed_run_for(request, slug, run_id, at_least=Role.REVIEWER)
    chosen = FORMATS.get(request.GET.get("format", ""))
    try:
        if chosen is None:
            raise ValidationError({"format": f"Choose one of {', '.join(FORMATS)}."})
        looked_for = SampleFilter.parse(request.GET)
    except ValidationError as error:
        lines = (f"{name}: {' '.join(texts)}\n" for name, texts in error.message_dict.items())
        return HttpResponse("".join(lines), content_type="text/plain; charset=utf-8", status=422)
    names = request.GET.get("names") == "1"
    data = {"format": chosen.name, "filter": looked_for.query, "names": names}
    downloaded(request, kind="samples_exported", subject=f"run:{run.pk}", project=run.project, data=data)
    rows = sample_rows(run, looked_for, names=names)
    return streamed(chosen.write(run, looked_for, rows), chosen.media_type, f"{file_stem(run)}.samples.{chosen.suffix}")


def export_menu(looked_for: SampleFilter) -> dict[str, Any]:
    """What review/_export.html shows."""
    return {"formats": FORMATS.values(), "fields": parse_qsl(looked_for.query), "words": looked_for.words}


def about(run: Run, looked_for: SampleFilter) -> dict[str, Any]:
    """What a file says of itself, where its format has a place for it."""
    return {
        "run": run.pk,
        "run_name": run.name,
        "project": run.project.slug,
        "config_digest": run.config_digest,
        "filter": looked_for.query,
        "filter_in_words": looked_for.words,
        "written_by": f"cohort {__version__}",
        "written_at": timezone.now().isoformat(),
    }


def _jsonl(run: Run, looked_for: SampleFilter, rows: Rows) -> Iterator[bytes]:
    return (to_json(row) + b"\n" for row in rows)


def _csv(run: Run, looked_for: SampleFilter, rows: Rows) -> Iterator[str]:
    """Lists as JSON; the value of each component in a column of its own as well."""
    components = component_order(run.scored_by)
    yield csv_line([*(column.name for column in COLUMNS), *(f"component.{name}" for name in components)])
    for row in rows:
        values = {score["name"]: score["value"] for score in row["components"]}
        cells = (to_json(value).decode() if isinstance(value, list) else value for value in row.values())
        yield csv_line([*cells, *map(values.get, components)])


def _parquet(run: Run, looked_for: SampleFilter, rows: Rows) -> Iterator[bytes]:
    import pyarrow
    from pyarrow import parquet

    metadata = {f"cohort.{name}": str(value) for name, value in about(run, looked_for).items()}
    written = io.BytesIO()  # the writer counts for itself, so what was sent is dropped
    with parquet.ParquetWriter(written, arrow_schema().with_metadata(metadata), compression="zstd") as writer:
        for batch in _row_groups(rows):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=writer.schema))
            yield written.getvalue()
            written.seek(0)
            written.truncate()
    yield written.getvalue()


def arrow_schema() -> Any:
    import pyarrow

    def of(type_: str | dict[str, str]) -> Any:
        if isinstance(type_, str):
            return pyarrow.type_for_alias(type_)
        if "" in type_:
            return pyarrow.list_(of(type_[""]))
        return pyarrow.list_(pyarrow.struct([(name, of(inner)) for name, inner in type_.items()]))

    return pyarrow.schema([(column.name, of(column.type)) for column in COLUMNS])


def _row_groups(rows: Rows) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    characters = 0
    for row in rows:
        group.append(row)
        characters += len(row["completion"] or "") + len(row["prompt"])
        if len(group) == _GROUP_ROWS or characters >= _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _inspect(run: Run, looked_for: SampleFilter, rows: Rows) -> Iterator[str]:
    """An EvalLog of version 2. A group is a sample of Inspect and its completions are the epochs."""
    facts = about(run, looked_for)
    started, model = (run.started_at or run.created_at).isoformat(), _model_of(run)
    header = log_header(
        name=f"cohort-run-{run.pk}",
        task=run.name,
        model=model,
        dataset={} if run.imported else {"name": run.dataset.name},
        started=started,
        completed=(run.ended_at or timezone.now()).isoformat(),
        metadata=facts,
        plan="grpo",
    )
    return written(header, (_inspect_sample(row, model) for row in rows))


def _model_of(run: Run) -> str:
    """Of an imported run what its files state."""
    return str(run.imported_from.facts.get("model", "not stated")) if run.imported else run.base_model.name


def _inspect_sample(row: dict[str, Any], model: str) -> dict[str, Any]:
    values = {"reward": row["reward"], "advantage": row["advantage"]}
    values |= {score["name"]: score["value"] for score in row["components"]}
    details = {score["name"]: score["detail"] or score["error"] for score in row["components"]}
    return log_sample(
        id=f"attempt {row['attempt']}, step {row['step']}, group {row['group']}",
        epoch=row["sample"] + 1,
        prompt=row["prompt"],
        target=row["reference"],
        completion=row["completion"] or "",
        model=model,
        stop_reason=_STOPS.get(row["finish"], "unknown"),
        tokens=row["tokens"],
        # What could not be scored has no score.
        scores={
            name: {"value": value, "answer": None, "explanation": details.get(name)}
            for name, value in values.items()
            if value is not None
        },
        metadata={name: value for name, value in row.items() if name not in ("prompt", "reference", "completion")},
    )


def _atif(run: Run, looked_for: SampleFilter, rows: Rows) -> Iterator[bytes]:
    """One trajectory a line: the prompt as the user's step, the completion as the agent's."""
    facts = about(run, looked_for)
    agent = {"name": "cohort", "version": __version__, "model_name": _model_of(run)}
    for row in rows:
        extra = {name: value for name, value in row.items() if name not in ("prompt", "completion", "tokens")}
        trajectory = {
            "schema_version": ATIF,
            "session_id": f"cohort-run-{run.pk}",
            "trajectory_id": f"{row['attempt']}-{row['step']}-{row['group']}-{row['sample']}",
            "agent": agent,
            "steps": [
                {"step_id": 1, "source": "user", "message": row["prompt"]},
                {
                    "step_id": 2,
                    "source": "agent",
                    "message": row["completion"] or "",
                    "metrics": {"completion_tokens": row["tokens"]},
                },
            ],
            "final_metrics": {"total_completion_tokens": row["tokens"], "total_steps": 2},
            "extra": {"sample": extra, "export": facts},
        }
        yield to_json(trajectory) + b"\n"


_JSONL = "application/jsonl"
FORMATS = {
    each.name: each
    for each in (
        Format("jsonl", "JSON lines", "jsonl", _JSONL, _jsonl, "one sample a line"),
        Format("csv", "CSV", "csv", "text/csv; charset=utf-8", _csv, "for spreadsheets, safe of formulas"),
        Format("parquet", "Parquet", "parquet", "application/vnd.apache.parquet", _parquet, "for pandas and datasets"),
        Format("inspect", "Inspect log", "json", "application/json", _inspect, "for Inspect View; epochs are samples"),
        Format("atif", "ATIF", "atif.jsonl", _JSONL, _atif, f"one trajectory a line, {ATIF}"),
    )
}
