"""What people, workers and stored files rely on, whatever moves inside: commands and their options, the worker
protocol, records, settings and the digests of configs. After an intended change: --update-golden, then read the diff.
URLs are held by tests/web/test_access.py, environment variables by tests/test_operations.py.
"""

import argparse
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from cohort.cli import main as cohort_cli
from grpo_core.cli import main as grpo_cli
from grpo_core.config.presets import PRESETS
from grpo_core.config.run import RunConfig
from grpo_core.protocol import messages as wire
from grpo_core.records import types as records

Golden = Callable[[str, Any], None]


def without_prose(schema: Any) -> Any:
    """A JSON schema without titles and descriptions, which may be rewritten at any time."""
    if isinstance(schema, dict):
        prose = {name for name in ("title", "description") if isinstance(schema.get(name), str)}
        return {name: without_prose(value) for name, value in schema.items() if name not in prose}
    return [without_prose(value) for value in schema] if isinstance(schema, list) else schema


def test_worker_protocol(golden: Golden) -> None:
    messages = [
        value
        for value in vars(wire).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == wire.__name__
    ]
    assert len(messages) > 20
    golden(
        "interfaces/protocol.json",
        {message.__name__: without_prose(message.model_json_schema()) for message in messages},
    )


def test_records(golden: Golden) -> None:
    golden("interfaces/records.json", without_prose(records.ENVELOPE.json_schema()))


def test_settings(golden: Golden) -> None:
    golden("interfaces/config.json", without_prose(RunConfig.model_json_schema()))


def test_digests_of_configs(golden: Golden) -> None:
    """A digest names what a run was; it must not change with the code that computes it."""
    two = [{"name": "right", "kind": "numeric"}, {"name": "form", "kind": "r1_format"}]
    least = {
        "model": {"path": "base"},
        "data": {"path": "train.jsonl"},
        "reward": {"components": two},
        "eval": {"holdout": 8},
    }
    golden(
        "interfaces/digests.json",
        {name: RunConfig.from_dict({**least, "preset": name}).digest() for name in PRESETS},
    )


def test_commands_and_their_options(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """Without the sentences of the help."""
    built: list[argparse.ArgumentParser] = []

    def parse(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        built.append(parser)
        raise SystemExit(0)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    for main, words in ((grpo_cli.main, []), *((cohort_cli.main, words) for words in ([], ["audit"], ["verify"]))):
        with pytest.raises(SystemExit):
            main(words)
    golden("interfaces/commands.json", {parser.prog: options_of(parser) for parser in built})


def options_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Every option and argument by its name: how many values it takes and which; commands with theirs."""
    tree: dict[str, Any] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            tree.update({name: options_of(below) for name, below in action.choices.items()})
        elif not isinstance(action, argparse._HelpAction):
            name = " ".join(action.option_strings) or str(action.metavar or action.dest)
            kind = "flag" if action.nargs == 0 else f"{action.nargs or 1} of {action.choices or action.metavar}"
            tree[name] = f"{kind}, required" if action.required else kind
    return tree
