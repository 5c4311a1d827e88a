"""The file of the private signing key, before Django and a database are there: made once, looked at before a start."""

from pathlib import Path

from cohort.base.environment import environment
from cohort.evidence.keys import KeyFault, SigningKey, generate, load


def make_key(path: Path) -> SigningKey:
    """A new private key in `path`, which must not exist, named as a new log is. Raises KeyFault."""
    key = generate(environment().log_name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KeyFault(f"cannot make the folder {path.parent}: {error.strerror}") from None
    key.write(path)
    return key


def usable_key() -> None:
    """Raises KeyFault unless the file of the signing key is there and holds one."""
    path = environment().signing_key_path
    if not path.exists():
        raise KeyFault(missing(path))
    try:
        load(path)
    except KeyFault:
        load(path, environment().log_name)  # one that `openssl genpkey` made does not name itself


def missing(path: Path) -> str:
    return (
        f"there is no signing key at {path}. Name its file with COHORT_SIGNING_KEY_FILE; `cohort audit make-key` makes "
        "the first one (docs/audit.md)"
    )
