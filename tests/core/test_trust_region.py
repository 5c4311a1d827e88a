"""TRPO on a real tiny model: products with the Fisher matrix against second derivatives of the divergence, the bound
after a step, the same step whatever the micro-batches and layouts, and what it refuses."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from grpo_core.errors import ConfigError, ModelError
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.training.base import TrainRow
from grpo_core.training.single import SingleTraining

from .families import families
from .runs import far, make_home, metrics_of, setting, weights_of
from .test_layouts import make
from .test_ranks import two
from .test_trainer_update import ROWS, weights
from .tiny import config, load, sharpen, tiny_folder

FAMILIES = {
    **families("layouts", "shared"),
    **families("layouts", "unshared"),
    **families("adapters", "all"),
    "capped": families("sampler", "untraced")["capped"],
}
MASKED = TrainRow([1, 2], [3, 4, 5], 3.0, False)
TOKENS = sum(len(row.completion) for row in ROWS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "base")


def settings(*, trpo=None, temperature=1.0, **engine):
    return config(
        algorithm={"loss": "unclipped"},
        optim={"method": "trpo", "steps": 1, "trpo": trpo or {}},
        sampling={"group_size": 4, "prompts_per_step": 2, "max_completion_tokens": 8, "temperature": temperature},
        engine={"threads": 1, **engine},
    )


def build(folder, **parts):
    policy = sharpen(load(folder))
    return policy, SingleTraining(policy, None, settings(**parts))


def log_tables(model, temperature=1.0):
    """log π over the vocabulary at each completion token of ROWS, from transformers' own logits: N×V, float64."""
    tables = []
    for row in ROWS:
        ids = torch.tensor([[*row.prompt, *row.completion]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1]
        tables.append(torch.log_softmax(logits.double() / temperature, -1))
    return torch.cat(tables)


def mean_kl(old_NV, new_NV):
    return (old_NV.exp() * (old_NV - new_NV)).sum(-1).mean()


@pytest.mark.parametrize("budget", [1, 100_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_fisher_product_is_the_second_derivative_of_the_divergence(folder, budget, temperature):
    """torch.autograd.functional.hvp of the mean KL(old ‖ ·), through transformers' own logits, at the old weights."""
    policy, training = build(folder, temperature=temperature, micro_batch_tokens=budget)
    assert_second_derivative(policy.model, training, temperature)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fisher_product_of_any_family(folder, family):
    """Tied embeddings, capped logits, windows, fused projections."""
    policy = of_family(folder, FAMILIES[family])
    assert_second_derivative(policy.model, SingleTraining(policy, None, settings(layout="right")))


def test_a_family_without_forward_derivatives_is_refused(folder):
    policy = of_family(folder, families("sampler", "untraced")["experts"])
    before = weights(policy)
    with pytest.raises(ModelError, match=r"OlmoeForCausalLM.*optim\.method"):
        SingleTraining(policy, None, settings(layout="right")).update(ROWS, step=1)
    assert torch.equal(weights(policy), before)


def of_family(folder, family):
    policy = load(folder)
    policy.model, policy.pad_id = make(family), 0
    policy.layouts.clear()
    return policy


def assert_second_derivative(model, training, temperature=1.0):
    metrics = training.update([*ROWS, MASKED], step=1).metrics  # so that the region knows the rows
    assert metrics["trpo/accepted"] == 1
    named = dict(model.named_parameters())
    vector_P = torch.randn(sum(p.numel() for p in named.values()), generator=torch.Generator().manual_seed(1))
    got_P = training._trust_region.fisher_product(vector_P)
    tensors = tuple(p.detach() for p in named.values())
    along = torch.split(vector_P, [p.numel() for p in tensors])
    old_NV = log_tables(model, temperature).detach()

    class Tables(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self):
            return log_tables(self.model, temperature)

    def divergence(*values):
        swapped = {f"model.{name}": value for name, value in zip(named, values, strict=True)}
        return mean_kl(old_NV, functional_call(Tables(), swapped, ()))

    with sdpa_kernel(SDPBackend.MATH):
        _, products = torch.autograd.functional.hvp(
            divergence, tensors, tuple(part.view_as(p) for part, p in zip(along, tensors, strict=True))
        )
    expected_P = torch.cat([part.flatten() for part in products])
    assert expected_P.norm() > 0.1
    assert (got_P - expected_P).norm() < 1e-4 * expected_P.norm()


@pytest.mark.parametrize("delta", [1e-4, 0.03])
def test_a_step_keeps_the_bound_and_raises_the_surrogate(folder, delta):
    policy, training = build(folder, trpo={"max_kl": delta})
    old = copy.deepcopy(policy.model)
    metrics = training.update([*ROWS, MASKED], step=1).metrics
    with torch.no_grad():
        kl = mean_kl(log_tables(old), log_tables(policy.model)).item()
        gain = sum(
            row.advantage
            * (completion_logprobs(policy.model, *text).exp() / completion_logprobs(old, *text).exp() - 1).sum().item()
            for row in ROWS
            for text in [([row.prompt], [row.completion])]
        )
    assert metrics["trpo/accepted"] == 1
    assert 0.05 * delta < kl <= delta * (1 + 1e-4)
    assert metrics["trpo/kl"] == pytest.approx(kl, rel=1e-3)
    assert metrics["trpo/surrogate_gain"] == pytest.approx(gain / TOKENS, rel=1e-3)
    assert gain > 0
    assert "learning_rate" not in metrics


def test_the_first_length_that_breaks_the_bound_is_not_taken(folder):
    """Far beyond where the quadratic model holds: the search has to shorten the step."""
    _, training = build(folder, trpo={"max_kl": 0.5})
    metrics = training.update(ROWS, step=1).metrics
    assert metrics["trpo/line_search_steps"] > 1
    assert 0 < metrics["trpo/kl"] <= 0.5


@pytest.mark.parametrize("rows", [ROWS, [TrainRow(row.prompt, row.completion, 0.0, True) for row in ROWS]])
def test_without_an_accepted_length_the_policy_stays(folder, rows):
    """Of one length alone, which breaks the bound, and where no completion gives a gradient."""
    policy, training = build(folder, trpo={"max_kl": 0.5, "line_search_steps": 1})
    before = weights(policy)
    metrics = training.update(rows, step=1).metrics
    assert torch.equal(weights(policy), before)
    assert metrics["trpo/kl"] == metrics["trpo/step_length"] == metrics["trpo/surrogate_gain"] == 0
    assert metrics.get("trpo/accepted") == (0.0 if rows is ROWS else None)


@pytest.mark.parametrize(
    "engine",
    [
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 24, "layout": "packed"},
        {"layout": "left", "skip_zero_advantage": False},
        {"layout": "shared", "gradient_checkpointing": True},
    ],
    ids=str,
)
def test_the_same_step_by_every_cut_and_layout(folder, engine):
    def moved(**engine):
        # Few iterations: more of them multiply the rounding that differs.
        policy, training = build(folder, trpo={"cg_iterations": 3, "cg_damping": 0.1}, **engine)
        before = weights(policy)
        training.update(ROWS, step=1)
        return weights(policy) - before

    whole = moved(layout="right")
    assert whole.norm() > 1e-3
    assert (moved(**engine) - whole).norm() < 1e-3 * whole.norm()


def test_a_policy_with_too_many_weights_is_refused_with_both_numbers(folder):
    size = sum(p.numel() for p in load(folder).model.parameters())
    build(folder, trpo={"max_parameters": size})
    with pytest.raises(ConfigError) as caught:
        build(folder, trpo={"max_parameters": size - 1})
    (problem,) = caught.value.problems
    assert (problem.path, problem.code) == ("optim.trpo.max_parameters", "trpo_too_large")
    assert f"{size:,}" in problem.message
    assert f"{size - 1:,}" in problem.message


def test_its_state_is_the_weights_alone(folder):
    policy, training = build(folder)
    training.update(ROWS, step=1)
    assert training.state().keys() == {"policy"}
    other, resumed = build(folder)
    resumed.restore(copy.deepcopy(training.state()), kl_coef=0.0, step=1)
    training.update(ROWS, step=2)
    resumed.update(ROWS, step=2)
    assert torch.equal(weights(policy), weights(other))


def test_two_ranks_take_the_step_of_one(tmp_path):
    """Each with a part of the rows, through the real command."""
    home = make_home(tmp_path)
    run, more = setting(home, "trpo"), {"optim": {"steps": 2, "trpo": {"cg_iterations": 3, "cg_damping": 0.1}}}
    assert run.train(home / "one", **more) == 0
    (home / "run.yaml").write_text(run.write(**more, engine={"devices": 2}).read_text())
    ended, printed, _ = two(home, home / "two", before="", status="finished")
    assert ended == 0, printed
    steps = metrics_of(home / "one")
    moved = far(weights_of(home / "one"), load_file(home / "base" / "model.safetensors"))
    assert far(weights_of(home / "one"), weights_of(home / "two")) < 1e-3 * moved
    assert len(steps) == 2
    for mine, theirs in zip(steps, metrics_of(home / "two"), strict=True):
        assert mine["trpo/accepted"] == theirs["trpo/accepted"] == 1
        assert mine["trpo/kl"] == pytest.approx(theirs["trpo/kl"], rel=1e-3)
