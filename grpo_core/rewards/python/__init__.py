"""Reward kinds that run given Python in the sandbox: a person's function, a reasoning-gym scorer."""
