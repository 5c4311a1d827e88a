"""The pages on losses: every configuration in them is one that a run accepts, and every loss has one."""

import re
from pathlib import Path

import pytest

from grpo_core.config import RunConfig
from grpo_core.yaml_text import parse_yaml

PAGES = sorted((Path(__file__).resolve().parents[3] / "docs/losses").glob("*.md"))
SNIPPETS = [
    pytest.param(found.group(1), id=f"{page.name}-{number}")
    for page in PAGES
    for number, found in enumerate(re.finditer(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL), start=1)
]
PARTS = {
    "model": {"path": "models/demo"},
    "data": {"path": "train.jsonl"},
    "reward": {"components": [{"name": "right", "kind": "numeric"}, {"name": "sums", "kind": "equations"}]},
    "eval": {"holdout": 8},
}
"""What a run needs besides; two rewards, for the pages on several."""


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_run_accepts_the_snippet(snippet):
    given = parse_yaml(snippet)
    assert set(given) & {"algorithm", "preset"}
    config = RunConfig.from_dict({**PARTS, **given})
    for name, value in given.get("algorithm", {}).items():
        if not isinstance(value, dict):
            assert getattr(config.algorithm, name) == value
