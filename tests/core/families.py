"""Small random models of several families of transformers, from tests/cases/trainer/families.yaml."""

from collections.abc import Callable
from functools import partial
from typing import Any

import transformers
import yaml

from tests.tables import FOLDER

_TABLE = yaml.safe_load((FOLDER / "trainer/families.yaml").read_text(encoding="utf-8"))


def _make(kind: str, head: str | None, settings: dict[str, Any]) -> Any:
    config = getattr(transformers, f"{kind}Config")(**settings)
    return getattr(transformers, head or f"{kind}ForCausalLM")(config)


def families(section: str, part: str) -> dict[str, Callable[[], Any]]:
    """What makes each model, with random weights from torch's state."""
    made = {}
    for name, given in _TABLE[section][part].items():
        settings = {**_TABLE[section]["sizes"], **given}
        made[name] = partial(_make, settings.pop("kind"), settings.pop("head", None), settings)
    return made
