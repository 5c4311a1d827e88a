"""Attention of the shared layout as devices other than the CPU compute it, against the CPU's pieces."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_core.model.sharing import Share, Sharing

torch.set_num_threads(1)


def attended(way, shares, tensors, scale=0.3):
    """Attention by one of the two ways, and the gradients of a sum that weighs every number differently."""
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    output = way(Sharing(shares), *tensors, scale)
    (output.float() * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    return output.detach(), *(tensor.grad for tensor in tensors)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(
    "shares",
    [
        [Share(0, 5, (3, 0, 7, 1)), Share(16, 1, (2,)), Share(19, 4, (0,)), Share(23, 9, (12, 2))],
        [Share(0, 3, (0, 0)), Share(3, 2, ())],  # nothing is fed
        [Share(0, 2, (44,))],  # a single long completion: its keys are repeated, not the mask
    ],
)
def test_padded_attention_is_that_of_the_pieces(shares, dtype, within):
    torch.manual_seed(0)
    tokens = shares[-1].after.stop
    tensors = [torch.randn(1, heads, tokens, 8).to(dtype) for heads in (6, 2, 2)]
    pieces, padded = (attended(way, shares, tensors) for way in (Sharing._pieces, Sharing._padded))
    for mine, theirs in zip(padded, pieces, strict=True):
        assert (mine - theirs).abs().max() <= within * theirs.abs().max()


class Operations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_padded_attention_takes_as_many_operations_for_any_number_of_completions():
    def operations(completions):
        sharing = Sharing([Share(0, 5, completions)])
        query = torch.randn(1, 4, 5 + sum(completions), 8)
        sharing._padded(query, query, query, 0.3)  # what lies where is worked out
        with Operations() as ran:
            sharing._padded(query, query, query, 0.3)
        return ran.count

    assert operations((3, 2)) == operations((4, 2, 1) * 10)
