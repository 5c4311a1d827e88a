"""What both sides of the trainer benchmark must have alike."""

PROMPTS_PER_STEP, GROUP_SIZE, MAX_TOKENS, LEARNING_RATE = 16, 8, 128, 1e-5


def prompts() -> list[str]:
    """512 prompts of 38 to 60 bytes."""
    return [
        f"problem {n}: what is {n * 37 % 991} plus {n * 53 % 997}, and why? ".ljust(30 + n % 31) for n in range(512)
    ]


def reward(completion: str) -> float:
    """Share of bytes that are small letters: cheap, and rarely equal for two completions."""
    return sum(char.islower() for char in completion) / max(len(completion), 1)
