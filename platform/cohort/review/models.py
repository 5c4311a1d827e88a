"""Sampled groups and their completions, as people review them."""

from typing import ClassVar

from django.db import models

from cohort.runs.models import Attempt, Run


class Group(models.Model):
    """G completions of one problem at one step."""

    # The constraint and the index below begin with them; so no index of each alone.
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="groups", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="groups", db_index=False)
    seq = models.BigIntegerField()
    step = models.PositiveIntegerField()
    index = models.PositiveIntegerField()
    problem_id = models.CharField(max_length=200)
    prompt = models.TextField()
    answer = models.TextField()
    reward_mean = models.FloatField(null=True)
    reward_std = models.FloatField(null=True)
    signal = models.CharField(max_length=10)
    discarded = models.CharField(max_length=12, blank=True, default="")
    """Why dynamic sampling left the group out of training (records.Discard); empty when it was trained on."""
    sampled_at = models.PositiveIntegerField(null=True)
    """Step whose policy sampled the group, when that is an earlier one."""

    class Meta:
        ordering: ClassVar = ["run", "-step", "index"]
        indexes: ClassVar = [models.Index(fields=["run", "step", "index"], name="group_by_step")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="group_seq_once")]

    def __str__(self) -> str:
        return f"group {self.index} of step {self.step}"


class Sample(models.Model):
    """One completion with its reward."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="samples", db_index=False)
    index = models.PositiveIntegerField()
    completion = models.TextField()
    tokens = models.PositiveIntegerField()
    finish_reason = models.CharField(max_length=10)
    reward = models.FloatField(null=True)
    components = models.JSONField(default=dict)
    """{component name: records.ComponentScore}"""
    shaped_reward = models.FloatField(null=True)
    """The reward as its group compared it, after a KL penalty on it; null where that is the reward itself."""
    advantage = models.FloatField()
    mask_cause = models.CharField(max_length=20, blank=True)
    logprob_mean = models.FloatField(null=True)

    class Meta:
        ordering: ClassVar = ["group", "index"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["group", "index"], name="sample_once_per_group")]

    def __str__(self) -> str:
        return f"sample {self.index} of {self.group}"

    @property
    def compared_reward(self) -> float | None:
        """What advantages were made from."""
        return self.reward if self.shaped_reward is None else self.shaped_reward
