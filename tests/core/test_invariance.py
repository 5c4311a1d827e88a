"""However the work is cut, a run ends with the same loss and the same weights: through the real command.

Micro-batches, layouts, ranks and the zero-advantage skip change where numbers are computed, never which. Three Adam
steps in fp32: a wrong denominator in any of them would move every weight by a learning rate.
"""

import os
import subprocess
import sys
from functools import cache

import pytest
import yaml
from safetensors.torch import load_file

from grpo_core.cli.main import main
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.model.layout import plan_micro_batches
from tests.tables import FOLDER, cases

from .runs import far, groups_of, make_letters, metrics_of, samples_of, weights_of, write_problems
from .tiny import config

LR, STEPS = 1e-4, 3
_TABLE = yaml.safe_load((FOLDER / "trainer/invariance.yaml").read_text(encoding="utf-8"))
BASE, CUTS, QUICK = _TABLE["base"], _TABLE["cuts"], _TABLE["quick"]
VARIANTS = {case.values[0]: case.values[1] for case in cases("trainer/variants", "name", "algorithm")}
LEARNS_OF_ZERO = {"grpo", "dppo", "simplified", "masks", "ppo"}
"""Where a completion of advantage 0 has a gradient, so that nothing may be skipped: of a KL term or an entropy bonus in
the loss, or in the critic."""
ALL = [
    pytest.param(name, cut, marks=[] if [name, cut] in QUICK else pytest.mark.slow)
    for name in VARIANTS
    for cut in CUTS
    if not (cut == "no-skip" and name in LEARNS_OF_ZERO)
    and not (cut.endswith("recomputed") and name not in ("grpo", "masks"))
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = make_letters(tmp_path_factory.mktemp("home"))
    write_problems(home / "train.jsonl", ["say " + "x" * (n % 7) for n in range(12)])
    return home


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
        command = [sys.executable, *launcher, "-m", "grpo_core.cli.main", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
    return weights_of(out), metrics_of(out)


@pytest.fixture(scope="module")
def whole(home, tmp_path_factory):
    """The run of a variant in one micro-batch padded on the right, on one rank, zero-advantage rows skipped. Worth
    comparing: it moved every matrix by about the learning rate a step, with lengths, rewards and groups of several
    kinds."""

    @cache
    def of(name):
        out = tmp_path_factory.mktemp(name) / "whole"
        weights, metrics = trained(home, out, settings(algorithm=VARIANTS[name]))
        before = load_file(home / "ends" / "model.safetensors")
        assert all((tensor - before[key]).abs().max() > 2 * LR for key, tensor in weights.items())
        assert all(step["grad_norm"] > 0.01 for step in metrics)
        assert len(set(lengths(out))) > 5
        assert {group["signal"] for group in groups_of(out)} == {"phantom", "all_equal"}
        assert any(sample["finish_reason"] == "length" for sample in samples_of(out))
        return out, (weights, metrics)

    return of


def lengths(out):
    """Tokens of the completions of step 1 that the update ran, prompt included (the tokenizer's tokens are bytes)."""
    return [
        len(group["prompt"]) + sample["tokens"]
        for group in groups_of(out)
        for sample in group["samples"]
        if group["step"] == 1 and sample["advantage"] != 0
    ]


def assert_same(name, got, expected):
    """The same weights to 1e-6, the same losses to 1e-6, for each of the 32 completions where it is a sum over them.
    VESPO's weights are exponentials of sums over completions, which let the rounding of two dozen log-probabilities
    add up."""
    slack = 1e-5 if name == "vespo" else 32e-6 if VARIANTS[name].get("aggregation") == "sequence_total" else 1e-6
    (weights, metrics), (other, others) = got, expected
    assert far(weights, other) < 1e-6
    assert len(metrics) == len(others) == STEPS
    for mine, theirs in zip(metrics, others, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=slack, rel=2e-6)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
        assert mine["reward"] == theirs["reward"]


def budget(out, layout, parts):
    """Tokens that cut the first step's rows into `parts` micro-batches; about so many where prompts are shared."""
    seen = lengths(out)
    if parts == 1:
        return BASE["engine"]["micro_batch_tokens"]
    if layout == "shared":
        return sum(seen) // parts
    tokens = next(n for n in range(max(seen) * len(seen), 0, -1) if len(plan_micro_batches(seen, n, layout)) >= parts)
    assert len(plan_micro_batches(seen, tokens, layout)) == parts
    return tokens


@pytest.mark.parametrize(("name", "cut"), ALL)
def test_however_the_work_is_cut(home, whole, tmp_path, name, cut):
    (out, expected), (layout, parts, more) = whole(name), CUTS[cut]
    engine = {"layout": layout, "micro_batch_tokens": budget(out, layout, parts), **more}
    got = trained(home, tmp_path / "cut", settings(algorithm=VARIANTS[name], engine=engine))
    assert_same(name, got, expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_which_variants_may_skip(name):
    assert AlgorithmConfig.model_validate(VARIANTS[name]).zero_advantage_is_inert == (name not in LEARNS_OF_ZERO)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masks", "grpo", "dapo", "ppo"])
def test_two_ranks(home, whole, tmp_path, name):
    parts = settings(algorithm=VARIANTS[name], engine={"micro_batch_tokens": 300})
    assert_same(name, trained(home, tmp_path / "two", parts, ranks=2), whole(name)[1])


@pytest.mark.slow
def test_two_ranks_refill_with_the_same_groups(home, tmp_path):
    """Dynamic sampling on two ranks draws, keeps, leaves out and leaves over what one does."""
    parts = settings(
        algorithm={"overlong": {}, "dynamic_sampling": {"enabled": True, "max_batches": 20}},
        sampling={"group_size": 192, "prompts_per_step": 4, "max_completion_tokens": 1},
    )
    names = ("step", "index", "problem_id", "discarded", "sampled_at", "reward_mean")
    drawn = []
    for ranks in (1, 2):
        trained(home, tmp_path / str(ranks), parts, ranks=ranks)
        drawn.append([[group[name] for name in names] for group in groups_of(tmp_path / str(ranks))])
    assert {group[3] for group in drawn[0]} == {None, "all_wrong"}
    assert drawn[0] == drawn[1]
