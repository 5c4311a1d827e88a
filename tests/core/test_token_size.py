"""What token arrays will take, worked by hand: bytes of a token's columns, tokens, samples, steps."""

import pytest

from grpo_core.files.token_size import TokenSize, columns_of, token_size

from .tiny import config

PLAIN = {
    "sampling": {"group_size": 8, "prompts_per_step": 4, "max_completion_tokens": 100},
    "optim": {"steps": 10, "lr": 0.001},
}
# id 4, text 6, four log-probs, ratio and advantage 4 each, clipped and in_loss 1/8 each
WITH_RATIO = 4 + 6 + 3 * 4 + 4 + 4 + 0.25


@pytest.mark.parametrize(
    ("traces", "samples"),
    [
        ({}, 6),
        ({"tokens": ["none"]}, 0),
        ({"tokens": ["all"]}, 32),
        ({"tokens": ["all", "best"], "groups_per_step": 2}, 16),
        ({"tokens": ["best"], "tokens_per_choice": 50}, 32),
    ],
)
def test_the_bytes_are_those_of_samples_tokens_and_columns(traces, samples):
    step = int(samples * 100 * WITH_RATIO)
    assert token_size(config(**PLAIN, traces=traces)) == TokenSize(samples, step, 10 * step)


def test_columns_follow_the_settings():
    named = set(columns_of(config(algorithm={"kl": {"coef": 0.1}, "entropy_coef": 0.1})))
    assert {"reference_logprob", "entropy"} <= named
    assert "value" not in named
