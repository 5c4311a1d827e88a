"""However the work is cut, a run ends with the same loss and the same weights: through the real command.

Micro-batches, layouts, ranks and the zero-advantage skip change where numbers are computed, never which. Three Adam
steps in fp32: a wrong denominator in any of them would move every weight by a learning rate.
"""

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from grpo_core.cli import main
from grpo_core.config_algorithm import AlgorithmConfig
from grpo_core.model.layout import plan_micro_batches

from .tiny import config, tiny_folder

ENDS = list(range(30))
"""Ids that end a completion. One byte in nine does, so lengths are uneven and some completions are cut off."""
LR = 1e-4
STEPS = 3


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    base = tiny_folder(folder / "base")
    settings = base / "generation_config.json"
    told = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps({**told, "eos_token_id": ENDS}))
    problems = [{"prompt": "say " + "x" * (n % 7), "answer": "k"} for n in range(12)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems), encoding="utf-8")
    return folder


BASE = {
    "sampling": {"group_size": 4, "prompts_per_step": 8, "max_completion_tokens": 24, "temperature": 0.9},
    # The reward falls with the length of long completions: some groups differ, and in some all are short and equal.
    "algorithm": {"overlong": {"buffer_tokens": 12}},
    # Of a gradient that is next to nothing Adam makes a whole step, so also of what rounding leaves where the parts of
    # one cancel. With this eps it does not, and the step of a gradient that teaches something is the same.
    "optim": {"steps": STEPS, "lr": LR, "max_grad_norm": 1e9, "weight_decay": 0.1, "eps": 1e-6},
    "engine": {"threads": 1, "micro_batch_tokens": 100_000, "layout": "right"},
    "traces": {"groups_per_step": 100},
}


def settings(**parts):
    if parts["algorithm"].get("aggregation") == "sequence_total":
        # This loss is a sum over completions, so gradients are tens of times larger, and so is the rounding left over
        # in an element where they cancel: about 1e-5, more on some CPUs. Adam divides such an element by nearly nothing
        # but its eps, and with a small one makes a whole step of the rounding.
        parts["optim"] = {"eps": 1e-2}
    return {name: {**BASE.get(name, {}), **parts.get(name, {})} for name in (*BASE, *parts)}


def trained(home, out, parts, *, ranks=1):
    """Run the command; returns the weights and the losses."""
    path = home / f"{out.name}.yaml"
    parts["engine"] = {**parts.get("engine", {}), "devices": ranks}
    path.write_text(config(**parts).to_yaml(), encoding="utf-8")
    words = ["train", str(path), "--out", str(out)]
    if ranks == 1:
        assert main(words) == 0
    else:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        done = subprocess.run(
            [sys.executable, *launcher, "-m", "grpo_core.cli", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
    weights = load_file(out / "checkpoints" / "final" / "model.safetensors")
    return {name: tensor.double() for name, tensor in weights.items()}, metrics_of(out)


def metrics_of(out):
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["record"]["metrics"] for line in lines]


def groups_of(out):
    files = sorted((out / "samples").glob("*.jsonl"))
    return [json.loads(line)["record"] for file in files for line in file.read_text(encoding="utf-8").splitlines()]


PER_SEQUENCE = {"aggregation": "sequence_mean"}
AGAIN = {"inner_iterations": 2}  # a ratio other than 1, so that clips and masks have something to do
VARIANTS = {
    "grpo": {**PER_SEQUENCE, "kl": {"coef": 0.04}, **AGAIN},
    "bnpo": {"aggregation": "local_token_mean", "local_batch": 6},
    "dapo": {"aggregation": "token_mean", "clip_high": 0.28},
    "dr_grpo": {"aggregation": "constant", "aggregation_constant": 24, "scale": "none"},
    "gspo": {**PER_SEQUENCE, "loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "mini_batches": 3},
    "gspo_token": {**PER_SEQUENCE, "loss": "gspo_token", **AGAIN},
    "gmpo": {**PER_SEQUENCE, "loss": "gmpo", "clip_low": 0.4, "clip_high": 0.4, **AGAIN},
    "cispo": {"loss": "cispo", "clip_high": 5.0, "mini_batches": 2},
    "sapo": {**PER_SEQUENCE, "loss": "sapo", **AGAIN},
    "vespo": {"loss": "vespo", **AGAIN},
    "luspo": {"loss": "luspo", "aggregation": "sequence_sum", **AGAIN},
    "dppo": {"loss": "dppo", "kl": {"coef": 0.001, "estimator": "k2", "target": "old"}, **AGAIN},
    "simplified": {
        "loss": "sequence_ratio",
        "aggregation": "sequence_total",
        "scale": "none",
        "kl": {"coef": 0.04, "target": "old"},
        **AGAIN,
    },
    "reinforce": {"loss": "reinforce", "advantage": "rloo", "scale": "none", "aggregation": "sequence_sum"},
    "reinforce_pp": {
        "advantage": "reinforce_pp",
        "scale": "batch_std",
        "kl": {"coef": 0.1, "estimator": "k1", "place": "reward", "controller": "adaptive", "horizon": 50},
        "reference": {"refresh": "average", "every": 2},
    },
    "masks": {
        "denominator": "informative",
        "entropy_coef": 0.01,
        "top_entropy_share": 0.5,
        "off_policy_threshold": 1e-4,
        "correction": {"mode": "sequence_mask", "low": 0.9, "high": 1.1},
        "overlong": {"buffer_tokens": 12, "mask_truncated": True},
        "mini_batches": 2,
        **AGAIN,
    },
    "two_sided": {"clip_delta": 1.5, **AGAIN},
    "ppo": {
        "advantage": "gae",
        "scale": "batch_std",
        "critic": {"lr": 1e-4},
        "kl": {"coef": 0.05, "estimator": "k1", "place": "reward"},
        "mini_batches": 2,
    },
}


@pytest.fixture(scope="module", params=VARIANTS)
def whole(home, tmp_path_factory, request):
    """One micro-batch, padded on the right, one rank, zero-advantage rows skipped."""
    algorithm = VARIANTS[request.param]
    out = tmp_path_factory.mktemp(request.param) / "whole"
    return out, algorithm, trained(home, out, settings(algorithm=algorithm))


def lengths(out, step):
    """Tokens of the completions of a step that the update ran, prompt included (the tokenizer's tokens are bytes)."""
    return [
        len(group["prompt"]) + sample["tokens"]
        for group in groups_of(out)
        for sample in group["samples"]
        if group["step"] == step and sample["advantage"] != 0
    ]


def assert_same(found, expected, *, slack=1e-6):
    """The same weights to 1e-6, the same losses to `slack`."""
    (weights, metrics), (other, others) = found, expected
    assert weights.keys() == other.keys()
    for name, tensor in weights.items():
        assert (tensor - other[name]).abs().max() < 1e-6, name
    assert len(metrics) == len(others) == STEPS
    for mine, theirs in zip(metrics, others, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=slack, rel=2e-6)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
        assert mine["reward"] == theirs["reward"]


def test_the_run_is_worth_comparing(home, whole):
    """It moved every matrix by about the learning rate a step, with lengths, rewards and groups of several kinds."""
    out, _, (weights, metrics) = whole
    before = load_file(home / "base" / "model.safetensors")
    for name, tensor in weights.items():
        assert (tensor - before[name].double()).abs().max() > 2 * LR, name
    assert all(one["grad_norm"] > 0.01 for one in metrics)
    assert len(set(lengths(out, 1))) > 5
    signals = {group["signal"] for group in groups_of(out)}
    assert signals == {"mixed", "all_equal"}, "some groups must carry no signal"
    assert any(sample["finish_reason"] == "length" for group in groups_of(out) for sample in group["samples"])


def slack(algorithm):
    """What a loss may differ by: 1e-6, for each of the 32 completions where it is a sum over them. VESPO's weights are
    exponentials of sums over completions, which let the rounding of two dozen log-probabilities add up."""
    if algorithm.get("loss") == "vespo":
        return 1e-5
    return 32e-6 if algorithm.get("aggregation") == "sequence_total" else 1e-6


def portions(out, layout, parts):
    """A token budget that cuts the first step's rows into `parts` micro-batches; about so many where prompts are
    shared."""
    seen = lengths(out, 1)
    if layout == "shared":
        return sum(seen) // parts
    budget = next(n for n in range(max(seen) * len(seen), 0, -1) if len(plan_micro_batches(seen, n, layout)) >= parts)
    assert len(plan_micro_batches(seen, budget, layout)) == parts
    return budget


@pytest.mark.parametrize(("layout", "parts"), [("right", 8), ("left", 1), ("packed", 2), ("shared", 3)])
def test_micro_batches_and_layouts(home, whole, tmp_path, layout, parts):
    """Against one micro-batch padded on the right: cut in two, in eight, padded on the left, packed."""
    out, algorithm, expected = whole
    engine = {"layout": layout, "micro_batch_tokens": portions(out, layout, parts)}
    assert_same(
        trained(home, tmp_path / "cut", settings(algorithm=algorithm, engine=engine)), expected, slack=slack(algorithm)
    )


@pytest.mark.parametrize("whole", ["grpo", "masks"], indirect=True)
@pytest.mark.parametrize("layout", ["right", "shared"])
def test_recomputed_layers(home, whole, tmp_path, layout):
    _, algorithm, expected = whole
    engine = {"layout": layout, "gradient_checkpointing": True}
    assert_same(
        trained(home, tmp_path / "again", settings(algorithm=algorithm, engine=engine)),
        expected,
        slack=slack(algorithm),
    )


LEARNS_OF_ZERO = {"grpo", "dppo", "simplified", "masks", "ppo"}
"""Where a completion of advantage 0 has a gradient, so that nothing may be skipped: of a KL term or an entropy bonus in
the loss, or in the critic."""
INERT = [name for name in VARIANTS if name not in LEARNS_OF_ZERO]


@pytest.mark.parametrize("name", VARIANTS)
def test_which_variants_may_skip(name):
    assert AlgorithmConfig.model_validate(VARIANTS[name]).zero_advantage_is_inert == (name in INERT)


@pytest.mark.parametrize("whole", INERT, indirect=True)
def test_zero_advantage_skip(home, whole, tmp_path):
    _, algorithm, expected = whole
    engine = {"skip_zero_advantage": False}
    assert_same(
        trained(home, tmp_path / "all", settings(algorithm=algorithm, engine=engine)), expected, slack=slack(algorithm)
    )


@pytest.mark.parametrize("whole", ["masks"], indirect=True)
def test_two_ranks(home, whole, tmp_path):
    _, algorithm, expected = whole
    engine = {"micro_batch_tokens": 300}
    assert_same(
        trained(home, tmp_path / "two", settings(algorithm=algorithm, engine=engine), ranks=2),
        expected,
        slack=slack(algorithm),
    )


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["grpo", "dapo", "ppo"], indirect=True)
def test_two_ranks_with_more_algorithms(home, whole, tmp_path):
    test_two_ranks(home, whole, tmp_path)


@pytest.mark.slow
def test_two_ranks_refill_with_the_same_groups(home, tmp_path):
    """Dynamic sampling on two ranks draws, keeps, leaves out and leaves over what one does."""
    parts = settings(
        algorithm={"overlong": {}, "dynamic_sampling": {"enabled": True, "max_batches": 20}},
        sampling={"group_size": 192, "prompts_per_step": 4, "max_completion_tokens": 1},
    )

    def told(name, ranks):
        trained(home, tmp_path / name, parts, ranks=ranks)
        groups = groups_of(tmp_path / name)
        return [
            (g["step"], g["index"], g["problem_id"], g["discarded"], g["sampled_at"], g["reward_mean"]) for g in groups
        ]

    alone = told("alone", 1)
    assert {discarded for _, _, _, discarded, _, _ in alone} == {None, "all_wrong"}
    assert told("two", 2) == alone
