"""Keys and values of a record as people read them. Knows no Django."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import BaseModel

from cohort.base.formatting import minus
from grpo_core.config.run import RunConfig

_KEYS = {
    "at": "when",
    "by": "by whom",
    "code": "reason code",
    "end": "end of the run",
    "held": "passed",
    "higher_is": "a higher score is",
    "holdout": "split off from training",
    "id": "identifier",
    "lookup": "input embedding, parameters",
    "mde": "minimum detectable difference",
    "n": "number",
    "paid": "rewarded",
    "pays_part": "wrong answers rewarded in part",
    "pays_wrong": "wrong answers rewarded",
    "rejects": "right answers not rewarded",
    "stderr": "standard error",
    "wilson95": "95 % Wilson interval",
}
"""Keys that are no words, or other words than the pages'."""
_PARTS = {
    "cpus": "CPUs",
    "flop": "FLOP",
    "gpus": "GPUs",
    "kl": "KL",
    "lora": "LoRA",
    "mcnemar": "McNemar",
    "minhash": "MinHash",
    "ngram": "n-gram",
    "ngram8": "8-gram",
    "ngram13": "13-gram",
    "ngrams": "n-grams",
    "sha256": "SHA-256",
}
_SNAKE = re.compile(r"[a-z][a-z0-9_]*")
_DIGEST = re.compile(r"(?:[\w-]+:)?[0-9a-f]{32,128}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
_NUMBERED = ("run", "id", "seed", "index", "job")
"""Keys whose numbers count nothing."""
NAMES = ("name", "suite", "monitor", "slice", "path", "key", "run", "id")
"""Keys by which an object of a list is recognised in another record, in this order."""


def is_digest(value: Any) -> bool:
    """Whether a value of a field is a digest, or a collection of nothing else."""
    if isinstance(value, str):
        return _DIGEST.fullmatch(value) is not None
    if isinstance(value, Mapping):
        return bool(value) and all(map(is_digest, value.values()))
    return isinstance(value, list) and bool(value) and all(map(is_digest, value))


def _titles(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _titles(inner, f"{prefix}{name}.")
        elif info.title:
            yield prefix + name, info.title


@cache
def _settings() -> dict[str, str]:
    """Label of a setting by its path in the config."""
    return dict(_titles(RunConfig))


@cache
def _by_key() -> dict[str, str]:
    """Label by the last part of the path, where all settings of that name have the same one."""
    labels = defaultdict(set)
    for path, label in _settings().items():
        labels[path.rpartition(".")[2]].add(label)
    return {key: min(of_key) for key, of_key in labels.items() if len(of_key) == 1}


def setting_words(path: str) -> str:
    """Of a place in a config, or in what a record says of one: the setting's label in the run form. Empty for none."""
    return _settings().get(path) or _by_key().get(path.rpartition(".")[2], "")


def key_words(key: str) -> str:
    """A key of an object. What is no plain key, such as the name of a file, stays as it is."""
    if _SNAKE.fullmatch(key) is None:
        return key
    plain = " ".join(_PARTS.get(part, part) for part in key.split("_"))
    return _KEYS.get(key) or plain


def element_words(key: str, which: str | int) -> str:
    """An element of the list under `key`: by its name, or by its number from 1."""
    words = key_words(key)
    for ending, of_one in (("ies", "y"), ("sses", "ss"), ("ss", "ss"), ("s", "")):
        if words.endswith(ending):
            return f"{words.removesuffix(ending)}{of_one} {which}"
    return f"{words} {which}"


def number(value: float) -> str:
    if isinstance(value, float) and (value % 1 or abs(value) >= 1e15):
        return minus(f"{value:,.6g}".replace("e+", "e"))
    return minus(f"{int(value):,}")


def counts(path: str) -> bool:
    """Whether a number at this place is more than a name, so that a difference says something."""
    return path.rpartition(".")[2] not in _NUMBERED


def value_words(value: Any, path: str = "") -> str:
    """A value of JSON, at this place. Text is given as it is, but for times; digests inside a collection are cut."""
    if isinstance(value, str):
        return _time_words(value) or value or "empty"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int | float):
        return number(value) if counts(path) else str(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{key_words(str(key))} {_inner(child, str(key))}" for key, child in value.items()) or "none"
    return ", ".join(_inner(child, path) for child in value) or "none"


def _time_words(text: str) -> str:
    """Empty for a text that is no time in UTC."""
    if _TIME.fullmatch(text) is None:
        return ""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:  # such as of 30 February
        return ""
    return f"{at.day} {at:%b %Y, %H:%M:%S} UTC"


def _inner(value: Any, path: str) -> str:
    if isinstance(value, str) and is_digest(value):
        return f"{value[:12]}…"
    text = value_words(value, path)
    return f"({text})" if isinstance(value, Mapping) and value else text
