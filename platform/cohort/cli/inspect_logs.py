"""`cohort inspect-logs`: the evaluations in a card as logs of Inspect, a file for each suite and side."""

from pathlib import Path

from cohort.cli.embedded.home import HomeError
from cohort.evidence.card_reader import CardReader, Rejected
from cohort.records.cards.inspect_logs import evaluation_logs


def write(card: Path, folder: Path) -> int:
    """Write the logs into `folder`, which is made. Whether the card is as it was issued is for `cohort verify` to say.
    Raises HomeError for a card that cannot be read and for a folder that exists."""
    try:
        with card.open("rb") as handle:
            reader = CardReader(handle)
            reader.open()
            folder.mkdir(parents=True)
            names = []
            for name, content in evaluation_logs(reader, {}):
                with (folder / name).open("xb") as file:
                    file.writelines(content)
                names.append(name)
    except FileExistsError:
        raise HomeError(f"{folder} is there already; give another folder") from None
    except OSError as error:
        raise HomeError(f"cannot read {card} or write {folder}: {error.strerror}") from None
    except Rejected as fault:
        raise HomeError(f"{card} cannot be read as a card: {fault}. `cohort verify {card}` says more") from None
    if not names:
        print(f"{card} holds no evaluations; {folder} is empty.")
        return 0
    print(f"{len(names)} logs in {folder}. `inspect view --log-dir {folder}` shows them.")
    return 0
