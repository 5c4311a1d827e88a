"""reinforce_pp: REINFORCE++, whitened over all tokens of the batch; `reinforce_pp_baseline` is the same after the
group's mean.

docs/losses/advantages-reinforce.md lists the differences from OpenRLHF and verl.
"""

from collections.abc import Sequence

from grpo_core.advantages.base import (
    AdvantageSettings,
    Estimate,
    Estimator,
    Figures,
    GroupScores,
    Scaling,
    StepScores,
    Tensor,
    Terms,
)
from grpo_core.advantages.compare import Groups, compare, standardised
from grpo_core.advantages.explain import centred, moments
from grpo_core.advantages.reinforce_baseline import BETTER_OR_WORSE
from grpo_core.stats.paired import nearly_equal


def reinforce_pp(
    scores: StepScores, groups: Groups, settings: AdvantageSettings, *, baseline: bool = False
) -> Estimate:
    """By token where KL penalties are subtracted from the reward, else one advantage for each completion."""
    values_PG, used_PG = _values(scores.rewards_PG.double(), groups.scored_PG, baseline=baseline)
    ddof, eps, lengths_PG = settings.std_ddof, settings.advantage_eps, scores.lengths_PG
    if scores.token_penalties is None:
        return Estimate(_whitened_rewards(values_PG, used_PG, lengths_PG, ddof=ddof, eps=eps))
    tokens = _whitened_tokens(values_PG, used_PG, scores.token_penalties, lengths_PG, ddof=ddof, eps=eps)
    return Estimate(tokens=tokens)


def _values(rewards_PG: Tensor, scored_PG: Tensor, *, baseline: bool) -> tuple[Tensor, Tensor]:
    """What a completion earned before KL penalties and whitening, and which completions take part; both PG.

    baseline  minus the mean of its group; a group with fewer than two scored samples does not take part.
    """
    if not baseline:
        return rewards_PG, scored_PG
    groups = compare(rewards_PG, scored_PG, ddof=0)
    centred_PG = groups.centred_PG.where(groups.mixed_P[:, None], 0.0)
    return centred_PG, scored_PG & groups.enough_P[:, None]


def _whitened_rewards(values_PG: Tensor, used_PG: Tensor, lengths_PG: Tensor, *, ddof: int, eps: float) -> Tensor:
    """A_i = (v_i − mean) / (std + eps), mean and std over all tokens of the batch, so that a completion counts by its
    length; shape PG.

    Source: REINFORCE++, arXiv 2501.03262, without a KL penalty in the reward: then all tokens of a completion have the
    same advantage. 0 for completions that do not take part, and exactly 0 throughout when the values of all tokens are
    equal. With a baseline, a group of equal rewards gets −mean/std, which is not 0: the centred rewards have mean 0
    over completions but not over tokens.
    """
    values_N = values_PG[used_PG].repeat_interleave(lengths_PG[used_PG])
    whitened_PG = standardised(values_N, ddof=ddof, eps=eps)(values_PG)
    return whitened_PG.where(used_PG, 0.0)


def _whitened_tokens(
    values_PG: Tensor,
    used_PG: Tensor,
    token_penalties: Sequence[Sequence[Tensor]],
    lengths_PG: Tensor,
    *,
    ddof: int,
    eps: float,
) -> list[list[Tensor]]:
    """A_it = (v_i − Σ_{s≥t} penalty_is − mean) / (std + eps), mean and std over all tokens of the batch; [p][g] → T.

    Source: REINFORCE++, arXiv 2501.03262: a token is charged its own KL penalty and those of all later ones. 0 for
    completions that do not take part.
    """
    import torch

    raw = [
        [
            value - token_penalties[p][g].to(torch.float64).flip(0).cumsum(0).flip(0)
            if used
            else torch.zeros(length, dtype=torch.float64)
            for g, (value, used, length) in enumerate(zip(*row, strict=True))
        ]
        for p, row in enumerate(
            zip(values_PG.tolist(), used_PG.tolist(), lengths_PG.tolist(), strict=True),
        )
    ]
    used_tokens = [raw[p][g] for p, g in used_PG.nonzero().tolist()]
    if not used_tokens:
        return raw
    whiten = standardised(torch.cat(used_tokens), ddof=ddof, eps=eps)
    return [
        [whiten(tokens) if used else tokens for tokens, used in zip(row, flags, strict=True)]
        for row, flags in zip(raw, used_PG.tolist(), strict=True)
    ]


def explain_reinforce_pp(
    own: GroupScores, step: Sequence[GroupScores], settings: AdvantageSettings, *, baseline: bool = False
) -> Figures:
    """`reinforce_pp` of one group without KL penalties in the reward; a reward counts once for each token."""
    pairs = [
        (value, tokens)
        for group in step
        for value, tokens in zip(_taking_part(group, baseline=baseline), group.tokens, strict=True)
        if value is not None
    ]
    mean, std = moments([value for value, _ in pairs], settings.std_ddof, [tokens for _, tokens in pairs])
    values = _taking_part(own, baseline=baseline)
    equal = sum(tokens for _, tokens in pairs) < 2 or nearly_equal([value for value, _ in pairs])
    own_mean = {"mean": moments(own.scored, 0)[0]} if baseline else {}
    columns = {"r − mean": values} if baseline else {}
    return Figures(
        [None if reward is None else value or 0.0 for reward, value in zip(own.rewards, values, strict=True)],
        Terms(mean, divisor=std + settings.advantage_eps),
        own_mean | {"token_mean": mean, "token_std": std},
        columns=columns,
        zero_because="All tokens of the step have the same reward"
        if equal
        else "Fewer than two samples are scored"
        if baseline and len(own.scored) < 2
        else "",
    )


def _taking_part(group: GroupScores, *, baseline: bool) -> list[float | None]:
    """What each sample earned before whitening; None for one that does not take part."""
    if not baseline:
        return list(group.rewards)
    return centred(group.rewards) if len(group.scored) > 1 else [None for _ in group.rewards]


SPEC = Estimator(
    "reinforce_pp",
    ("REINFORCE++", "REINFORCE++"),
    "step",
    source="arXiv 2501.03262",
    help="the mean over all tokens of the step (REINFORCE++)",
    scales={
        "batch_std": Scaling(
            "REINFORCE++{std}",
            "REINFORCE++",
            "Minus the mean and divided by the {std} over all tokens of the step, so that long completions count more.",
            "reward minus the mean over all tokens of the step, divided by their {std} + {eps} (REINFORCE++)",
            "(r − {token_mean}) / ({token_std} + {eps})",
        )
    },
    compute=reinforce_pp,
    explain=explain_reinforce_pp,
    beyond_stored="the KL penalty of each token, which is taken off it and all earlier ones",
    equal_rewards=BETTER_OR_WORSE,
    zero_when_equal="step",
    per_token="with_kl_reward",
)
