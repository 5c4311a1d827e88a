"""Replace the log's signing key: `cohort audit rotate-key`.

The new key's file is there before the statement is committed, and the old one's until both have signed one checkpoint;
a command that was interrupted in between is finished by the next one.
"""

from cohort.audit import keys, services
from cohort.audit.models import LogCheckpoint
from cohort.base.environment import environment
from cohort.evidence.keys import SigningKey, generate, load


def rotate() -> tuple[SigningKey, LogCheckpoint]:
    """The key that signs from now on, and the checkpoint that both have signed. Raises KeyFault and LogFault."""
    path = environment().signing_key_path
    old = keys.signing_key()
    new_path = keys.next_path(path)
    if new_path.exists() and load(new_path, old.name).vkey == old.vkey:  # interrupted after its statement
        keys.rotation_finish(path)
    elif new_path.exists():  # interrupted before it
        new_path.unlink()
    if keys.previous_path(path).exists():
        services.checkpoint()
        keys.previous_path(path).unlink()
    services.checkpoint()  # by the old key alone, so that it is known to the log
    new = generate(old.name)
    new.write(new_path)
    services.rotate_key(old=old, new=new)
    keys.rotation_finish(path)
    row = services.checkpoint()
    keys.previous_path(path).unlink()
    return new, row
