"""Groups that are drawn but not trained on, into a checkpoint's state and back: whole, because the policy that sampled
them is gone when the run goes on."""

from collections.abc import Sequence

from grpo_core.data.prompts import Prompted
from grpo_core.rewards import Scored
from grpo_core.rollout.base import Completion
from grpo_core.trainer.checkpoints.state import DrawState, HeldCompletion, HeldDiscard, HeldDraw, HeldGroup
from grpo_core.trainer.sampled import Drawn, Position, StepDraw


def told_position(position: Position, prompts: Sequence[Prompted]) -> DrawState:
    """As a checkpoint holds it. `prompts`: all that the run draws from."""
    places = {id(prompted): place for place, prompted in enumerate(prompts)}
    return DrawState(
        drawn=position.drawn,
        surplus=tuple(_told(group, places) for group in position.surplus),
        ahead=None if position.ahead is None else _told_draw(position.ahead, places),
    )


def heard_position(state: DrawState, prompts: Sequence[Prompted]) -> Position:
    """What `told_position` told."""
    surplus = tuple(_heard(group, prompts) for group in state.surplus)
    return Position(state.drawn, surplus, None if state.ahead is None else _heard_draw(state.ahead, prompts))


def _told_draw(draw: StepDraw, places: dict[int, int]) -> HeldDraw:
    """Each group once: those trained on that are older than the draw, then the fresh ones."""
    fresh = {id(group) for group in draw.fresh}
    groups = [*(group for group in draw.kept if id(group) not in fresh), *draw.fresh]
    numbers = {id(group): number for number, group in enumerate(groups)}
    return HeldDraw(
        groups=tuple(_told(group, places) for group in groups),
        older=len(groups) - len(draw.fresh),
        kept=tuple(numbers[id(group)] for group in draw.kept),
        discarded=tuple(HeldDiscard(group=numbers[id(group)], reason=reason) for group, reason in draw.discarded),
        batches=draw.batches,
        surplus=draw.surplus,
        seconds=draw.seconds,
    )


def _heard_draw(held: HeldDraw, prompts: Sequence[Prompted]) -> StepDraw:
    groups = [_heard(group, prompts) for group in held.groups]
    return StepDraw(
        kept=[groups[number] for number in held.kept],
        discarded=[(groups[one.group], one.reason) for one in held.discarded],
        fresh=groups[held.older :],
        batches=held.batches,
        surplus=held.surplus,
        seconds=held.seconds,
    )


def _told(group: Drawn, places: dict[int, int]) -> HeldGroup:
    return HeldGroup(
        place=places[id(group.prompted)],
        sampled_at=group.sampled_at,
        completions=tuple(
            HeldCompletion(
                tokens=one.tokens,
                logprobs=one.logprobs,
                finish=one.finish,
                entropy=one.entropy,
                text=text,
                reward=score.reward,
                components=score.components,
            )
            for one, text, score in zip(group.completions, group.texts, group.scores, strict=True)
        ),
    )


def _heard(group: HeldGroup, prompts: Sequence[Prompted]) -> Drawn:
    return Drawn(
        prompts[group.place],
        [Completion(one.tokens, one.logprobs, one.finish, one.entropy) for one in group.completions],
        [one.text for one in group.completions],
        [Scored(one.reward, one.components) for one in group.completions],
        group.sampled_at,
    )
