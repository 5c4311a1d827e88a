"""Fine-tuning's loss and gradient against plain torch, and the order in which rows are learned."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from grpo_core.data.answers import AnswerRow
from grpo_core.distributed.ranks import Ranks
from grpo_core.trainer.heldout_loss import HeldoutLoss
from grpo_core.trainer.row_order import RowOrder
from grpo_core.trainer.sft import _train_row
from grpo_core.training.single import SingleTraining

from .runs import sft
from .tiny import load, tiny_folder

ROWS = [
    AnswerRow((10, 20, 30), (1, 2, 3, 4)),
    AnswerRow((10, 20, 30), (5, 6)),
    AnswerRow((40,), (7, 8, 9, 10, 11, 12, 13), (True, True, False, False, False, True, True)),
    AnswerRow((50, 60), (15, 16, 17), (False, True, True)),
]
ANSWER_TOKENS = 4 + 2 + 4 + 2
LAYOUTS = ("right", "left", "packed", "shared")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("sft") / "base")


def by_hand(folder: Path) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Loss, share of likeliest tokens and gradient of ROWS: transformers' logits, torch's cross-entropy."""
    model = load(folder).model
    total, greedy = torch.zeros(()), 0
    for row in ROWS:
        ids = torch.tensor([[*row.prompt, *row.completion]])
        labels = torch.tensor([-100] * len(row.prompt) + list(row.completion))
        if row.learned is not None:
            labels[len(row.prompt) :][~torch.tensor(row.learned)] = -100
        logits = model(input_ids=ids).logits[0, :-1].float()
        total = total + F.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum")
        greedy += int(((logits.argmax(-1) == labels[1:]) & (labels[1:] != -100)).sum())
    loss = total / ANSWER_TOKENS
    loss.backward()
    return loss.item(), greedy / ANSWER_TOKENS, {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tokens", [16384, 8], ids=["one pass", "a row a pass"])
def test_loss_and_gradient_are_cross_entropy_over_the_answers(folder: Path, layout: str, tokens: int) -> None:
    expected, right, gradients = by_hand(folder)
    policy = load(folder)
    config = sft(engine={"layout": layout, "micro_batch_tokens": tokens}, optim={"max_grad_norm": 1e9})
    training = SingleTraining(policy, None, config)
    updated = training.update([_train_row(row, group) for group, row in enumerate(ROWS)], step=1)
    assert updated.metrics["loss"] == pytest.approx(expected, abs=1e-6)
    assert updated.metrics["mean_token_accuracy"] == pytest.approx(right)
    assert updated.tokens == ANSWER_TOKENS
    for name, weight in policy.model.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_held_out_loss_is_the_same_number(folder: Path, layout: str) -> None:
    expected, right, _ = by_hand(folder)
    train_rows = [_train_row(row, group) for group, row in enumerate(ROWS)]
    config = sft(engine={"layout": layout, "micro_batch_tokens": 10})
    measured = HeldoutLoss(train_rows, 4, config, load(folder), Ranks(), lambda: None).measure()
    assert measured.loss == pytest.approx(expected, abs=1e-6)
    assert measured.accuracy == pytest.approx(right)
    assert (measured.tokens, measured.conversations) == (ANSWER_TOKENS, 4)


def test_an_epoch_takes_every_row_once_and_goes_on_from_anywhere() -> None:
    order = RowOrder(5, seed=3)
    drawn = order.draw(5) + order.draw(5)
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == list(range(5))
    assert drawn[:5] != drawn[5:]
    assert order.epoch == 2.0
    again = RowOrder(5, seed=3)
    again.draw(3)
    other = RowOrder(5, seed=3)
    other.restore(again.serialize(again.position()))
    assert other.draw(4) == drawn[3:7]
