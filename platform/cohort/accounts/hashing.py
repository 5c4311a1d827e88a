"""Passwords are hashed one at a time in a process: a hash takes 100 MB and every core it gets."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib.auth.hashers import Argon2PasswordHasher
from django.core.exceptions import ValidationError

MOST = 4
"""Of one process at once: one that hashes, and three that wait. So strangers cannot take all threads of the pages."""
_turn, _slots = threading.Lock(), threading.BoundedSemaphore(MOST)


class HashingBusy(ValidationError):
    """Too many wait for their password to be hashed; this one was not looked at."""


class BoundedArgon2(Argon2PasswordHasher):
    """Raises HashingBusy when too many wait, which the pages for signing in and for a new password show."""

    def encode(self, password: str, salt: str) -> str:
        with _one_of_few():
            return super().encode(password, salt)

    def verify(self, password: str, encoded: str) -> bool:
        with _one_of_few():
            return super().verify(password, encoded)


@contextmanager
def _one_of_few() -> Iterator[None]:
    if not _slots.acquire(blocking=False):
        raise HashingBusy("Too many people are signing in at once. Try again in a few seconds.", code="busy")
    try:
        with _turn:
            yield
    finally:
        _slots.release()
