"""One update of the trainer: equal whatever the micro-batches, honest about what it skips, learns what it should."""

import math
from functools import cache

import pytest
import torch

from grpo_core.errors import TrainingError
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.training.base import TrainRow
from grpo_core.training.reference import Reference
from grpo_core.training.single import SingleTraining
from tests.tables import cases

from .tiny import config, load, tiny_folder

ROWS = [
    TrainRow([10, 20, 30], [1, 2, 3, 4], 1.0, True, group=0),
    TrainRow([10, 20, 30], [5, 6], -1.0, True, group=0),
    TrainRow([40], [7, 8, 9, 10, 11, 12, 13], 0.0, True, group=1),
    TrainRow([40], [14], 0.0, True, group=1),
    TrainRow([50, 60], [15, 16, 17], 0.5, True, group=2),
    TrainRow([50, 60], [18, 19, 20, 21, 22], -0.5, True, group=2),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "base")


def build(folder, *, reference=False, skip=True, **parts):
    policy = load(folder)
    ours = load(folder) if reference else None
    parts["engine"] = {"threads": 1, "skip_zero_advantage": skip, **parts.get("engine", {})}
    return policy, SingleTraining(policy, ours, config(**parts))


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


UNEVEN = [TrainRow([10, 20, 30], [1, 2], -1.0, True), TrainRow([10, 20, 30], [3, 4, 5, 6, 7, 8], 1.0, True)]


@pytest.fixture(scope="module")
def uneven(folder):
    """Gradient of the first update of UNEVEN by each algorithm, in one micro-batch."""

    return cache(lambda **algorithm: gradient(folder, UNEVEN, algorithm=algorithm)[1])


def gradient(folder, rows, **parts):
    """(metrics, gradient, unclipped) of an update at a learning rate that moves nothing."""
    optim = {"steps": 1, "lr": 1e-12, "max_grad_norm": 1e9}
    policy, training = build(folder, optim=optim, **parts)
    metrics = training.update(rows, step=1).metrics
    return metrics, torch.cat([p.grad.flatten() for p in policy.model.parameters()])


@pytest.mark.parametrize(("algorithm", "loss"), cases("trainer/first_steps", "algorithm", "loss"))
@pytest.mark.parametrize("engine", [{"micro_batch_tokens": 1}, {"layout": "packed"}, {"layout": "left"}], ids=str)
def test_the_first_step_through_every_cut_and_layout(folder, uneven, algorithm, loss, engine):
    metrics, got = gradient(folder, UNEVEN, algorithm=algorithm, engine=engine)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert not any(name.startswith("clip_ratio") for name in metrics)  # at μ=1 there is none, which is not 0
    whole = uneven(**algorithm)
    assert whole.norm() > 0.01
    assert (got - whole).norm() < 1e-6 * whole.norm()


@pytest.mark.parametrize(("mini_batches", "budget"), [(2, 1), (4, 24), (4, 100_000)])
def test_a_mini_batch_has_the_gradient_it_has_alone(folder, mini_batches, budget):
    """Whatever the sampled batch it is a part of (TRL's steps_per_generation) and the micro-batches it is cut into
    (gradient accumulation): the updates before it have moved nothing."""
    rows = [
        TrainRow([40 + row], [row * 7 + t for t in range(1 + row % 5)], 1.0 - 0.3 * row, True, group=row // 2)
        for row in range(8)
    ]
    parts = {
        "algorithm": {"mini_batches": mini_batches},
        "sampling": {"group_size": 2, "prompts_per_step": 4},
        "engine": {"micro_batch_tokens": budget},
    }
    _, got = gradient(folder, rows, **parts)
    _, alone = gradient(folder, rows[-len(rows) // mini_batches :])
    assert alone.norm() > 0.01
    assert (got - alone).norm() < 3e-6 * alone.norm()


def test_gradient_is_that_of_the_weighted_log_likelihood(folder):
    """At ratio 1 the gradient of the token-mean loss is −Σ A·∇log π / tokens, with nothing else in it."""
    metrics, got = gradient(folder, ROWS)
    plain = load(folder)
    total = torch.zeros(())
    for row in ROWS:
        total = total - row.advantage * completion_logprobs(plain.model, [row.prompt], [row.completion]).sum() / 22
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in plain.model.parameters()])
    assert metrics["grad_norm"] == pytest.approx(expected.norm().item(), rel=1e-4)
    assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("skip", "learned", "fed"),
    [
        (True, 4 + 2 + 3 + 5, (3 + 3 + 1) + (2 + 2 + 4)),
        (False, 4 + 2 + 7 + 1 + 3 + 5, (3 + 3 + 1) + (1 + 6 + 0) + (2 + 2 + 4)),
    ],
)
def test_rows_without_gradient_are_not_fed(folder, skip, learned, fed):
    """Fed are a prompt once for its group, and of a completion all but its last token."""
    policy, training = build(folder, skip=skip, engine={"layout": "shared"})
    seen = []
    policy.model.model.layers[0].mlp.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[:2].numel()))
    assert training.update(ROWS, step=1).tokens == learned
    assert sum(seen) == fed


def test_the_optimiser_steps_without_any_signal(folder):
    """Momentum of step 1 moves the weights in step 2 although no completion gives a gradient there."""
    dead = [TrainRow(row.prompt, row.completion, 0.0, True) for row in ROWS]
    policy, training = build(folder)
    training.update(ROWS, step=1)
    before = weights(policy)
    metrics = training.update(dead, step=2).metrics
    assert metrics["grad_norm"] == 0.0
    assert metrics["loss"] == 0.0
    assert (weights(policy) - before).abs().max() > 1e-4


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_masked_rows_do_not_count(folder, aggregation):
    masked = TrainRow([1, 2], [3, 4, 5, 6, 7, 8], 3.0, False)
    (more, got), (metrics, expected) = (
        gradient(folder, rows, algorithm={"aggregation": aggregation}) for rows in ([*ROWS, masked], ROWS)
    )
    assert torch.equal(got, expected)
    assert more["loss"] == metrics["loss"]


@pytest.mark.parametrize(
    ("stale", "algorithm", "times", "gradients"), cases("trainer/ratios", "stale", "algorithm", "times", "gradients")
)
def test_to_which_policy_the_ratio_is(folder, stale, algorithm, times, gradients):
    """One completion of advantage 1 that the trainer finds so many times as likely, at each token, as its sampler did:
    its gradient in those of one that both find as likely."""
    prompt, completion = [10, 20, 30], [1, 2, 3, 4]
    own = completion_logprobs(load(folder).model, [prompt], [completion]).tolist()

    def norm(row):
        _, training = build(folder, algorithm=algorithm, optim={"steps": 1, "lr": 1e-3, "max_grad_norm": 1e9})
        return training.update([row], step=1).metrics["grad_norm"]

    sampled = [value - math.log(times) for value in own]
    got = norm(TrainRow(prompt, completion, 1.0, True, sampler_logprobs=sampled, stale=stale))
    assert got == pytest.approx(gradients * norm(TrainRow(prompt, completion, 1.0, True)), rel=1e-4)


def test_inner_iterations_report_clipping(folder):
    optim = {"steps": 1, "lr": 0.05}  # large enough to leave the clip range at once
    metrics = build(folder, algorithm={"inner_iterations": 4}, optim=optim)[1].update(ROWS, step=1).metrics
    assert 0 < metrics["clip_ratio/low_mean"] < 1
    assert 0 < metrics["clip_ratio/high_mean"] < 1


@pytest.mark.parametrize("budget", [1, 100_000])
def test_each_row_has_the_share_of_its_tokens_that_the_last_pass_clipped(folder, budget):
    """In the first of two passes the ratio is 1, so what the metrics count was clipped in the second."""
    masked = TrainRow([1, 2], [3, 4, 5], 3.0, False)
    optim, engine = {"steps": 1, "lr": 0.05}, {"micro_batch_tokens": budget}
    _, training = build(folder, algorithm={"inner_iterations": 2}, optim=optim, engine=engine)
    result = training.update([masked, *ROWS], step=1)
    assert 0 not in result.clipped
    sizes = {index: len(row.completion) for index, row in enumerate(ROWS, start=1)}
    clipped = sum(share * sizes[index] for index, share in result.clipped.items())
    both = result.metrics["clip_ratio/low_mean"] + result.metrics["clip_ratio/high_mean"]
    assert clipped > 0
    assert clipped == pytest.approx(both * 2 * sum(sizes.values()))
    assert build(folder, optim=optim)[1].update(ROWS, step=1).clipped == {}, "at μ=1 nothing can be clipped"


def test_kl_pulls_back_to_the_reference(folder):
    def distance(coef):
        _, training = build(folder, reference=True, algorithm={"kl": {"coef": coef}})
        return [training.update(ROWS, step=step).metrics["kl"] for step in range(1, 11)][-1]

    assert distance(10.0) < 0.5 * distance(1e-6)


def test_gradient_is_clipped(folder):
    tight = {"steps": 1, "lr": 1e-3, "max_grad_norm": 1e-3}
    policy, training = build(folder, optim=tight)
    assert training.update(ROWS, step=1).metrics["grad_norm"] > 0.01  # as it was before clipping
    after = torch.cat([p.grad.flatten() for p in policy.model.parameters()]).norm().item()
    assert after == pytest.approx(1e-3, rel=1e-3)


def test_not_a_number_stops_with_the_step(folder):
    policy, training = build(folder)
    with torch.no_grad():
        policy.model.model.norm.weight[0] = float("inf")
    before = weights(policy)
    with pytest.raises(TrainingError, match="step 7"):
        training.update(ROWS, step=7)
    assert torch.equal(torch.nan_to_num(weights(policy)), torch.nan_to_num(before))


def test_bf16_weights_follow_small_updates(folder):
    """2e-4 a step is below bf16's resolution at 1.0, so without fp32 copies the norm weights would never move."""
    policy = load(folder, dtype="bfloat16")
    training = SingleTraining(policy, None, config(optim={"steps": 40, "lr": 2e-4}))
    assert policy.model.model.norm.weight.dtype == torch.bfloat16
    for step in range(1, 31):
        training.update(ROWS[:2], step=step)
    assert (policy.model.model.norm.weight.float() - 1).abs().max() > 0.002


@pytest.mark.parametrize(
    ("optim", "expected"),
    [
        ({"steps": 4, "lr": 1.0}, [1, 1, 1, 1]),
        ({"steps": 4, "lr": 1.0, "warmup_steps": 2}, [0.5, 1, 1, 1]),
        ({"steps": 6, "lr": 1.0, "warmup_steps": 2, "schedule": "linear"}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
    ],
)
def test_learning_rate(optim, expected):
    part = config(optim=optim).optim
    assert [part.learning_rate(step) for step in range(1, part.steps + 1)] == pytest.approx(expected)


def test_bf16_gradients_of_many_micro_batches_add_up(folder):
    """Summed in bf16, the gradients of 300 equal rows stop growing at about 256 of them."""
    rows = [TrainRow([10], [1], 1.0, True, group=n) for n in range(300)]

    def norm(budget):
        parts = {"optim": {"steps": 1, "lr": 1e-6, "max_grad_norm": 1e9}, "engine": {"micro_batch_tokens": budget}}
        settings = config(model={"path": "base", "dtype": "bfloat16"}, **parts)
        training = SingleTraining(load(folder, dtype="bfloat16"), None, settings)
        return training.update(rows, step=1).metrics["grad_norm"]

    assert norm(1) == pytest.approx(norm(100_000), rel=0.05)


def test_an_averaged_reference_moves_in_bf16(folder):
    """A hundredth of the way, a hundred times, is most of the way: 1 − 0.99^100 = 0.634."""
    policy, frozen = load(folder, dtype="bfloat16"), load(folder, dtype="bfloat16")
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.5)
    average = {"kl": {"coef": 0.1}, "reference": {"refresh": "average", "every": 1, "weight": 0.01}}
    reference = Reference(policy, frozen, config(algorithm=average))
    before = frozen.model.model.norm.weight.float().clone()
    for step in range(1, 101):
        assert reference.after_step(step)
    assert (frozen.model.model.norm.weight.float() - before).mean().item() == pytest.approx(0.317, abs=0.01)


def test_masked_rows_have_no_say_in_the_entropy_threshold(folder):
    """Also after `measure`, which looks at all rows."""
    rows = [*ROWS, *(TrainRow([7, 8], [200 + n, 9, 4, 2, 77], 1.0, False, group=5 + n) for n in range(8))]
    share = {"top_entropy_share": 0.3}
    _, training = build(folder, algorithm=share, optim={"steps": 1, "lr": 1e-3, "max_grad_norm": 1e9})
    training.measure(rows)
    expected = gradient(folder, ROWS, algorithm=share)[0]["grad_norm"]
    assert training.update(rows, step=1).metrics["grad_norm"] == pytest.approx(expected, rel=1e-5)
