"""A project's policy: its versions, its page, what it gives of a record at the seal and now, and the public page that
it keeps closed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, transaction
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.evidence.policy.text import parse_policy
from cohort.evidence.verify.check import verify_card
from cohort.records.after_seal import services as life
from cohort.records.models import PolicyVersion, Record
from cohort.records.policies.services import policy_in_force, policy_save, policy_versions, policy_withdraw
from cohort.records.services import record_seal
from cohort.runs.models import Run
from cohort.web.policies.views import default_text
from tests.factories.sealed_run import finished
from tests.web.records.conftest import World
from tests.web.records.records import accepted, entry, logged, platform_keys, saved

pytestmark = pytest.mark.django_db
PAGE = "/p/ours/policy/"
ENDED = "schema: cohort-policy/1\nname: release\nrules:\n- {rule: ended, name: it succeeded}\n"
SIGNED = ENDED + "- {rule: sign_offs, name: two signed}\n"
IMPOSSIBLE = ENDED + "- {rule: figure, name: many steps, figure: superseded_steps, above: 5}\n"


def save(ours: Project, alice: User, text: str = ENDED, *, seen: int = 0, demanded: bool = False) -> PolicyVersion:
    return policy_save(project=ours, actor=alice, text=text, reason="agreed", demanded=demanded, seen=seen)


def test_versions_are_counted_logged_and_never_changed(ours: Project, alice: User) -> None:
    first = save(ours, alice)
    second = save(ours, alice, SIGNED, seen=1, demanded=True)
    third = policy_withdraw(project=ours, actor=alice, reason="by another process", seen=2)
    assert [version.number for version in (first, second, third)] == [1, 2, 3]
    assert [bool(version.text) for version in policy_versions(ours)] == [False, True, True]
    assert policy_in_force(ours) is None
    saves, withdrawals = logged("policy_saved"), logged("policy_withdrawn")
    assert [body["after"]["digest"] for body in saves] == [parse_policy(ENDED).digest, parse_policy(SIGNED).digest]
    assert saves[1]["before"] == saves[0]["after"]
    assert withdrawals[0]["reason"] == "by another process"
    with pytest.raises(DatabaseError, match="only added to"), transaction.atomic():
        PolicyVersion.objects.update(text="")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"text": "rules: []"}, "schema must be cohort-policy/1"),
        ({"text": SIGNED.replace("sign_offs", "signs")}, "line 5: rule must be one of"),
        ({"reason": " "}, "Say why"),
        ({"text": ENDED, "seen": 1}, "Nothing was changed"),
        ({"seen": 0}, "saved version 1 meanwhile"),
    ],
)
def test_what_is_no_new_version_is_refused_and_stores_nothing(
    ours: Project, alice: User, given: dict[str, Any], words: str
) -> None:
    save(ours, alice)
    with pytest.raises(ValidationError) as caught:
        policy_save(**{"project": ours, "actor": alice, "text": SIGNED, "reason": "x", "demanded": False, "seen": 1}
                    | given)  # fmt: skip
    assert words in " ".join(caught.value.messages)
    assert PolicyVersion.objects.count() == 1


def test_a_project_without_a_policy_has_none_to_withdraw(ours: Project, alice: User) -> None:
    with pytest.raises(ValidationError, match="no policy to withdraw"):
        policy_withdraw(project=ours, actor=alice, reason="x", seen=0)
    with pytest.raises(ValidationError, match="no such version"):
        save(ours, alice, seen=5)


def test_the_policy_to_start_from_is_one(world: World) -> None:
    parse_policy(default_text())
    assert "cohort-policy/1" in world.client("alice").get(PAGE).content.decode()


def test_the_page_saves_shows_compares_and_downloads(world: World, ours: Project) -> None:
    client: Client = world.client("alice")
    response = client.post(PAGE, {"text": ENDED, "reason": "first", "seen": "0"})
    assert response.status_code == 302
    assert client.post(PAGE, {"text": SIGNED, "reason": "<b>two</b>", "seen": "1", "demanded": "on"}).status_code == 302
    shown = client.get(PAGE).content.decode()
    assert "demanded before a record is public" in shown
    assert "&lt;b&gt;two&lt;/b&gt;" in shown
    assert "two signed" in shown
    changes = client.get(f"{PAGE}2/").content.decode()
    assert "Changes from version 1" in changes
    assert changes.count('class="added"') == 1
    file = client.get(f"{PAGE}2/policy.yaml")
    assert parse_policy(file.content.decode()).digest == parse_policy(SIGNED).digest
    assert client.post(f"{PAGE}withdraw/", {"reason": "no longer", "seen": "2"}).status_code == 302
    assert client.get(f"{PAGE}3/policy.yaml").status_code == 404
    assert policy_in_force(ours) is None


def test_a_text_with_faults_comes_back_whole_with_their_lines(world: World) -> None:
    text = SIGNED.replace("sign_offs", "signs") + "# a note\n"
    response = world.client("alice").post(PAGE, {"text": text, "reason": "x", "seen": "0"})
    shown = response.content.decode()
    assert response.status_code == 422
    assert "line 5: rule must be one of" in shown
    assert "# a note" in shown
    assert not PolicyVersion.objects.exists()


# ---------------------------------------------------------------------- a record


@pytest.fixture
def seal(launch: Callable[..., Run]) -> Callable[[], Record]:
    return lambda: record_seal(run=finished(launch()))


def test_a_record_says_what_the_policy_gave_at_its_seal_and_its_card_gives_the_same(
    ours: Project, alice: User, seal: Callable[[], Record], tmp_path: Path
) -> None:
    version = save(ours, alice, SIGNED + "- {rule: flags, name: no open flag}\n")
    record = seal()
    field = entry(record, "oversight.policy")
    assert isinstance(field.value, dict)
    assert field.value["version"] == version.number
    assert field.value["digest"] == version.digest
    rules = {rule["name"]: (rule["answer"], rule["why"]) for rule in field.value["rules"]}
    assert rules["it succeeded"] == ("passed", "")
    assert rules["two signed"] == ("cannot", "after the seal")
    assert field.value["verdict"] in ("cannot be judged", "not met")
    for audience in ("public", "internal"):
        assert accepted(record.card(audience), tmp_path), audience
    report = verify_card(saved(record.card("public"), tmp_path), platform_keys())
    lines = next(check.lines for check in report.checks if check.name == "policy")
    assert "recomputed" in lines[0]
    assert "no open flag" in lines[1], "flags are for those who build on the model"


def test_a_record_of_a_project_without_a_policy_says_so(seal: Callable[[], Record]) -> None:
    field = entry(seal(), "oversight.policy")
    assert (field.value, field.source) == (None, "not applicable")


def test_a_record_is_judged_with_the_policy_and_the_sign_offs_of_now(
    world: World, ours: Project, alice: User, seal: Callable[[], Record]
) -> None:
    record = seal()
    save(ours, alice, SIGNED, demanded=True)
    address = f"/p/ours/runs/{record.run_id}/record/{record.end}/life/"
    shown = world.client("bob").get(address).content.decode()
    assert "nobody has signed as operator" in shown
    with pytest.raises(ValidationError, match="two signed \\(failed: nobody has signed as operator"):
        life.public_link_make(record=record, actor=world.oscar)
    assert "see its rules" in world.client("oscar").get(address).content.decode()
    for person, role in ((world.oscar, "operator"), (world.rita, "reviewer")):
        life.sign_off(record=record, actor=person, role=role, decision="approved", reason="read it")
    assert "approved as operator by oscar" in world.client("bob").get(address).content.decode()
    life.public_link_make(record=record, actor=world.oscar)


def test_a_policy_that_is_not_demanded_closes_nothing(
    world: World, ours: Project, alice: User, seal: Callable[[], Record]
) -> None:
    record = seal()
    save(ours, alice, IMPOSSIBLE)
    assert life.public_link_make(record=record, actor=world.oscar).token


def test_a_policy_saved_after_the_seal_is_not_in_the_record(
    ours: Project, alice: User, seal: Callable[[], Record]
) -> None:
    record = seal()
    save(ours, alice, IMPOSSIBLE)
    assert json.loads(record.document)["sections"]["oversight"]["policy"]["source"] == "not applicable"
