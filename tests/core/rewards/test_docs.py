"""Every kind of reward has a page with all of its parameters, and every example in docs/rewards is so.

An example is a block marked `yaml reward` and, after it, blocks marked `completion`:

    ```yaml reward
    reward:
      components:
        - {name: right, kind: numeric}
    problem: {prompt: "what is 37 + 45?", answer: "82"}
    ```

    ```completion
    <answer>82</answer>
    → 1: 82
    ```

`reward` is what a config's `reward` is. `problem` has prompt and answer, both may be left out, and any further fields,
which become the problem's meta. The last line of a completion is an arrow and the reward that the whole rubric gives,
to the decimals written; the lines above it, without the newline before the arrow, are the completion. It continues with

    → 0.5 at 18432 tokens       the completion's tokens, where a kind counts them
    → 1: 82                     the first component's detail, all of it, or its beginning followed by …
    → error sample              no reward, with the class of the first component's error; a colon and the error's
                                beginning may follow

A block marked `judge` is what the judge says of the completion after it.
"""

import re
from pathlib import Path

import pytest
import yaml
from transformers import LlamaForSequenceClassification, LlamaForTokenClassification

from grpo_core.data import Problem
from grpo_core.rewards import KINDS, Runner, ScoreRequest
from grpo_core.rewards.base import Context
from tests.needs import needs

from .classifiers import save_counting
from .judge_server import Server, says
from .scoring import SINGLE, rubric_of

PAGES = Path(__file__).resolve().parents[3] / "docs" / "rewards"
BLOCK = re.compile(r"^(`{3,})(yaml reward|completion|judge)\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
ARROW = re.compile(
    r"→ (?:(?P<value>[-−]?[0-9]+(?:\.(?P<decimals>[0-9]+))?)|error (?P<error>[a-z]+))"
    r"(?: at (?P<tokens>[0-9]+) tokens)?(?:: (?P<detail>.+))?"
)


def examples(kind):
    """(reward and problem, completions): of each completion its text, its last line, and what the judge says of it."""
    blocks, judge = [], ""
    for _, name, text in BLOCK.findall((PAGES / f"{kind}.md").read_text(encoding="utf-8")):
        if name == "yaml reward":
            blocks.append((yaml.safe_load(text), []))
        elif name == "judge":
            judge = text
        else:
            completion, _, last = f"\n{text}".rpartition("\n")
            blocks[-1][1].append((completion.removeprefix("\n"), ARROW.fullmatch(last), judge))
            judge = ""
    return blocks


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_counting(folder / "models" / "reward", LlamaForSequenceClassification)
    save_counting(folder / "models" / "process", LlamaForTokenClassification)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_a_page_with_its_parameters_and_true_examples(kind, home, monkeypatch):
    if kind == "reasoning_gym":
        needs("reasoning-gym")
    page = (PAGES / f"{kind}.md").read_text(encoding="utf-8")
    assert [name for name in KINDS[kind].params.model_fields if f"`{name}`" not in page] == []
    assert sum(len(shown) for _, shown in examples(kind)) >= 2
    for example, shown in examples(kind):
        assert shown
        words = {re.sub("</?answer>", "", completion): judge for completion, _, judge in shown if judge}
        with Server(lambda seen, words=words: says(words[seen.completion])) as server:
            components = example["reward"].pop("components")
            for component in components:
                if component["kind"] == "judge":
                    monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.address)
                    component["params"] |= {"base_url": server.url, "key_env": None}
            fields = {"prompt": "", "answer": "", **example.get("problem", {})}
            problem = Problem("example", fields.pop("prompt"), fields.pop("answer"), fields)
            # Processes take longer to start than to score.
            rubric = rubric_of(*components, **{**example["reward"], "limits": SINGLE})
            with Runner(rubric, Context(base=home)) as runner:
                scored = runner.score(
                    [ScoreRequest(problem, text, int(line["tokens"] or 0) or None) for text, line, _ in shown]
                )
            assert len(server.seen) == len(words)
        for (completion, line, _), result in zip(shown, scored, strict=True):
            first = next(iter(result.components.values()))
            message = first.error if line["error"] else first.detail
            assert first.error_class == line["error"], (completion, first)
            if line["value"] is None:
                assert result.reward is None, completion
            else:
                decimals = len(line["decimals"] or "") or 12  # a whole number is meant exactly
                off = result.reward - float(line["value"].replace("−", "-"))
                assert abs(off) <= 0.5 * 10**-decimals + 1e-12, (completion, result.reward)
            if line["detail"] is not None:
                exact = not line["error"] and not line["detail"].endswith("…")
                assert message == line["detail"] if exact else message.startswith(line["detail"].removesuffix("…"))
