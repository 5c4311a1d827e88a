"""Token arrays reach the platform behind their records: before a run ends, from where a cut left off, and never in the
way of a stop."""

from typing import Any

import pytest

from cohort.review.models import Sample, TokenFile
from cohort.review.token_files import token_row
from tests.worker.conftest import Attempting
from worker.platform_client.client import AttemptLink, Unreachable


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.platform_client.uploads.PART_BYTES", 700)


def pieces(step: int) -> list[str]:
    sample = Sample.objects.select_related("group").get(group__step=step, index=0)
    return list(token_row(sample).columns["piece"])


def test_every_step_is_there_when_the_run_has_ended(attempt: Attempting) -> None:
    begun = attempt("tokens")
    assert begun.end() == ("finished", "ok")
    assert list(TokenFile.objects.filter(done_at__isnull=False, fault="").values_list("step", flat=True)) == [4, 5]
    assert pieces(4)[:2] == pieces(5)[:2] == ["w0 ", "w1 "]


def test_a_file_goes_on_where_it_broke_off(attempt: Attempting, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send = AttemptLink.upload_tokens

    def cut_once(link: AttemptLink, sha256: str, *, offset: int, part: bytes) -> Any:
        if len(sent) == 1 and part:
            sent.append(-1)
            raise Unreachable("the line is cut")
        if part:
            sent.append(offset)
        return send(link, sha256, offset=offset, part=part)

    monkeypatch.setattr(AttemptLink, "upload_tokens", cut_once)
    begun = attempt("tokens")
    assert begun.end() == ("finished", "ok")
    assert sent[:3] == [0, -1, 700]
    assert pieces(4)[0] == "w0 "


def test_a_stop_waits_for_no_file(attempt: Attempting, monkeypatch: pytest.MonkeyPatch) -> None:
    """What never gets through stays on the node; the run ends all the same."""

    def never(link: AttemptLink, sha256: str, *, offset: int, part: bytes) -> Any:
        raise Unreachable("the line is cut")

    monkeypatch.setattr(AttemptLink, "upload_tokens", never)
    begun = attempt("tokens", limits={"grace": 1.0})
    assert begun.end() == ("finished", "ok")
    assert TokenFile.objects.filter(done_at=None).count() == 2
    assert (begun.folder / "tokens" / "step-000004.parquet").exists()
