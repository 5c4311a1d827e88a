"""The sampler that a run's config names."""

from collections.abc import Callable
from pathlib import Path

from grpo_core.config.kinds import AnyConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.model.load import LoadedModel
from grpo_core.rollout.base import Rollout
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.policy_snapshot import RankedRollout, SnapshotRollout


def make_rollout(
    config: AnyConfig,
    policy: LoadedModel,
    *,
    ranks: Ranks,
    check: Callable[[], None],
    snapshot: LoadedModel | None = None,
    positions: int | None = None,
    folder: Path | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Rollout:
    """The rollout of all ranks together. The caller closes it. `snapshot`: the copy of the policy to draw from
    where `snapshot_for` made one. `check` may raise Interrupted; it is called only where a rank may stop alone. vLLM is
    made for sequences of `positions` tokens, else of the model's context; a server's log lies in `folder`; `tell` is
    given messages for the user. Raises RolloutError."""
    if config.engine.rollout == "vllm":
        from grpo_core.rollout.vllm.make import make_vllm

        context = positions or policy.context or config.longest_sequence
        return make_vllm(config, policy, ranks=ranks, check=check, positions=context, folder=folder, log=log)
    engine = config.engine
    own: Rollout = LocalRollout(
        snapshot or policy, max_rows=engine.rollout_batch, max_tokens=engine.rollout_tokens, check=check, log=log
    )
    return RankedRollout(SnapshotRollout(own, snapshot, policy) if snapshot is not None else own, ranks)
