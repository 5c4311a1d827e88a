"""Tables of cases for tests, as YAML in tests/cases/: each file is a list of mappings, one case an item."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).with_name("cases")


def cases(name: str, *fields: str) -> list[Any]:
    """The cases of tests/cases/`name`.yaml as pytest parameters, in the order of `fields`; a field that a case leaves
    out is None. A case's `id` names the test, otherwise its place in the file does."""
    table = yaml.load((FOLDER / f"{name}.yaml").read_bytes(), Loader=yaml.CSafeLoader)  # in a tenth of the time
    unknown = {key for case in table for key in case} - {*fields, "id", "why"}
    assert not unknown, f"tests/cases/{name}.yaml: nothing reads {', '.join(sorted(unknown))}"
    return [
        pytest.param(*(case.get(field) for field in fields), id=_name(table, index)) for index, case in enumerate(table)
    ]


def _name(table: Sequence[dict[str, Any]], index: int) -> str:
    return str(table[index].get("id", index))
