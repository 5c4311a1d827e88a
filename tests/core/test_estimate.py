"""What a run will cost: lines by hand, the plan as a function of the config, then real calibrations."""

import json
from pathlib import Path

import pytest
import torch

from grpo_core.cli.main import main
from grpo_core.config.run import RunConfig
from grpo_core.errors import OutOfMemory
from grpo_core.estimate import calibrate
from grpo_core.estimate.calibrate import grown, line, measured_config, sizes
from grpo_core.records.estimate import Estimate, Estimated, compared
from grpo_core.rollout.base import Rollout
from grpo_core.rollout.make import make_rollout
from grpo_core.runtime.progress import Progress
from tests.tables import cases

from .runs import PLAIN, rows, setting
from .tiny import config


def test_a_line_through_two_sizes() -> None:
    assert line([(10, 3.0), (30, 7.0)]).at(100) == pytest.approx(21)  # 1 + 0.2 a piece
    assert line([(30, 6.0)]).at(10) == pytest.approx(2)
    assert line([(10, 8.0), (30, 6.0)]).at(60) == pytest.approx(12), "a larger one cost less: noise"
    assert line([(10, 1.0), (30, 6.0)]).at(60) == pytest.approx(12), "never less than nothing at size 0"


def test_a_peak_grows_up_to_the_portion_that_work_is_done_in() -> None:
    assert grown([(10, 100.0), (20, 150.0)], full=40) == pytest.approx(250)
    assert grown([(10, 100.0), (20, 150.0)], full=20) == 150
    assert grown([(10, 100.0), (20, 90.0)], full=40) == 100


@pytest.mark.parametrize(
    ("prompts", "group", "rollout", "minis", "wanted"),
    cases("core/estimate_sizes", "prompts", "group", "rollout", "minis", "sizes"),
)
def test_the_plan_follows_from_the_config(prompts, group, rollout, minis, wanted):
    sampling = {"group_size": group, "prompts_per_step": prompts, "max_completion_tokens": 8}
    parts = {"engine": {"rollout_batch": rollout}, "algorithm": {"mini_batches": minis}}
    assert list(sizes(config(sampling=sampling, **parts))) == wanted


def test_the_measured_config_cannot_move_weights() -> None:
    measured = measured_config(config(algorithm={"advantage": "gae", "scale": "batch_std"}))
    assert (measured.optim.lr, measured.optim.trpo.max_kl, measured.algorithm.critic.lr) == (0, 0, 0)


def estimate_of(home: Path, name: str, **parts: object) -> Estimate:
    config_ = RunConfig.from_file(setting(home, name).write(**parts))
    return calibrate.estimate(config_, base=home, progress=Progress(quiet=True))


SLOW = ("adaptive", "lora", "iterations", "trpo")


@pytest.mark.parametrize("name", ["plain", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_an_estimate_adds_up_and_moves_no_weight(runs_home: Path, monkeypatch, name: str) -> None:
    loaded, loading = [], calibrate.load_inputs

    def load(*words: object, **more: object) -> object:
        inputs = loading(*words, **more)
        model = inputs.policy.model
        loaded.append((model, {key: tensor.clone() for key, tensor in model.state_dict().items()}))
        return inputs

    monkeypatch.setattr(calibrate, "load_inputs", load)
    estimate = estimate_of(runs_home, name)
    ((model, before),) = loaded
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert estimate.config_digest == RunConfig.from_file(runs_home / f"{name}.yaml").digest()
    assert estimate.seconds_per_step == pytest.approx(sum(estimate.parts.values()))
    assert {"sample", "reward", "update"} <= set(estimate.parts)
    assert ("logprobs" in estimate.parts) == (name in ("adaptive", "iterations"))
    low, high = estimate.spread["seconds_per_step"]
    assert 0 < low <= estimate.seconds_per_step <= high
    assert estimate.seconds_total > 4 * estimate.seconds_per_step
    assert 50e6 < estimate.peak_memory_bytes < 20e9
    assert (
        estimate.spread["peak_memory_bytes"][0] <= estimate.peak_memory_bytes <= estimate.spread["peak_memory_bytes"][1]
    )
    assert 1 <= estimate.completion_tokens <= 4
    assert (estimate.device, estimate.device_name) == ("cpu", "cpu")
    assert estimate.shape is not None
    assert estimate.work is not None
    assert estimate.shape.parameters + estimate.shape.adapters == sum(p.numel() for p in model.parameters())
    assert (estimate.shape.adapters > 0) == (name == "lora")
    run = RunConfig.from_file(runs_home / f"{name}.yaml")
    assert estimate.work.completions == run.optim.steps * run.completions_per_step
    assert estimate.work.completion_tokens == pytest.approx(estimate.work.completions * estimate.completion_tokens)
    assert estimate.work.tokens > estimate.work.completion_tokens
    assert estimate.product_rate is not None
    assert 1e8 < estimate.product_rate < 1e15


def test_completions_that_all_reach_the_limit_are_told(runs_home: Path) -> None:
    short = {**PLAIN["sampling"], "max_completion_tokens": 1}
    estimate = estimate_of(runs_home, "plain", sampling=short)
    assert (estimate.length_from, estimate.completion_tokens) == ("limit", 1)
    assert any("limit of 1 tokens" in words for words in estimate.warnings)


@pytest.mark.parametrize(
    ("call", "error"),
    [("learn", torch.OutOfMemoryError("CUDA out of memory")), ("make_rollout", OutOfMemory("vLLM could not start"))],
)
def test_what_does_not_fit_is_out_of_memory(runs_home: Path, monkeypatch, call: str, error: Exception) -> None:
    def full(*words: object, **more: object) -> None:
        raise error

    monkeypatch.setattr(calibrate, call, full)
    with pytest.raises(OutOfMemory, match=r"^the calibration does not fit"):
        estimate_of(runs_home, "plain")


SERVER = {"rollout": "vllm", "vllm": {"place": "server"}}


@pytest.mark.parametrize(
    ("engine", "gpu"), [pytest.param({}, False, marks=pytest.mark.slow), (SERVER, False), (SERVER, True)]
)
def test_one_step_off_takes_time_off_where_a_server_samples_apart_and_says_where_not(
    runs_home: Path, monkeypatch, engine: dict[str, object], gpu: bool
) -> None:
    """The local sampler in place of the server, and a policy on a CPU that passes for one on a GPU."""
    apart, true_apart = bool(engine) and gpu, calibrate.apart
    if gpu:
        monkeypatch.setattr(calibrate, "apart", lambda config, device: true_apart(config, torch.device("cuda")))

    def local(config_: RunConfig, *words: object, **more: object) -> Rollout:
        own = config_.engine.model_copy(update={"rollout": "local"})
        return make_rollout(config_.model_copy(update={"engine": own}), *words, **more)

    monkeypatch.setattr(calibrate, "make_rollout", local)
    estimate = estimate_of(runs_home, "ahead", engine={"device": "cpu", **engine})
    drawing = estimate.parts["sample"] + estimate.parts["reward"]
    learning = estimate.parts["update"] + estimate.parts.get("logprobs", 0.0)
    assert estimate.seconds_per_step == pytest.approx(max(drawing, learning) if apart else drawing + learning)
    assert any("no time was taken off" in words for words in estimate.warnings) == (not apart)


@pytest.mark.slow
def test_a_run_that_goes_on_keeps_an_estimate_where_it_has_none(runs_home: Path, tmp_path: Path) -> None:
    run, out = setting(runs_home, "plain"), tmp_path / "out"
    kept, later, longer = out / "estimate.json", tmp_path / "later.json", {"steps": 5}
    later.write_text(ESTIMATE.model_dump_json(), encoding="utf-8")
    assert run.train(out) == 0
    assert run.train(out, "--resume", "--estimate", str(later)) != 0, "it has made its steps"
    assert not kept.exists(), "what is refused changes nothing"
    assert run.train(out, "--resume", "--estimate", str(later), optim=longer) == 0
    assert Estimate.model_validate_json(kept.read_text()) == ESTIMATE
    (event,) = [row for row in rows(out / "events.jsonl") if row.get("type") == "estimate"]
    assert event["data"]["estimate"]["seconds_per_step"] == 3.0


def test_the_command_and_the_run_that_compares_itself(runs_home: Path, tmp_path: Path, capsys) -> None:
    run = setting(runs_home, "plain")
    path, written = str(run.write()), tmp_path / "estimate.json"
    written.write_text("{}", encoding="utf-8")
    assert run.train(tmp_path / "refused", "--estimate", str(written)) != 0
    assert main(["estimate", path, "--out", str(written)]) == 0
    printed = capsys.readouterr().out
    assert "whole run" in printed
    assert "samples a step token by token, at most" in printed
    assert "FLOP by architecture" in printed
    assert "the indication is not reached" in printed
    estimate = Estimate.model_validate_json(written.read_text())
    assert run.train(tmp_path / "out", "--estimate", str(written)) == 0
    assert Estimate.model_validate_json((tmp_path / "out" / "estimate.json").read_text()) == estimate
    (event,) = [row for row in rows(tmp_path / "out" / "events.jsonl") if row.get("type") == "estimate"]
    steps = rows(tmp_path / "out" / "metrics.jsonl")
    took = sorted(step["seconds"]["total"] for step in steps)
    middle, most = (took[1] + took[2]) / 2, max(step["metrics"]["memory/peak_bytes"] for step in steps)
    assert event["data"]["actual"] == {"seconds_per_step": pytest.approx(middle), "peak_memory_bytes": most}


def test_the_lab_job(runs_home: Path, tmp_path: Path) -> None:
    config_ = RunConfig.from_file(setting(runs_home, "plain").write())
    job = {"kind": "estimate", "reward": config_.to_dict()["reward"], "options": {}, "config": config_.to_dict()}
    words = ["lab", str(runs_home / "job.json"), "--out", str(tmp_path / "lab")]
    (runs_home / "job.json").write_text(json.dumps(job), encoding="utf-8")
    assert main(words) == 0
    estimate = Estimate.model_validate_json((tmp_path / "lab" / "result.json").read_text())
    assert estimate.config_digest == config_.digest()
    (runs_home / "job.json").write_text(json.dumps({**job, "config": None}), encoding="utf-8")
    assert main(words) == 2
    assert "config" in json.loads((tmp_path / "lab" / "error.json").read_text())["message"]


_TIMES = {"seconds_per_step": 3.0, "seconds_total": 30.0, "calibration_seconds": 1.0, "parts": {}}
_SIZES = {"peak_memory_bytes": 2_000_000_000, "completion_tokens": 5.0, "length_from": "calibration", "prompts": 2}
ESTIMATE = Estimate(config_digest="d", device="cpu", device_name="cpu", **_TIMES, **_SIZES)


def test_the_error_by_hand() -> None:
    event = compared(ESTIMATE, seconds=[1.0, 4.0, 100.0], memory=[1e9, 1.6e9])
    assert event is not None
    assert event.data["actual"] == {"seconds_per_step": 4, "peak_memory_bytes": 1.6e9}
    assert event.data["error"] == {"seconds_per_step": pytest.approx(-0.25), "peak_memory_bytes": pytest.approx(0.25)}
    assert all(figure in event.message for figure in ("3 s", "4 s", "-25%", "2.0 GB", "1.6 GB", "+25%"))
    assert compared(ESTIMATE, seconds=[], memory=[]) is None
    assert Estimated(None).compared() is None
