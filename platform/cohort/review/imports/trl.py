"""Completions as TRL's GRPOTrainer writes them with `log_completions`: completions_<step>.parquet with columns step,
prompt, completion, one for each reward function, and advantage. Early versions have a column `reward` and no advantage;
extra columns that a reward function logged are text or numbers."""

from collections.abc import Iterator
from typing import Any

from cohort.evaluations.imports.bounds import BadImport
from cohort.review.imports.rows import (
    MAX_COMPONENTS,
    MAX_SAMPLES,
    Reading,
    Row,
    SourceFile,
    completion_of,
    name_of,
    score_of,
    step_of,
    text_of,
)

REQUIRED = ("step", "prompt", "completion")
_KNOWN = (*REQUIRED, "advantage")
MAX_UNPACKED_BYTES = 4 * 1024**3
"""Of a file, by its own footer."""
_ROWS = 64
"""Decoded at once."""


def read(file: SourceFile, reading: Reading) -> Iterator[Row]:
    """Raises BadImport."""
    import pyarrow
    from pyarrow import parquet

    try:
        opened = parquet.ParquetFile(file.path, pre_buffer=False, buffer_size=1 << 20)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadImport(
            f"{file.name} is not a Parquet file that can be read: {_first(error)}. Choose the format that it has",
            code="not_parquet",
        ) from None
    with opened:
        _require_size(opened.metadata, file)
        scored, left_out = _columns(opened.schema_arrow, file)
        for name in left_out:
            reading.left_out[f"column {name}"] += opened.metadata.num_rows
        taken = [name for name in (*_KNOWN, *scored) if name in opened.schema_arrow.names]
        number = 0
        try:
            for batch in opened.iter_batches(batch_size=_ROWS, columns=taken, use_threads=False):
                for values in batch.to_pylist():
                    number += 1
                    yield _row(values, scored, f"row {number:,} of {file.name}", reading)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError, RecursionError) as error:
            raise BadImport(f"{file.name} is damaged after row {number:,}: {_first(error)}", code="damaged") from None


def _require_size(metadata: Any, file: SourceFile) -> None:
    unpacked = sum(metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups))
    if metadata.num_rows > MAX_SAMPLES:
        raise BadImport(
            f"{file.name} has {metadata.num_rows:,} rows; at most {MAX_SAMPLES:,} are taken. Import fewer steps.",
            code="too_many_samples",
        )
    if unpacked > MAX_UNPACKED_BYTES:
        raise BadImport(
            f"{file.name} has {unpacked:,} bytes when unpacked; at most {MAX_UNPACKED_BYTES:,} are taken. Import fewer "
            "steps.",
            code="too_large_unpacked",
        )


def _columns(schema: Any, file: SourceFile) -> tuple[list[str], list[str]]:
    """(columns of scores, columns that are left out)."""
    import pyarrow

    names = list(schema.names)
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        have = ", ".join(map(repr, names[:20])) or "none"
        raise BadImport(
            f"{file.name} has no column {', '.join(missing)}; it has {have}. TRL writes them with "
            "log_completions=True.",
            code="wrong_columns",
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadImport(f"{file.name} has the column {twice[0]!r} twice", code="column_twice")
    kinds = pyarrow.types
    scored: list[str] = []
    left_out: list[str] = []
    for at, name in enumerate(names):
        if name in _KNOWN:
            continue
        type_ = schema.field(at).type
        index = name.startswith("__index_level_")  # of pandas
        numeric = kinds.is_floating(type_) or kinds.is_integer(type_) or kinds.is_boolean(type_) or kinds.is_null(type_)
        (scored if numeric and not index else left_out).append(name_of(name, file.name))
    if not scored:
        raise BadImport(
            f"{file.name} has no column of numbers besides step and advantage; expected one for each reward function",
            code="no_rewards",
        )
    if len(scored) > MAX_COMPONENTS:
        raise BadImport(
            f"{file.name} has {len(scored)} columns of numbers; at most {MAX_COMPONENTS} are taken",
            code="too_many_columns",
        )
    return scored, left_out


def _row(values: dict[str, Any], scored: list[str], where: str, reading: Reading) -> Row:
    advantage = score_of(values.get("advantage"), f"advantage in {where}")
    if advantage is not None:
        reading.states.add("advantage")
    return Row(
        step=step_of(values["step"], f"step in {where}"),
        prompt=text_of(values["prompt"], f"prompt in {where}"),
        completion=completion_of(values["completion"], f"completion in {where}"),
        scores={name: score_of(values[name], f"{name} in {where}") for name in scored},
        advantage=advantage,
    )


def _first(error: Exception) -> str:
    """Arrow's errors may hold a stack and paths."""
    return (str(error).splitlines() or [""])[0][:200].rstrip(".")
