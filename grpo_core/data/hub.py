"""Files of a dataset on the Hugging Face Hub at a pinned commit: which are of a config and split; their download.

The dataset card's `configs` decides, as it does for `datasets`; without it the names of files and folders do
(huggingface.co/docs/hub/datasets-manual-configuration and datasets-file-names-and-splits). No code of a dataset is run.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo_core.errors import DataError
from grpo_core.specs.fields import HubSplit

_SUFFIXES = tuple(kind + packed for kind in (".parquet", ".jsonl", ".json", ".csv", ".tsv") for packed in ("", ".gz"))
_CARD = "README.md"
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words in a file's or folder's name that mean the split; another split is called by its own name only."""
_GLOB = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def find_data(path: str, hub: HubSplit | None, *, base: Path) -> tuple[Path, ...]:
    """The files that `data.path` or `eval.path` means: one of this machine, a relative path starting at `base`; with
    `hub` those of that config and split in the Hub repository `path`, in order, downloaded where they are not yet.

    A file of the same name never replaces a Hub repository. Raises DataError.
    """
    if hub is None:
        return (base / Path(path).expanduser(),)
    try:
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
        from huggingface_hub.repocard import metadata_load
        from huggingface_hub.utils import httpx  # type: ignore[attr-defined]
    except ImportError:
        raise DataError(f"{path}: to read a dataset on the Hub, install cohort-grpo[train]") from None
    pinned: dict[str, Any] = {"repo_type": "dataset", "revision": hub.revision}
    try:
        names = HfApi().list_repo_files(path, **pinned)
        card = metadata_load(hf_hub_download(path, _CARD, **pinned)) if _CARD in names else None
        chosen = split_files(names, card or {}, hub, source=path)
        return tuple(Path(hf_hub_download(path, name, **pinned)) for name in chosen)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        raise DataError(f"cannot get the dataset {path!r} at {hub.revision} from the Hub: {error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DataError(f"{path}: the YAML of its dataset card cannot be read: {error}") from None


def split_files(names: Sequence[str], card: Mapping[str, Any], hub: HubSplit, *, source: str) -> list[str]:
    """Of a repository's files `names` those of the config and split, in order. `card` is the YAML of its dataset card.
    Raises DataError that names the configs or splits there are."""
    data = sorted(name for name in names if name.endswith(_SUFFIXES) and not re.search(r"(^|/)[._]", name))
    configs = card.get("configs") or []
    if not isinstance(configs, list) or not all(isinstance(entry, dict) for entry in configs):
        raise DataError(f"{source}: the dataset card's configs is no list of objects")
    if configs:
        entry = _config(configs, hub.config, source)
        folder = str(entry.get("data_dir", "")).strip("/")
        splits = _card_splits(entry.get("data_files"), _below(data, folder), folder, source)
    else:
        folder = hub.config or ""
        splits = _named_splits(_below(data, folder), folder)
    if not splits:
        there = f" in the folder {folder}" if folder else ""
        raise DataError(f"{source}: has no data files{there}; expected Parquet, JSON, CSV or TSV")
    if not splits.get(hub.split):
        raise DataError(f"{source}: has no split {hub.split!r}; there are {', '.join(splits)}. Give it as hub.split")
    return splits[hub.split]


def _config(configs: Sequence[Mapping[str, Any]], wanted: str | None, source: str) -> Mapping[str, Any]:
    named = {str(entry.get("config_name", "default")): entry for entry in configs}
    default = [name for name, entry in named.items() if entry.get("default") or name == "default" or len(named) == 1]
    name = wanted or next(iter(default), None)
    if name not in named:
        lacking = "has several configs" if wanted is None else f"has no config {wanted!r}"
        raise DataError(f"{source}: {lacking}; there are {', '.join(named)}. Give one as hub.config")
    return named[name]


def _card_splits(given: Any, names: list[str], folder: str, source: str) -> dict[str, list[str]]:
    """{split: files} of a card's `data_files`: patterns, or a list of {split, path}, or {split: patterns}."""
    if given is None:
        return _named_splits(names, folder)
    entries = given if isinstance(given, list) else [given]
    by_split: dict[str, list[str]] = {}
    for entry in entries:
        if isinstance(entry, dict):
            pairs = [(entry["split"], entry.get("path"))] if "split" in entry else list(entry.items())
        else:
            pairs = [("train", entry)]
        for split, patterns in pairs:
            for pattern in patterns if isinstance(patterns, list) else [patterns]:
                if not isinstance(pattern, str):
                    raise DataError(f"{source}: the dataset card's data_files has no path for the split {split!r}")
                whole = _pattern(f"{folder}/{pattern}" if folder else pattern)
                files = by_split.setdefault(str(split), [])
                files += [name for name in names if whole.fullmatch(name) and name not in files]
    return by_split


def _pattern(glob: str) -> re.Pattern[str]:
    """Of fsspec: `*` stays within a folder, `**` does not."""
    pieces = re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|.", glob)
    return re.compile("".join(_GLOB.get(piece, piece if len(piece) > 1 else re.escape(piece)) for piece in pieces))


def _named_splits(names: list[str], folder: str) -> dict[str, list[str]]:
    """By the words in the files' names, else by those of their folders; all is train where no name says a split."""
    inner = {name: name.removeprefix(f"{folder}/" if folder else "") for name in names}
    for part in (2, 0):  # the file's name, the folder's
        by_split: dict[str, list[str]] = {}
        for name, below in inner.items():
            if split := _split_of(below.rpartition("/")[part]):
                by_split.setdefault(split, []).append(name)
        if by_split:
            return by_split
    return {"train": names} if names else {}


def _split_of(text: str) -> str | None:
    if match := re.match(r"(\w[\w.]*)-\d{5}-of-\d{5}", text):
        text = match[1]
        if not any(text in words for words in _SPLIT_NAMES.values()):
            return text
    words = re.split(r"[-._ /0-9]+", text.lower())
    return next((split for split, known in _SPLIT_NAMES.items() if not {*known}.isdisjoint(words)), None)


def _below(names: list[str], folder: str) -> list[str]:
    return [name for name in names if name.startswith(f"{folder}/")] if folder else names
