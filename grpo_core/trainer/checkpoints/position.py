"""Groups that are sampled but not trained on, into a checkpoint's state and back: whole, because the policy that
sampled them is gone when the run is resumed."""

from collections.abc import Sequence

from grpo_core.data.prompts import Prompted
from grpo_core.rewards import Scored
from grpo_core.rollout.base import Completion
from grpo_core.trainer.checkpoints.state import DrawState, PendingBatch, PendingCompletion, PendingDiscard, PendingGroup
from grpo_core.trainer.sampled import Position, SampledGroup, StepBatch


def serialize_position(position: Position, prompts: Sequence[Prompted]) -> DrawState:
    """As a checkpoint holds it. `prompts`: all training problems."""
    indices = {id(prompted): index for index, prompted in enumerate(prompts)}
    return DrawState(
        drawn=position.drawn,
        surplus=tuple(_serialize_group(group, indices) for group in position.surplus),
        ahead=None if position.ahead is None else _serialize_batch(position.ahead, indices),
    )


def deserialize_position(state: DrawState, prompts: Sequence[Prompted]) -> Position:
    """Inverse of `serialize_position`."""
    surplus = tuple(_deserialize_group(group, prompts) for group in state.surplus)
    return Position(state.drawn, surplus, None if state.ahead is None else _deserialize_batch(state.ahead, prompts))


def _serialize_batch(draw: StepBatch, indices: dict[int, int]) -> PendingBatch:
    """Each group once: those trained on that are older than the draw, then the fresh ones."""
    fresh = {id(group) for group in draw.fresh}
    groups = [*(group for group in draw.kept if id(group) not in fresh), *draw.fresh]
    numbers = {id(group): number for number, group in enumerate(groups)}
    return PendingBatch(
        groups=tuple(_serialize_group(group, indices) for group in groups),
        older=len(groups) - len(draw.fresh),
        kept=tuple(numbers[id(group)] for group in draw.kept),
        discarded=tuple(PendingDiscard(group=numbers[id(group)], reason=reason) for group, reason in draw.discarded),
        batches=draw.batches,
        surplus=draw.surplus,
        seconds=draw.seconds,
    )


def _deserialize_batch(pending: PendingBatch, prompts: Sequence[Prompted]) -> StepBatch:
    groups = [_deserialize_group(group, prompts) for group in pending.groups]
    return StepBatch(
        kept=[groups[number] for number in pending.kept],
        discarded=[(groups[discard.group], discard.reason) for discard in pending.discarded],
        fresh=groups[pending.older :],
        batches=pending.batches,
        surplus=pending.surplus,
        seconds=pending.seconds,
    )


def _serialize_group(group: SampledGroup, indices: dict[int, int]) -> PendingGroup:
    return PendingGroup(
        problem_index=indices[id(group.prompted)],
        sampled_at=group.sampled_at,
        completions=tuple(
            PendingCompletion(**vars(completion), text=text, reward=score.reward, components=score.components)
            for completion, text, score in zip(group.completions, group.texts, group.scores, strict=True)
        ),
    )


def _deserialize_group(group: PendingGroup, prompts: Sequence[Prompted]) -> SampledGroup:
    return SampledGroup(
        prompts[group.problem_index],
        [
            Completion(completion.tokens, completion.logprobs, completion.finish, completion.entropy)
            for completion in group.completions
        ],
        [completion.text for completion in group.completions],
        [Scored(completion.reward, completion.components) for completion in group.completions],
        group.sampled_at,
    )
