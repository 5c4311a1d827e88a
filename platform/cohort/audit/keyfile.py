"""The file of the private signing key: made once, checked before a start. Needs neither Django nor a database."""

import os
from pathlib import Path

from cohort.base.environment import environment
from cohort.evidence.keys import KeyFault, PublicKey, SigningKey, generate, load


def make_key(path: Path) -> SigningKey:
    """Write a new private key to `path`, which must not exist; its name is that of a new log. Raises KeyFault."""
    key = generate(environment().log_name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KeyFault(f"cannot make the folder {path.parent}: {error.strerror}") from None
    key.write(path)
    return key


def own_public_key() -> PublicKey | None:
    """The public part of this installation's signing key; None where there is none that this user may read. Raises
    KeyFault for a file that holds no key."""
    return usable_key().public_key if os.access(environment().signing_key_path, os.R_OK) else None


def usable_key() -> SigningKey:
    """Raises KeyFault unless the file of the signing key is there and holds one."""
    path = environment().signing_key_path
    if not path.exists():
        raise KeyFault(missing(path))
    try:
        return load(path)
    except KeyFault:
        return load(path, environment().log_name)  # a file made by `openssl genpkey` has no name in it


def missing(path: Path) -> str:
    return (
        f"there is no signing key at {path}. Name its file with COHORT_SIGNING_KEY_FILE; `cohort audit make-key` makes "
        "the first one (docs/audit.md)"
    )
