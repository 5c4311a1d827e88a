"""What signs the final weights that somebody downloads: the bundle and its key, as the record's card holds them."""

from cohort.audit import services as audit
from cohort.base import artifacts
from cohort.evidence import model_signing
from cohort.evidence.card_reader import CardReader
from cohort.evidence.keys import parse_vkey
from cohort.evidence.model_signing import KEY, WEIGHTS_BUNDLE
from cohort.records.models import Audience, Record
from cohort.runs.models import Checkpoint


def signatures_of(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Name → content of the files that go next to the checkpoint's own, for `model_signing verify`; from the newest
    record of its run whose bundle lists exactly these files. Empty where there is none: no record of these weights is
    sealed, or they are no final weights. Raises BundleError for a stored card whose bundle is not as it was signed."""
    if not checkpoint.final:
        return {}
    files = {name: entry["sha256"] for name, entry in checkpoint.files.items()}
    keys = [parse_vkey(vkey) for vkey in audit.public_keys()[0]]
    for record in Record.objects.filter(run=checkpoint.run_id).order_by("-pk"):
        card = record.cards.filter(audience=Audience.PUBLIC).order_by("-issue").first()
        if card is None or not artifacts.exists(card.artifact):
            continue
        with artifacts.open_read(card.artifact) as handle:
            reader = CardReader(handle)
            reader.open()
            if not {KEY, WEIGHTS_BUNDLE} <= set(reader.entries):
                continue
            note, bundle = reader.whole(KEY), reader.whole(WEIGHTS_BUNDLE)
        if model_signing.opened(bundle, model_signing.open_key(note.decode(), keys)).files == files:
            return {KEY: note, WEIGHTS_BUNDLE: bundle}
    return {}
