"""Further versions of a record, with what was stated since, and cards issued again without what was redacted."""

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.evidence.verify import verify_card
from cohort.evidence.verify.check import Beside
from cohort.governance import services
from cohort.governance.cards import again
from cohort.governance.models import Card, Record
from cohort.governance.services import NothingNew, NotToBeIssued, record_reissue, record_seal, version_request
from cohort.governance.statements.services import statement_make
from cohort.governance.tasks import seal
from cohort.governance.traces.redaction import cards_renew, samples_redact
from cohort.review.models import Sample
from cohort.runs import reconcile
from cohort.runs.models import Run
from tests import sealed_run

pytestmark = pytest.mark.django_db

Launch = Callable[..., Run]
SAID = "sums of two numbers below a hundred"


@pytest.fixture
def run(launch: Launch) -> Run:
    return sealed_run.finished(launch())


def state(run: Run, actor: User, text: str = SAID) -> None:
    statement_make(run=run, actor=actor, field="handling.monitoring", text=text)


def files_of(card: Card) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(b"".join(artifacts.read_chunks(card.artifact)))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def to_path(card: Card, folder: Path) -> Path:
    path = folder / f"{card.pk}.zip"
    path.write_bytes(b"".join(artifacts.read_chunks(card.artifact)))
    return path


# ---------------------------------------------------------------------- versions


def test_what_was_stated_after_the_seal_stands_in_the_next_version(run: Run, rita: User, tmp_path: Path) -> None:
    first = record_seal(run=run)
    was = first.document
    with pytest.raises(NothingNew, match="since version 1"):
        record_seal(run=run, reason="again")
    state(run, rita)
    assert record_seal(run=run) == first  # without a reason nothing is made
    second = record_seal(run=run, reason="the plan was stated", actor=rita)
    assert (second.end, second.version, second.supersedes, first.version) == (first.end, 2, first, 1)
    entry = json.loads(second.document)["sections"]["handling"]["monitoring"]
    assert (entry["text"], entry["source"]) == (SAID, "stated by rita")
    first.refresh_from_db()
    assert first.document == was
    assert second.seal != first.seal
    assert second.cards.count() == first.cards.count() == 4
    body = json.loads(bytes(AuditEntry.objects.filter(kind="record_sealed").latest("pk").body))
    assert (body["actor"], body["reason"], body["data"]["version"]) == ("user:rita", "the plan was stated", 2)
    old, new = to_path(first.card(), tmp_path), to_path(second.card(), tmp_path)
    with old.open("rb") as older:
        report = verify_card(new, Beside(older=older, older_name="first"))
    assert report.accepted
    assert any("earlier record of this run" in check.detail for check in report.checks if check.name == "older card")


def test_a_statement_made_while_the_record_is_read_is_news_afterwards(
    run: Run, rita: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = services.contents_of

    def and_state(*given: object, **named: object) -> object:
        contents = real(*given, **named)  # type: ignore[arg-type]
        state(run, rita)
        return contents

    with monkeypatch.context() as patched:
        patched.setattr(services, "contents_of", and_state)
        first = record_seal(run=run)
    assert json.loads(first.document)["sections"]["handling"]["monitoring"]["text"] == "not stated"
    assert services.has_news(first)
    assert not services.has_news(record_seal(run=run, reason="now with it"))


def test_asking_for_a_version_and_the_task_that_makes_it(run: Run, rita: User) -> None:
    with pytest.raises(ValidationError, match="no record of its end yet"):
        version_request(run=run, actor=rita, reason="x")
    seal(run.pk)
    with pytest.raises(ValidationError, match="Nothing was stated"):
        version_request(run=run, actor=rita, reason="x")
    state(run, rita)
    with pytest.raises(ValidationError, match="Say why"):
        version_request(run=run, actor=rita, reason="  ")
    version_request(run=run, actor=rita, reason="the plan was stated")
    assert services.version_pending(run) == services.Asked(rita, "the plan was stated")
    seal(run.pk)
    seal(run.pk)  # a doubled message makes no third
    assert [record.version for record in Record.objects.filter(run=run).order_by("version")] == [1, 2]
    assert services.version_pending(run) is None


def test_a_version_whose_message_was_lost_is_asked_for_again(
    run: Run, rita: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(run.pk)
    state(run, rita)
    monkeypatch.setattr(reconcile, "UNSEALED", timedelta(seconds=-1))
    assert reconcile.seals_republish() == []  # nobody asked
    version_request(run=run, actor=rita, reason="the plan was stated")
    with monkeypatch.context() as patched:
        patched.setattr(reconcile, "UNSEALED", timedelta(seconds=60))
        assert reconcile.seals_republish() == []  # the message is on its way
    assert reconcile.seals_republish() == [run.pk]
    seal(run.pk)
    assert reconcile.seals_republish() == []


def test_parts_of_traces_are_read_in_their_order() -> None:
    names = [f"traces/steps-{block}.jsonl" for block in (
        "000001-000100", "000001-000100-2", "000001-000100-10", "000101-000200", "1000001-1000100")]  # fmt: skip
    assert sorted(sorted(names), key=again._place) == names
    assert sorted(names) != names


def test_page_offers_a_version_to_reviewers_once_there_is_something_new(
    run: Run, rita: User, bob: User, client_for: Callable[[User], Client]
) -> None:
    record_seal(run=run)
    page = f"/p/ours/runs/{run.pk}/record/"
    assert "Seal version 2" not in client_for(rita).get(page).content.decode()
    state(run, rita)
    assert "Seal version 2" in client_for(rita).get(page).content.decode()
    assert "Seal version 2" not in client_for(bob).get(page).content.decode()
    address = f"{page}1/seal-version/"
    assert client_for(bob).post(address, {"reason": "x"}).status_code == 403
    assert client_for(rita).post(f"{page}7/seal-version/", {"reason": "x"}).status_code == 404
    assert "Say why" in client_for(rita).post(address, {"reason": ""}, follow=True).content.decode()
    answer = client_for(rita).post(address, {"reason": "the plan was stated"}, follow=True).content.decode()
    assert "Another version was asked for and is not sealed yet: the plan was stated" in answer
    seal(run.pk)
    assert Record.objects.filter(run=run).latest("version").version == 2


# ---------------------------------------------------------------------- issued again


def test_a_card_issued_again_has_the_seal_and_lacks_what_was_redacted(run: Run, alice: User, tmp_path: Path) -> None:
    record = record_seal(run=run)
    before = files_of(record.card())
    sample = Sample.objects.get(group__run=run, group__step=2, index=1)
    text = sample.completion.encode()
    assert json.dumps(sample.completion)[1:-1].encode() in before["traces/steps-000001-000100.jsonl"] or (
        text in before["traces/steps-000001-000100.jsonl"]
    )
    samples_redact(run=run, samples=[sample], actor=alice, reason="a person asked")
    assert cards_renew(run=run) == 1
    record.refresh_from_db()
    after = files_of(record.card())
    for name in (entry["path"] for entry in json.loads(record.document)["files"]):
        assert after[name] == before[name], name
    assert after["record.json"] == before["record.json"]
    lines = [json.loads(line) for line in after["traces/steps-000001-000100.jsonl"].splitlines()]
    assert lines[1]["samples"][1] == {"index": 1, "redacted": True}
    assert [one.get("redacted") for one in lines[1]["samples"]] == [None, True, None, None]
    assert not any(text in content for content in after.values())
    for card in record.cards.filter(issue=2):
        assert (card.reason, verify_card(to_path(card, tmp_path)).accepted) == (
            f"Samples were redacted; the audit log says why, under run {run.pk}.", True)  # fmt: skip
    assert record.cards.count() == 8
    assert not artifacts.exists(record.cards.get(audience="internal", issue=1).artifact)
    assert record.card().checkpoint_size > record.cards.get(audience="internal", issue=1).checkpoint_size
    assert cards_renew(run=run) == 0


def test_issuing_again_that_fails_leaves_the_earlier_cards(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_seal(run=run)
    with monkeypatch.context() as broken:
        broken.setattr(services, "_card_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            record_reissue(record=record, reason="x")
    assert record.cards.count() == 4
    assert all(artifacts.exists(card.artifact) for card in record.cards.all())
    made = record_reissue(record=record, reason="x")
    assert [card.issue for card in made] == [2, 2, 2, 2]


def test_rows_that_were_stored_keep_their_files(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to COMMIT was lost: the cards are issued."""
    record = record_seal(run=run)

    @contextmanager
    def and_cut() -> Iterator[None]:
        with transaction.atomic():
            yield
        raise ConnectionError("cut")

    monkeypatch.setattr(services, "transaction", SimpleNamespace(atomic=and_cut))
    made = record_reissue(record=record, reason="x")
    assert [card.issue for card in made] == [2, 2, 2, 2]
    assert all(artifacts.exists(card.artifact) for card in made)


def test_what_a_killed_process_left_is_removed_by_the_next(run: Run) -> None:
    other = f"cards/{run.pk}1-0123456789abcdef-1-01234567-internal.zip"
    left = [f"cards/{run.pk}-0123456789abcdef-{issue}-01234567-internal.zip" for issue in (1, 2)]
    half = f"{left[0]}.0123456789abcdef0123456789abcdef.part"
    for key in (left[0], other, half):
        artifacts.put(key, [b"a completion"])
    record = record_seal(run=run)
    assert not artifacts.exists(half)
    assert [artifacts.exists(key) for key in (left[0], other)] == [False, True]
    artifacts.put(left[1], [b"a completion"])
    made = record_reissue(record=record, reason="x")
    assert not artifacts.exists(left[1])
    assert all(artifacts.exists(card.artifact) for card in (*record.cards.all(), *made))
    artifacts.remove(other)


def test_a_stored_card_that_was_changed_is_not_issued_again(run: Run) -> None:
    record = record_seal(run=run)
    key = record.card().artifact
    artifacts.remove(key)
    with pytest.raises(NotToBeIssued, match="no longer stored"):
        record_reissue(record=record, reason="x")
    artifacts.put(key, artifacts.read_chunks(record.card("public").artifact))
    with pytest.raises(Exception, match=r"config\.yaml"):
        record_reissue(record=record, reason="x")
    assert record.cards.count() == 4
