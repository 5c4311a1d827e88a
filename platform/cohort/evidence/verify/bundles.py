"""The bundles that `model_signing` reads: do they list what the attestation does, by a key the log vouches for?"""

from collections.abc import Mapping

from cohort.evidence import model_signing
from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.model_signing import CARD_BUNDLE, KEY, WEIGHTS_BUNDLE, BundleError, ModelKey
from cohort.evidence.plain_text import counted
from cohort.evidence.verify.opened import ATTESTATION, OpenCard
from cohort.evidence.verify.signed import WEIGHTS


def bundles(card: OpenCard) -> tuple[str, ...]:
    """The key's note, the card's bundle and that of the final weights."""
    if not card.trusted:
        raise Cannot(f"there is no key to check {KEY} with")
    if not card.subjects:
        raise Cannot(f"{CARD_BUNDLE} and {WEIGHTS_BUNDLE} cannot be held against {ATTESTATION}, which did not check")
    try:
        key = model_signing.open_key(card.text(KEY), card.trusted)
    except BundleError as error:
        raise Rejected(f"{KEY}: {error}") from None
    weights = {name.removeprefix(WEIGHTS): digest for name, digest in card.subjects.items() if name.startswith(WEIGHTS)}
    files = {name: digest for name, digest in card.subjects.items() if not name.startswith(WEIGHTS)}
    files.pop(CARD_BUNDLE, None)
    words = [f"key {key.hint}, which {card.trusted[0].vkey} vouches for"]
    words.append(f"{CARD_BUNDLE}: {_same(card, CARD_BUNDLE, key, files)} of this card")
    if weights:
        words.append(f"{WEIGHTS_BUNDLE}: {_same(card, WEIGHTS_BUNDLE, key, weights)} of the final weights")
    elif WEIGHTS_BUNDLE in card.reader.entries:
        raise Rejected(f"{WEIGHTS_BUNDLE}: is there, and {ATTESTATION} names no weights")
    return tuple(words)


def _same(card: OpenCard, name: str, key: ModelKey, attested: Mapping[str, str]) -> str:
    """How many files the bundle `name` lists, when they are those that are attested. Raises Rejected."""
    try:
        manifest = model_signing.opened(card.reader.needed(name), key)
    except BundleError as error:
        raise Rejected(f"{name}: {error}") from None
    if different := model_signing.differences(manifest.files, attested):
        raise Rejected(*(f"{name}: {words}" for words in different[:10]))
    return counted(len(manifest.files), "file")
