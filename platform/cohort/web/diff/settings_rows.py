"""The settings of sealed configs next to each other, what people choose first at the top."""

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.records.diff.side_by_side import Row, differences
from cohort.records.diff.words import counts
from cohort.web.compare.settings_table import CHOSEN_FIRST, label_of
from cohort.web.launch.schema import fields, lookup


def settings_rows(configs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Of every field of the run form; equal ones too."""
    ranks = {path: rank for rank, path in enumerate(CHOSEN_FIRST)}
    paths = sorted(fields(), key=lambda path: ranks.get(path, len(ranks)))
    return [
        Row(
            label_of(path),
            path,
            tuple(_text(path, config) for config in configs),
            differences([lookup(config, path) for config in configs]) if counts(path) else (),
        )
        for path in paths
    ]


def _text(path: str, config: Mapping[str, Any]) -> str | None:
    value = lookup(config, path)
    text = "" if value is None else fields()[path].to_text(value).replace("\n", ", ")
    return text or None
