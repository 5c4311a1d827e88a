"""A token as a step of fixed shapes and addresses, which a GPU records as a CUDA graph; here it is called instead. It
gives what the model's modules give, whatever ends. Recording itself needs a GPU and is not tested."""

import pytest
import torch

from grpo_core.rollout import graphs, local, shared_cache
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.graphs import LEAST_GRAPHED, GraphStep
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.shared_cache import partial, partial_by_products
from grpo_core.rollout.stepper import SharedStepper

from .families import families
from .test_rollout import PROMPTS, look, make

torch.set_num_threads(1)
FAMILIES = families("sampler", "shared")
WITHIN = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def never(reason):
    raise AssertionError(reason)


class Both:
    """The same rows by modules and in fixed shapes."""

    def __init__(self, policy, prompts, share, *, most, refuse=never):
        self.step_of_graph = GraphStep(policy, refuse)
        self.plain, self.fixed = SharedStepper(policy, None), SharedStepper(policy, self.step_of_graph)
        self.positions_B = torch.tensor([len(prompts[prompt]) for prompt in share])
        for stepper in (self.plain, self.fixed):
            stepper.begin(prompts, torch.tensor(share), most=most)
        self.vocabulary = policy.model.config.vocab_size

    def step(self, count=1):
        """How far apart they were at most, as a share of the largest number."""
        off = 0.0
        for _ in range(count):
            tokens_B = torch.randint(self.vocabulary, (len(self.positions_B),))
            plain, fixed = (s.step(tokens_B, self.positions_B).float() for s in (self.plain, self.fixed))
            assert fixed.isfinite().all()
            off = max(off, ((plain - fixed).abs().max() / plain.abs().max()).item())
            self.positions_B = self.positions_B + 1
        return off

    def keep(self, *rows):
        keep_B = torch.tensor(rows)
        self.positions_B = self.positions_B[keep_B]
        for stepper in (self.plain, self.fixed):
            stepper.keep(keep_B)


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("family", FAMILIES)
def test_fixed_shapes_give_what_the_modules_give_whatever_ends(family, dtype, monkeypatch):
    monkeypatch.setattr(graphs, "ROOM", 8)
    torch.manual_seed(1)
    both = Both(make(FAMILIES[family], dtype=dtype), PROMPTS[:3], [0, 0, 0, 1, 1, 1, 2, 2, 2, 2], most=100)
    cache, offs = both.fixed.cache, [both.step(3)]
    mask_S, shape = cache.fixed.mask_S, cache._shape
    both.keep(0, 1, 2, 9, 4, 5, 6)  # rows 3, 7 and 8 have ended
    offs.append(both.step(2))
    both.keep(6, 1, 2, 5, 4)  # the third prompt moves to the first row, of which two are left
    offs.append(both.step(2))
    both.keep(4, 1, 2, 3)  # the last of the third prompt is gone: the second takes its place
    offs.append(both.step())
    assert cache.prompts == 2
    assert (cache.fixed.mask_S is mask_S, cache._shape) == (True, shape)  # nothing was recorded anew
    offs.append(both.step())  # the room of 8 is full
    assert (cache.fixed.mask_S.shape[-1], cache._shape.rows, cache._shape.prompts) == (16, 4, 2)
    both.keep(3)
    offs.append(both.step(20))  # one row of four is left, and the room is doubled again
    assert (cache.fixed.mask_S.shape[-1], cache._shape.rows) == (32, 1)
    assert max(offs) < WITHIN[dtype]


@pytest.mark.parametrize("way", [partial, partial_by_products])
def test_prompts_of_one_length_need_no_mask_and_room_ends_with_the_longest_completion(way, monkeypatch):
    monkeypatch.setattr(graphs, "ROOM", 4)
    monkeypatch.setattr(shared_cache, "partial", way)
    both = Both(make(FAMILIES["grouped heads"]), [[1, 2, 3], [4, 5, 6]], [0, 0, 1], most=7)
    assert both.step(7) < 1e-5
    assert both.fixed.cache._mask is None
    assert both.fixed.cache.fixed.mask_S.shape[-1] == 7


def drawn(policy, **decoding):
    rollout = LocalRollout(policy, max_rows=64)
    return rollout.generate(PROMPTS, samples=4, decoding=Decoding(**{"max_tokens": 40, **decoding}), key=(5,))


@pytest.fixture
def on_a_gpu(monkeypatch):
    """The sampler takes fixed shapes; returns how many steps of batches were made."""
    made = []

    def step(*given):
        made.append(GraphStep(*given))
        return made[-1]

    monkeypatch.setattr(local, "LEAST_TOKENS", 10**9)
    monkeypatch.setattr(local, "recordable", lambda policy: True)
    monkeypatch.setattr(local, "GraphStep", step)
    return made


def test_the_sampler_draws_the_same_tokens(on_a_gpu):
    policy = make(FAMILIES["grouped heads"])
    mine = drawn(policy)
    assert len(on_a_gpu) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "LEAST_GRAPHED", 10**9)
        theirs = drawn(policy)
    assert len(on_a_gpu) == 1
    assert [[c.tokens for c in group] for group in mine] == [[c.tokens for c in group] for group in theirs]


def test_short_completions_are_not_worth_recording(on_a_gpu):
    for most, made in ((LEAST_GRAPHED - 1, 0), (LEAST_GRAPHED, 1)):
        drawn(make(FAMILIES["llama"]), max_tokens=most)
        assert len(on_a_gpu) == made


def test_a_model_that_waits_for_the_device_goes_through_its_modules(on_a_gpu):
    policy, messages = make(FAMILIES["llama"]), []
    policy.model.model.norm.register_forward_hook(look)
    rollout = LocalRollout(policy, max_rows=64, log=messages.append)
    options = {"samples": 4, "decoding": Decoding(max_tokens=40), "key": (5,)}
    first = rollout.generate(PROMPTS, **options)
    again = rollout.generate(PROMPTS, **options)  # by modules from the start
    assert [[c.tokens for c in group] for group in first] == [[c.tokens for c in group] for group in again]
    assert len(on_a_gpu) == 1
    assert len(messages) == 1
    assert "cannot be recorded as a CUDA graph" in messages[0]


def test_after_a_refusal_the_cache_is_as_before():
    policy, reasons = make(FAMILIES["grouped heads"]), []
    policy.model.model.norm.register_forward_hook(look)
    both = Both(policy, PROMPTS[:3], [0, 1, 2, 2], most=100, refuse=reasons.append)
    assert both.step(3) == 0
    both.keep(0, 3)
    assert both.step(2) == 0
    assert len(reasons) == 1


def stepped_without_numbers(refuse, hook=None):
    """Two tokens on the meta device, where attention is computed as on a GPU, and copies from the CPU are copies."""
    policy = make(FAMILIES["grouped heads"])
    policy.model.to("meta")
    policy.device = torch.device("meta")
    stepper = SharedStepper(policy, GraphStep(policy, refuse))
    stepper.begin(PROMPTS[:3], torch.tensor([0, 0, 1, 2]), most=10)
    if hook is not None:
        policy.model.model.norm.register_forward_hook(hook)
    tokens_B = torch.zeros(4, dtype=torch.long, device="meta")
    for _ in range(2):
        assert stepper.step(tokens_B, tokens_B).shape == (4, 32)


def test_a_step_copies_nothing_to_the_device():
    stepped_without_numbers(never)


@pytest.mark.parametrize("copied", [lambda out, new: out + new.to(out.device), lambda out, new: out.clone().copy_(new)])
def test_a_model_that_copies_to_the_device_is_refused(copied):
    reasons = []
    stepped_without_numbers(reasons.append, lambda module, inputs, output: copied(output, torch.ones(32)))
    assert len(reasons) == 1
    assert "waits for a copy" in reasons[0]
