"""However an update is cut into micro-batches, with the rows' weights fixed beforehand its loss and gradient stay, for
every loss and every way of averaging."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.algo.aggregation import row_weights
from grpo_core.algo.kl import kl_estimate
from grpo_core.algo.losses import Tokens, policy_loss
from tests.core.algo.toy import PAIRS, algorithm, rows

VOCABULARY = 6


@st.composite
def updates(draw):
    """Lengths, masks, an advantage for each row, and a seed for the numbers."""
    size = draw(st.integers(2, 10))
    lengths = draw(st.lists(st.integers(1, 6), min_size=size, max_size=size))
    used = draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    advantages = draw(st.lists(st.sampled_from([-2.0, -0.5, 0.5, 1.0, 3.0]), min_size=size, max_size=size))
    return lengths, used, advantages, draw(st.integers(0, 10_000))


def numbers(count, seed):
    """Logits now, sampled tokens, old log-probabilities, reference log-probabilities."""
    chance = torch.Generator().manual_seed(seed)
    logits_NV = torch.randn(count, VOCABULARY, generator=chance, dtype=torch.float64)
    sampled_N = torch.randint(VOCABULARY, (count, 1), generator=chance)
    logprobs_N = torch.log_softmax(logits_NV, 1).gather(1, sampled_N)[:, 0]
    apart_N = 0.4 * torch.randn(count, generator=chance, dtype=torch.float64)
    return logits_NV, sampled_N, logprobs_N - apart_N, logprobs_N - 2 * apart_N


def run(update, config, portions):
    """Loss and gradient in the logits, added up over portions of rows."""
    lengths, used, advantages, seed = update
    weights = row_weights(rows(lengths, used=used), config)
    logits_NV, sampled_N, old_N, reference_N = numbers(sum(lengths), seed)
    logits_NV.requires_grad_()
    starts = [sum(lengths[:row]) for row in range(len(lengths))]
    value = 0.0
    for portion in portions:
        at_N = torch.cat([torch.arange(starts[row], starts[row] + lengths[row]) for row in portion])
        row_N = torch.cat([torch.full((lengths[row],), row) for row in portion])
        inside_N = torch.cat([torch.full((lengths[row],), place) for place, row in enumerate(portion)])
        logprobs_NV = torch.log_softmax(logits_NV[at_N], 1)
        tokens = Tokens(
            logprobs_N=logprobs_NV.gather(1, sampled_N[at_N])[:, 0],
            old_logprobs_N=old_N[at_N],
            advantages_N=torch.tensor(advantages, dtype=torch.float64)[row_N],
            rows_N=inside_N,
        )
        beside_N = config.kl.coef * kl_estimate(tokens.logprobs_N, reference_N[at_N], config.kl.estimator)
        beside_N = beside_N + config.entropy_coef * (logprobs_NV.exp() * logprobs_NV).sum(1)
        loss_N = policy_loss(tokens, config).loss_N
        loss = (loss_N * weights.policy_B[row_N] + beside_N * weights.penalty_B[row_N]).sum()
        loss.backward()
        value += loss.item()
    return value, logits_NV.grad


def portions_of(count, size):
    """`size` portions, as even as it goes; fewer where there are fewer rows."""
    return [part.tolist() for part in torch.arange(count).tensor_split(size) if len(part)]


@pytest.mark.parametrize(("loss", "aggregation"), PAIRS)
@settings(max_examples=5)
@given(update=updates(), turn=st.randoms(use_true_random=False))
def test_the_cut_changes_nothing(loss, aggregation, update, turn):
    config = algorithm(loss, aggregation, kl={"coef": 0.1, "estimator": "k3"}, entropy_coef=0.05)
    count = len(update[0])
    value, gradient_NV = run(update, config, portions_of(count, 1))
    assert gradient_NV.abs().max().item() > 1e-4
    order = list(range(count))
    turn.shuffle(order)
    shuffled = [[order[i] for i in part] for part in portions_of(count, 3)]
    for portions in (portions_of(count, 2), portions_of(count, 8), shuffled):
        other, slopes_NV = run(update, config, portions)
        assert other == pytest.approx(value, rel=1e-10, abs=1e-10)
        assert torch.allclose(slopes_NV, gradient_NV, rtol=1e-10, atol=1e-12)
