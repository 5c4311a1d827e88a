"""The graph of a pipeline: its order, its faults, the configs of its stages and what makes a stage out of date."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.sft import SftConfig
from grpo_core.errors import ConfigError
from grpo_core.pipeline.config import PipelineConfig
from grpo_core.pipeline.presets import pipeline_preset, pipeline_presets
from grpo_core.pipeline.stages import check_stages, resolve, stage_digest
from tests.tables import cases

REWARD = "{components: [{name: right, kind: numeric}]}"
R1 = f"""
name: r1
stages:
  rl2:
    model: {{stage: sft2}}
    data: {{path: train.jsonl}}
    reward: {{components: [{{name: rm, kind: reward_model, params: {{stage: judge}}}}]}}
    eval: {{before: false, after: false}}
  judge: {{kind: reward_model, model: {{stage: sft2}}, data: {{stage: pairs, replay_stage: pairs, holdout: 8}}}}
  sft2: {{kind: sft, model: {{path: base}}, data: {{stage: kept, more: [other.jsonl, {{stage: kept}}]}}}}
  cold_start: {{kind: sft, model: {{path: base}}, data: {{path: worked.jsonl}}}}
  rl:
    kind: grpo
    model: {{stage: cold_start}}
    data: {{path: train.jsonl}}
    reward: {REWARD}
    eval: {{before: false, after: false}}
  kept: {{kind: sample, model: {{stage: rl}}, data: {{path: train.jsonl}}, reward: {REWARD}}}
  pairs: {{kind: sample, rows: pairs, model: {{stage: rl}}, data: {{path: train.jsonl}}, reward: {REWARD}}}
"""


def r1() -> PipelineConfig:
    return PipelineConfig.from_text(R1)


@pytest.mark.parametrize(("stages", "faults"), cases("pipeline/faults", "stages", "faults"))
def test_faults_are_named_by_path(stages: dict[str, Any], faults: list[list[str]]) -> None:
    with pytest.raises(ConfigError) as refused:
        PipelineConfig.from_dict({"name": "p", "stages": stages})
    assert [[problem.path, problem.code] for problem in refused.value.problems] == faults


def test_a_circle_is_named() -> None:
    stages = {slug: {"kind": "sft", "model": {"stage": other}} for slug, other in ("ab", "bc", "ca")}
    with pytest.raises(ConfigError) as refused:
        PipelineConfig.from_dict({"name": "p", "stages": stages | {"d": {"kind": "sft", "model": {"stage": "a"}}}})
    (problem,) = refused.value.problems
    circles = ("a → c → b → a", "c → b → a → c", "b → a → c → b")  # each stage before the one that names it
    assert any(f": {circle}." in problem.message for circle in circles)


def test_a_stage_comes_after_what_it_names() -> None:
    pipeline = r1()
    assert pipeline.order == ("cold_start", "rl", "kept", "sft2", "pairs", "judge", "rl2")
    for slug, inputs in pipeline.inputs.items():
        assert all(pipeline.order.index(name) < pipeline.order.index(slug) for name in inputs)
    assert pipeline.inputs["rl2"] == ("sft2", "judge")
    assert pipeline.inputs["sft2"] == ("kept",)
    assert set(pipeline.below("kept")) == {"kept", "sft2", "judge", "rl2"}
    assert pipeline.below("rl2") == ("rl2",)


def test_references_become_paths() -> None:
    pipeline = r1()
    sft2 = resolve(pipeline, pipeline.stage("sft2"), {"kept": "../kept/run/rows"}, base=Path("/p"))
    assert isinstance(sft2, SftConfig)
    assert (sft2.name, sft2.data.path) == ("r1 sft2", "../kept/run/rows")
    assert sft2.data.more == ("/p/other.jsonl", "../kept/run/rows")
    judge = resolve(pipeline, pipeline.stage("judge"), {"sft2": "w", "pairs": "d"}).to_dict()
    assert (judge["kind"], judge["model"]["path"]) == ("reward_model", "w")
    assert (judge["data"]["path"], judge["data"]["replay_path"]) == ("d", "d")
    rl2 = resolve(pipeline, pipeline.stage("rl2"), {"sft2": "w", "judge": "j"}).to_dict()
    assert rl2["reward"]["components"][0]["params"] == {"path": "j"}


def test_a_models_folder_is_taken_from_the_pipelines_folder_only_if_it_is_there(tmp_path: Path) -> None:
    pipeline = r1()
    stage = pipeline.stage("cold_start")
    assert resolve(pipeline, stage, {}, base=tmp_path).to_dict()["model"]["path"] == "base"  # as GRPO_MODELS has it
    (tmp_path / "base").mkdir()
    assert resolve(pipeline, stage, {}, base=tmp_path).to_dict()["model"]["path"] == str(tmp_path / "base")


def test_faults_of_fields_carry_the_stages_name() -> None:
    pipeline = PipelineConfig.from_text(
        R1.replace("path: worked.jsonl}", "path: worked.jsonl}, optim: {steps: 0}").replace("path: base}", "pth: base}")
    )
    with pytest.raises(ConfigError) as refused:
        check_stages(pipeline)
    assert {(problem.path, problem.code) for problem in refused.value.problems} == {
        ("stages.cold_start.model.path", "missing"),
        ("stages.cold_start.model.pth", "unknown_field"),
        ("stages.cold_start.optim.steps", "greater_than_equal"),
        ("stages.sft2.model.path", "missing"),
        ("stages.sft2.model.pth", "unknown_field"),
    }


def test_what_makes_a_stage_another() -> None:
    """Its fields and what it is given; not its name, nor a default written out, nor other stages."""

    def digest(text: str, given: str = "1") -> str:
        pipeline = PipelineConfig.from_text(text)
        return stage_digest(pipeline, pipeline.stage("kept"), {"rl": given})

    stage = "kept: {kind: sample, "
    assert (
        digest(R1) == digest(R1.replace(stage, f"{stage}name: other, ")) == digest(R1.replace("name: r1", "name: r2"))
    )
    assert digest(R1) == digest(R1.replace(stage, f"{stage}rows: conversations, "))
    assert digest(R1) == digest(R1.replace("worked.jsonl", "better.jsonl"))
    assert digest(R1) != digest(R1.replace(stage, f"{stage}seed: 1, "))
    assert digest(R1) != digest(R1, "2")


@pytest.mark.parametrize("name", [preset.name for preset in pipeline_presets()])
def test_presets_are_valid_and_say_where_they_differ(name: str) -> None:
    preset = pipeline_preset(name)
    pipeline = PipelineConfig.from_text(preset.text)
    assert pipeline.name == name
    assert list(check_stages(pipeline)) == list(pipeline.order)
    assert len(preset.differences) >= 3


def test_the_papers_numbers() -> None:
    """arXiv 2501.12948: its supplement's training details; arXiv 2402.03300: sections 3.2 and 4.2."""
    r1 = {
        name: c.to_dict()
        for name, c in check_stages(PipelineConfig.from_text(pipeline_preset("deepseek-r1").text)).items()
    }
    assert (r1["sft"]["optim"]["batch_size"], r1["sft"]["optim"]["lr"]) == (128, 5e-5)
    assert r1["sft"]["optim"]["steps"] == 800_000 * 2 / 128
    assert r1["distillation"]["optim"]["steps"] == 800_000 * 2 / 64
    assert r1["preferences"]["optim"]["steps"] == -(-66_000 // 256)
    assert (r1["rl"]["algorithm"]["kl"]["coef"], r1["rl"]["optim"]["lr"], r1["rl"]["optim"]["steps"]) == (
        *(0.001, 3e-6),
        10_400 / 16,
    )
    assert (r1["rl_all"]["sampling"]["temperature"], r1["rl_all"]["optim"]["steps"]) == (0.7, 1_700 // 16)
    texts = pipeline_preset("deepseekmath-iterative").text
    rounds = {name: c.to_dict() for name, c in check_stages(PipelineConfig.from_text(texts)).items()}
    for number in (1, 2, 3):
        policy = rounds[f"policy_{number}"]
        assert policy["sampling"]["group_size"] * policy["sampling"]["prompts_per_step"] == 1024
        assert (policy["algorithm"]["kl"]["coef"], policy["optim"]["lr"]) == (0.04, 1e-6)
        assert rounds[f"judge_{number}"]["optim"]["lr"] == 2e-5
    assert [rounds[f"judge_{number}"]["data"]["replay_path"] for number in (1, 2, 3)] == [
        *(None, "stage:samples_1", "stage:samples_2"),
    ]
    assert all(rounds[f"judge_{number}"]["data"]["replay_share"] == 0.1 for number in (2, 3))
