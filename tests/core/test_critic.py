"""PPO's critic: where its values stand, what it learns from, and that it learns."""

import pytest
import torch
from transformers import AutoModel

from grpo_core.config.run import ModelConfig
from grpo_core.errors import TrainingError
from grpo_core.model.load import find_model
from grpo_core.training.critic import Critic, load_critic

from .tiny import config, load, tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "base")


PROMPTS = [[10, 20, 30], [40], [50, 60, 70, 80, 90, 100]]
COMPLETIONS = [[1, 2, 3, 4], [5], [6, 7]]
RETURNS_N = torch.tensor([1.0, -1.0, 0.5, 2.0, 0.0, -0.5, 1.5])
EVEN_N = torch.full((7,), 1 / 7)
ZERO_N = torch.zeros(7)


def settings(*, layout="right", dtype="float32", lr=1e-3, value_clip=0.2):
    return config(
        model={"path": "base", "dtype": dtype},
        algorithm={"advantage": "gae", "scale": "batch_std", "critic": {"lr": lr, "value_clip": value_clip}},
        engine={"threads": 1, "layout": layout},
    )


def critic(folder, *, head=0.0, **chosen):
    """With `head`, its last layer is not 0 but drawn with that spread."""
    made = Critic(load(folder, dtype=chosen.get("dtype", "float32")), settings(**chosen))
    if head:
        weight = made.trained.weights[-2]
        weight.data = torch.empty(weight.shape).normal_(0, head, generator=torch.Generator().manual_seed(2))
    return made


def test_values_start_at_zero(folder):
    source = find_model(ModelConfig(path=str(folder)), base=folder)
    made = load_critic(source, settings(), device=torch.device("cpu"))
    values_N = made.values(PROMPTS, COMPLETIONS)
    assert values_N.tolist() == [0.0] * 7
    assert values_N.dtype == torch.float32
    assert not values_N.requires_grad
    # the base model without its output layer (258 × 32), and a head of 32 weights and one more
    assert sum(p.numel() for p in made.trained.weights) == load(folder).parameters() - 258 * 32 + 33


@pytest.mark.parametrize("layout", ["right", "left", "packed"])
def test_a_value_is_read_where_its_token_is_predicted(folder, layout):
    made = critic(folder, head=0.5, layout=layout)
    backbone = AutoModel.from_pretrained(folder)
    weight_1D = made.trained.weights[-2].detach().double()
    expected = []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        hidden_TD = backbone(torch.tensor([[*prompt, *completion]])).last_hidden_state[0].detach().double()
        expected += (hidden_TD @ weight_1D[0])[len(prompt) - 1 : -1].tolist()
    assert made.values(PROMPTS, COMPLETIONS).tolist() == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 1


def test_the_first_loss_and_gradient_by_hand(folder):
    """With all values 0, L = ½·R² and dL/db of the head's bias is Σ w·(0 − R)."""
    made = critic(folder)
    loss = made.learn(PROMPTS, COMPLETIONS, ZERO_N, RETURNS_N, EVEN_N)
    assert loss == pytest.approx((1 + 1 + 0.25 + 4 + 0 + 0.25 + 2.25) / 14)
    assert made.trained.weights[-1].grad.item() == pytest.approx(-3.5 / 7)


def test_the_loss_is_held_by_the_clip(folder):
    """Value 0, old value −1, ε 0.2: the clipped value is −0.8, so at return 1 the loss is ½·1.8² and has no gradient;
    at return −1 the unclipped ½·1² is the larger one, and has."""
    made = critic(folder)
    old_N, returns_N = torch.full((4,), -1.0), torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss = made.learn(PROMPTS[:1], COMPLETIONS[:1], old_N, returns_N, torch.tensor([1.0, 0.0, 10.0, 0.0]))
    assert loss == pytest.approx(0.5 * 1.8**2 + 10 * 0.5)
    assert made.trained.weights[-1].grad.item() == pytest.approx(10.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_micro_batches_add_up(folder, dtype):
    whole, parts = critic(folder, head=0.5, dtype=dtype), critic(folder, head=0.5, dtype=dtype)
    loss = whole.learn(PROMPTS, COMPLETIONS, ZERO_N, RETURNS_N, EVEN_N)
    total, start = 0.0, 0
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        here = slice(start, start := start + len(completion))
        total += parts.learn([prompt], [completion], ZERO_N[here], RETURNS_N[here], EVEN_N[here])
    exact = dtype == "float32"
    assert total == pytest.approx(loss, rel=1e-5 if exact else 2e-2)
    for weight, other in zip(whole.trained.weights, parts.trained.weights, strict=True):
        assert weight.grad.dtype == torch.float32
        largest = weight.grad.abs().max().item()
        assert torch.allclose(weight.grad, other.grad, rtol=0, atol=(1e-5 if exact else 5e-2) * max(largest, 1e-3))
    assert whole.trained.weights[0].grad.abs().max() > 0  # the backbone learns too
    whole.trained.zero_gradients()
    assert all(grad.abs().max() == 0 for grad in whole.trained.gradients())


@pytest.mark.parametrize("layout", ["right", "packed"])
def test_it_learns_the_returns(folder, layout):
    made = critic(folder, layout=layout, lr=3e-3)
    losses = []
    for _ in range(60):
        old_N = made.values(PROMPTS, COMPLETIONS)
        made.trained.zero_gradients()
        losses.append(made.learn(PROMPTS, COMPLETIONS, old_N, RETURNS_N, EVEN_N))
        made.step(1.0)
    assert losses[-1] < losses[0] / 1000
    assert made.values(PROMPTS, COMPLETIONS).tolist() == pytest.approx(RETURNS_N.tolist(), abs=0.05)


def test_one_step_by_hand(folder):
    """Adam's first step is lr · g / (|g| + eps) for each weight, whatever the gradient's length."""
    made = critic(folder, lr=1e-3)
    before = [weight.detach().clone() for weight in made.trained.weights]
    made.learn(PROMPTS, COMPLETIONS, ZERO_N, RETURNS_N, EVEN_N)
    gradients = [weight.grad.clone() for weight in made.trained.weights]
    norm = made.step(0.1)
    expected = torch.cat([g.flatten() for g in gradients]).norm().item()
    assert norm == pytest.approx(expected)  # before clipping
    assert norm > 0.2
    assert torch.cat([weight.grad.flatten() for weight in made.trained.weights]).norm().item() == pytest.approx(
        0.1, rel=1e-4
    )
    moved = made.trained.weights[-1] - before[-1]
    assert moved.item() == pytest.approx(1e-3)  # against the gradient −0.5
    # with the head at 0 nothing reaches the backbone yet, and it stands still
    assert all(torch.equal(a, b) for a, b in zip(made.trained.weights[:-2], before[:-2], strict=True))


def test_small_steps_are_not_lost_in_bf16(folder):
    made = critic(folder, head=0.5, dtype="bfloat16", lr=1e-6)
    coarse = made.values(PROMPTS, COMPLETIONS)
    weight, before = made.trained.weights[0], made.trained.weights[0].detach().clone()
    for _ in range(3):
        made.trained.zero_gradients()
        made.learn(PROMPTS, COMPLETIONS, coarse, RETURNS_N, EVEN_N)
        norm = torch.cat([weight.grad.flatten() for weight in made.trained.weights]).norm().item()
        assert made.step(1.0) == pytest.approx(norm)
    moved = (weight - before).abs().max().item()
    assert moved == pytest.approx(3e-6, rel=0.1)
    assert made.values(PROMPTS, COMPLETIONS).dtype == torch.float32


def test_a_gradient_that_is_no_number_stops_it(folder):
    made = critic(folder)
    before = made.trained.weights[-1].clone()
    made.learn(PROMPTS, COMPLETIONS, ZERO_N, RETURNS_N * float("nan"), EVEN_N)
    with pytest.raises(TrainingError, match=r"critic's gradient is nan.*algorithm\.critic\.lr"):
        made.step(1.0)
    assert torch.equal(made.trained.weights[-1], before)
