"""The monitors of `grpo_core.records.monitors` as people call them."""

from grpo_core.records.monitors import Name

FLAG_WORDS: dict[Name, str] = {
    "reward_without_heldout": "reward up, held-out not",
    "truncation": "completions cut off",
    "length_bias": "reward goes with length",
    "entropy_collapse": "entropy fell",
    "duplicates": "completions repeat",
    "all_equal_groups": "groups without signal",
    "kl_spike": "KL spike",
    "gradient_spike": "gradient spike",
}
