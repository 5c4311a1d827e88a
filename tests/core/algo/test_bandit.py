"""Every loss learns: one completion out of many is rewarded, and its probability goes above 0.95.

The policy is a table of logits, each step four updates on one sampled batch, so that the ratio leaves 1 and clips and
gates act. Completions have two and three tokens, where a token's ratio is not its completion's and lengths weigh; with
one token most of them are the same loss.
"""

import pytest
import torch

from grpo_core.losses.base import Tokens
from grpo_core.losses.settings import LOSSES
from tests.core.algo.toy import PAIRS, algorithm, policy_weights

GROUPS, GROUP_SIZE = 8, 16
STEPS, UPDATES = 25, 4
# A language whose tokens do not hang on each other: logits of each place in a completion. END ends a completion before
# its last place, though never at the first.
VOCABULARY, LENGTH, END = 4, 3, 0


def centred(rewards_PG):
    """(r − mean) / (std + eps) in each group, written out here."""
    spread_P = rewards_PG.std(dim=1, correction=0, keepdim=True)
    return (rewards_PG - rewards_PG.mean(dim=1, keepdim=True)) / (spread_P + 1e-4)


def ended(drawn):
    return drawn[: next((t + 1 for t in range(1, LENGTH) if drawn[t] == END), LENGTH)]


def learned(config, advantages=centred, wanted=(1, 2, 3)):
    """Probability of the rewarded completion after training, from that of equal logits."""
    chance = torch.Generator().manual_seed(3)
    logits_LV = torch.zeros(LENGTH, VOCABULARY, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits_LV], lr=0.1)
    count = GROUPS * GROUP_SIZE
    for _ in range(STEPS):
        old_LV = torch.log_softmax(logits_LV.detach(), 1)
        drawn_LR = torch.multinomial(old_LV.exp(), count, replacement=True, generator=chance)
        drawn = [ended(row) for row in drawn_LR.T.tolist()]
        lengths = [len(row) for row in drawn]
        rewards_R = torch.tensor([float(tuple(row) == wanted) for row in drawn], dtype=torch.float64)
        rows_N = torch.arange(count).repeat_interleave(torch.tensor(lengths))
        at_N = (torch.tensor([t for n in lengths for t in range(n)]), torch.tensor([v for row in drawn for v in row]))
        advantages_N = advantages(rewards_R.view(GROUPS, GROUP_SIZE)).flatten()[rows_N]
        weights_N = policy_weights(lengths, config)[rows_N]
        for _ in range(UPDATES):
            optimizer.zero_grad()
            tokens = Tokens(torch.log_softmax(logits_LV, 1)[at_N], old_LV[at_N], advantages_N, rows_N)
            (config.loss_spec.compute(tokens, config).loss_N * weights_N).sum().backward()
            optimizer.step()
    chances_LV = torch.softmax(logits_LV.detach(), 1)
    return torch.stack([chances_LV[t, token] for t, token in enumerate(wanted)]).prod().item()


@pytest.mark.parametrize("wanted", [(1, 2, 3), pytest.param((1, 0), marks=pytest.mark.slow)], ids=["three", "two"])
@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [
        pytest.param(*pair, marks=[] if pair[1] == LOSSES[pair[0]].aggregations[0] else pytest.mark.slow)
        for pair in PAIRS
        if pair[0] == "clip" or pair[1] == LOSSES[pair[0]].aggregations[0]
    ],
)
def test_the_loss_learns(loss, aggregation, wanted):
    assert learned(algorithm(loss, aggregation), wanted=wanted) > 0.95


def test_nothing_is_learned_from_nothing_and_what_is_punished_is_unlearned():
    assert learned(algorithm("clip"), torch.zeros_like) == pytest.approx(1 / 64)
    assert learned(algorithm("clip"), lambda rewards_PG: -centred(rewards_PG)) < 0.001
