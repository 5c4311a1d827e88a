"""`grpo suite`: makes, checks and lists files of suite items. Needs no torch."""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.errors import ConfigError, DataError
from grpo_core.text import printable

if TYPE_CHECKING:
    from grpo_core.evaluate.suites.formats import Format


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `suite`."""
    suite = commands.add_parser("suite", help="make, check and list evaluation suites")
    actions = suite.add_subparsers(metavar="ACTION", required=True)

    convert = actions.add_parser("convert", help="make suite items of a public set's files")
    convert.add_argument("format", metavar="FORMAT", help="gsm8k, mgsm, xstest, truthfulqa, wmdp, bfcl or jsonl")
    convert.add_argument("files", type=Path, nargs="+", metavar="FILE", help="the set's files")
    convert.add_argument("--out", type=Path, required=True, metavar="SUITE.jsonl", help="file of items to write")
    convert.add_argument("--name", help="the suite's name (default: the format's)")
    convert.add_argument("--limit", type=int, metavar="N", help="only the first so many items, or clusters of items")
    convert.add_argument(
        "--attack", action="append", default=[], metavar="NAME", help="each item under this attack; given again: more"
    )
    convert.set_defaults(handler=_convert)

    check = actions.add_parser("check", help="check a file of suite items and say what is in it")
    check.add_argument("file", type=Path, metavar="FILE", help="items as JSON lines")
    check.add_argument("--scorer", metavar="KIND", help="check targets for this scorer (default: that of FILE's suite)")
    check.set_defaults(handler=_check)

    listed = actions.add_parser("list", help="list the suites that come with Cohort")
    listed.add_argument("--json", action="store_true", help="as JSON")
    listed.set_defaults(handler=_list)


def _convert(options: argparse.Namespace) -> int:
    from grpo_core.evaluate.suites.formats import FORMATS, convert
    from grpo_core.evaluate.suites.load import described, settings_file

    if options.limit is not None and options.limit < 1:
        raise ConfigError("--limit must be at least 1")
    if options.out.suffix != ".jsonl":
        raise ConfigError(f"{options.out}: a file of items ends in .jsonl")
    files = [(path.name, _bytes(path)) for path in options.files]
    content = convert(options.format, files, limit=options.limit, attacks=options.attack)
    settings = _settings(options, FORMATS[options.format])
    sidecar = settings_file(options.out)
    if settings is not None:
        described(settings, source="the command line", path=options.out.name)
    try:
        options.out.write_bytes(content)
        if settings is not None:
            sidecar.write_text(json.dumps(settings, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {error.filename}: {error.strerror}") from None
    print(f"{options.out}: {len(content.splitlines()):,} items")
    if settings is not None:
        print(f"{sidecar}: scored by {settings['scorer']['kind']}, category {settings['category']}")
    return 0


def _settings(options: argparse.Namespace, format: "Format") -> dict[str, Any] | None:
    """Content of the settings file; None where the format has no scorer."""
    if format.scorer is None:
        return None
    return {
        "name": options.name or options.format,
        "title": format.title,
        "version": 1,
        "category": "jailbreak_robustness" if options.attack and format.scorer.kind == "refusal" else format.category,
        "scorer": format.scorer.model_dump(mode="json"),
        "higher_is": format.higher_is,
        "sensitive": format.sensitive,
    }


def _check(options: argparse.Namespace) -> int:
    from grpo_core.data.fingerprint import file_sha256
    from grpo_core.evaluate.scorer import scorer
    from grpo_core.evaluate.suites.load import settings_file, suite_at
    from grpo_core.evaluate.suites.reader import items_digest, load_items

    judge = None
    if options.scorer is not None:
        judge = scorer(options.scorer, {})
    elif settings_file(options.file).is_file():
        config = suite_at(str(options.file)).scorer
        judge = scorer(config.kind, config.params)
    items = load_items(options.file, scorer=judge)
    print(f"{options.file}: {len(items):,} items, {len({item.cluster or item.id for item in items}):,} clusters")
    for name, count in sorted(Counter(item.slice for item in items if item.slice).items()):
        print(f"  slice {printable(name)}: {count:,}")
    longest = max(items, key=lambda item: len(item.shown()))
    print(f"longest prompt: {len(longest.shown()):,} characters, of item {printable(longest.id)}")
    print(f"targets: {'fit the scorer ' + judge.name if judge is not None else 'not checked: no scorer is known'}")
    print(f"file SHA-256:  {file_sha256(options.file)}")
    print(f"items SHA-256: {items_digest(items)}")
    return 0


def _list(options: argparse.Namespace) -> int:
    from grpo_core.evaluate.suites.load import starters

    suites = starters()
    if options.json:
        shown = ("title", "version", "category", "items", "scorer", "higher_is", "sensitive", "limits", "sha256")
        rows = [
            {"path": f"builtin:{suite.name}", **{name: getattr(suite, name) for name in shown}}
            | {"scorer": suite.scorer.model_dump(mode="json")}
            for suite in suites
        ]
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return 0
    width = max((len(suite.name) for suite in suites), default=0)
    for suite in suites:
        print(f"builtin:{suite.name:{width}}  {suite.items:3} items  {suite.title}")
        print(f"{'':{width + 8}}  {suite.limits}")
    return 0


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"no such file: {path}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
