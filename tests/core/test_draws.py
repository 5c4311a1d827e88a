"""Draws by seed: in which order problems come, and which groups are kept."""

from grpo_core.draw import prompt_order
from grpo_core.traces import kept_groups


def test_prompt_order_is_shuffled_epochs():
    order = prompt_order(5, seed=3)
    epochs = [[next(order) for _ in range(5)] for _ in range(4)]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    again = prompt_order(5, seed=3)
    assert [next(again) for _ in range(20)] == [place for epoch in epochs for place in epoch]


def test_kept_groups_are_a_seeded_share():
    assert kept_groups(4, 9, 0, 1) == [0, 1, 2, 3]
    assert kept_groups(8, 0, 0, 1) == []
    picks = [tuple(kept_groups(32, 3, 0, step)) for step in range(1, 30)]
    assert all(len(set(pick)) == 3 for pick in picks)
    assert len(set(picks)) > 20
    assert kept_groups(32, 3, 0, 7) == list(picks[6])
