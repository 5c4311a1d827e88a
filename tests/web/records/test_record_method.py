"""The record's sentences about the method: for each choice what is true of it, and nothing that is true of another."""

from collections.abc import Callable
from typing import Any

import pytest

from cohort.records.sections import method_text as method_words
from cohort.records.sections.data import layout_text
from grpo_core.advantages.settings import ESTIMATORS
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.optim import OptimConfig
from grpo_core.config.presets import PRESETS
from grpo_core.config.run import RunConfig
from tests.tables import cases

GIVEN: dict[str, Any] = {
    "data": {"path": "d"},
    "reward": {"components": [{"name": "right", "kind": "numeric"}, {"name": "form", "kind": "r1_format"}]},
    "eval": {"holdout": 8},
}


def config(lora: dict[str, Any] | None = None, **parts: Any) -> RunConfig:
    return RunConfig.from_dict({**GIVEN, "model": {"path": "m", "lora": lora or {}}, **parts})


def words(run_config: RunConfig) -> dict[str, Any]:
    algorithm = run_config.algorithm
    return {
        "method": list(method_words.training_method(run_config)),
        "loss": method_words.loss(algorithm),
        "normalization": method_words.normalization(algorithm),
        "clipping": method_words.clipping(algorithm),
        "clipping_note": method_words.clipping_note(algorithm),
        "kl": method_words.kl(run_config),
        "reference": method_words.reference(run_config),
        "silent_groups": method_words.silent_groups(algorithm, remaining=True),
        "sampling_controls": method_words.sampling_controls(algorithm),
        "overlong": method_words.overlong(algorithm),
        "optimiser": method_words.optimiser(run_config),
        "adapters": method_words.adapters(run_config),
    }


def test_each_choice_in_words(golden: Callable[[str, Any], None]) -> None:
    """After the defaults, only what other choices change."""
    usual = words(config())
    others = []
    for algorithm, optim, lora in (case.values for case in cases("records/methods", "algorithm", "optim", "lora")):
        parts = {"algorithm": AlgorithmConfig.model_validate(algorithm), "optim": OptimConfig(**(optim or {}))}
        whole = config(lora).model_copy(update=parts)
        changed = {name: text for name, text in words(whole).items() if text != usual[name]}
        others.append({"algorithm": algorithm, **({"optim": optim} if optim else {}), **changed})
    golden("records/method_words.json", [usual, *others])


def test_a_base_in_4_bits_is_named() -> None:
    quantized = config({"rank": 4})
    quantized = quantized.model_copy(
        update={"model": quantized.model.model_copy(update={"quantization": "nf4"})},
    )
    assert (
        "all other weights are frozen, those of the base model's linear layers in 4 bits (NF4)"
        in words(quantized)["adapters"]
    )
    assert "4 bits" not in words(config({"rank": 4}))["adapters"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_put_in_words(name: str) -> None:
    said = str(words(config(preset=name)))
    assert "None" not in said
    assert "{" not in said[1:]


def test_only_what_compares_with_the_group_says_so() -> None:
    for advantage, spec in ESTIMATORS.items():
        for scale in spec.scales:
            k = 2 if advantage == "pass_at_k" else None
            algorithm = AlgorithmConfig.model_validate({"advantage": advantage, "scale": scale, "pass_k": k})
            grouped = advantage in ("group", "rloo", "maxrl", "pass_at_k", "reinforce_pp_baseline")
            assert ("group" in method_words.normalization(algorithm)) == grouped, advantage
    assert method_words.silent_groups(config().algorithm, remaining=False) == "", "where none was trained on"


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            {"system": "system", "id": "id", "prompt": "question"},
            "prompt from question; where a row has it, system from system, id from id",
        ),
        ({"system": "", "id": "task_id", "prompt": "text"}, "id from task_id, prompt from text"),
    ],
)
def test_a_column_that_a_file_may_lack_is_named_as_such(columns: dict[str, str], text: str) -> None:
    assert layout_text({"format": "plain", "container": "jsonl", "columns": columns}) == (
        f"; JSON lines read as Prompt and answer ({text})"
    )
