"""Rewards: versions never change, and faults of the form stand beside their field. Trying one: test_lab_try.py."""

import re
from collections.abc import Callable

import pytest
from django.http import QueryDict
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import Verifier, VerifierVersion
from cohort.catalog.param_fields import param_specs
from cohort.catalog.reward_examples import EXAMPLES, Example
from cohort.catalog.reward_form import RewardForm
from cohort.catalog.services import SpecInvalid, checked_rubric, verifier_version_create
from grpo_core.rewards import KINDS
from tests.web.form_page import as_browser

ClientFor = Callable[[User], Client]

EXACT = {"components": [{"name": "answer", "kind": "exact"}]}
FORM = {
    "name": "mine",
    "description": "",
    "on_error": "mask",
    "component-0-kind": "r1_format",
    "component-0-name": "format",
    "component-0-weight": "0.2",
    "component-3-kind": "exact",
    "component-3-name": "answer",
    "component-3-weight": "1",
    "component-3-p_extract": "boxed",
    "component-3-p_ignore_case": "true",
}


# ---------------------------------------------------------------- service


def test_versions_count_up_and_an_equal_one_is_returned(ours: Project, alice: User) -> None:
    first = verifier_version_create(project=ours, actor=alice, name="v", spec=EXACT)
    again = verifier_version_create(project=ours, actor=alice, name="v", spec={**EXACT, "on_error": "mask"})
    assert again.pk == first.pk, "the default written out is the same reward"
    second = verifier_version_create(project=ours, actor=alice, name="v", spec={**EXACT, "on_error": "fail"})
    third = verifier_version_create(project=ours, actor=alice, name="v", spec=EXACT)
    assert [first.number, second.number, third.number] == [1, 2, 3]
    assert third.digest == first.digest != second.digest


def test_stored_spec_is_complete(ours: Project, alice: User) -> None:
    version = verifier_version_create(project=ours, actor=alice, name="v", spec=EXACT)
    assert version.spec == {
        "components": [{"name": "answer", "kind": "exact", "weight": 1.0, "params": {}}],
        "on_error": "mask",
    }


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"components": []}, "components"),
        ({"components": [{"name": "Big", "kind": "exact"}]}, "components.0.name"),
        ({"components": [{"name": "a", "kind": "magic"}]}, "components.0.kind"),
        ({"components": [{"name": "a", "kind": "exact", "params": {"extract": "x"}}]}, "components.0.params.extract"),
        ({"components": [{"name": "a", "kind": "exact", "params": {"nope": 1}}]}, "components.0.params.nope"),
        ({**EXACT, "colour": 1}, "colour"),
        ({"components": [{"name": "a", "kind": "exact"}, {"name": "a", "kind": "exact"}]}, ""),
    ],
)
def test_a_wrong_spec_names_the_place_and_stores_nothing(
    ours: Project, alice: User, spec: dict[str, object], path: str
) -> None:
    with pytest.raises(SpecInvalid) as caught:
        verifier_version_create(project=ours, actor=alice, name="v", spec=spec)
    assert [problem.path for problem in caught.value.problems] == [path]
    assert not Verifier.objects.exists()


# ---------------------------------------------------------------- form


def test_every_kind_of_reward_can_be_picked_with_its_parameters(
    client_for: ClientFor, ours: Project, oscar: User
) -> None:
    client = client_for(oscar)
    page = client.get("/p/ours/rewards/new/").content.decode()
    assert {kind for kind in KINDS if f'<option value="{kind}"' in page} == set(KINDS)
    for kind in KINDS:
        sent = {"row": "2", "component-2-kind": kind, "component-2-shown_kind": "exact", "component-2-name": "mine"}
        row = client.post("/p/ours/rewards/component/", sent).content.decode()
        assert f'<option value="{kind}" selected>' in row
        assert 'name="component-2-name" value="mine"' in row
        assert {spec.name for spec in param_specs(kind)} == set(
            re.findall(r'<[a-z]+[^>]* name="component-2-p_(\w+)"', row)
        )
        assert all(spec.help for spec in param_specs(kind)), "every parameter says what it is"


@pytest.mark.parametrize("one", EXAMPLES, ids=[one.id for one in EXAMPLES])
def test_an_example_opens_in_the_form_and_comes_back_as_it_was(
    client_for: ClientFor, ours: Project, oscar: User, one: Example
) -> None:
    client = client_for(oscar)
    page = client.get(f"/p/ours/rewards/new/?example={one.id}").content.decode()
    response = client.post(
        "/p/ours/rewards/new/", as_browser(page, '<form class="panel stack" method="post" id="reward-form"')
    )
    assert response.status_code == 302, response.content.decode()
    assert VerifierVersion.objects.get().digest == checked_rubric(one.spec).digest


def test_examples_name_every_kind_that_needs_no_server_or_weights() -> None:
    shown = {component["kind"] for one in EXAMPLES for component in one.components}
    assert {name for name, kind in KINDS.items() if kind.place not in ("model", "judge")} <= shown


def test_a_parameter_that_was_written_out_stays_so_and_another_at_its_default_is_left_out() -> None:
    spec = {"components": [{"name": "a", "kind": "exact", "params": {"extract": "answer_tag"}}]}
    form = RewardForm(initial=spec)
    assert form.rows[0].given_names == "extract"
    data = QueryDict(mutable=True)
    data.update({"name": "x", "on_error": "mask", "component-0-kind": "exact", "component-0-shown_kind": "exact"})
    data.update({"component-0-name": "a", "component-0-weight": "1", "component-0-p_extract": "answer_tag"})
    bare = RewardForm(data)
    assert bare.is_valid()
    assert bare.spec()["components"][0]["params"] == {}
    data["component-0-given"] = "extract"
    kept = RewardForm(data)
    assert kept.is_valid()
    assert kept.spec()["components"][0]["params"] == {"extract": "answer_tag"}


def test_a_switch_that_is_on_can_be_turned_off(client_for: ClientFor, ours: Project, oscar: User) -> None:
    form = FORM | {"component-0-p_allow_whitespace": "false"}
    client_for(oscar).post("/p/ours/rewards/new/", form)
    assert VerifierVersion.objects.get().spec["components"][0]["params"] == {"allow_whitespace": False}


def test_another_kind_is_shown_before_anything_is_saved(client_for: ClientFor, ours: Project, oscar: User) -> None:
    """Without JavaScript: the row was sent with the fields of the kind before."""
    form = FORM | {"component-3-kind": "numeric", "component-3-shown_kind": "exact"}
    response = client_for(oscar).post("/p/ours/rewards/new/", form)
    page = response.content.decode()
    assert response.status_code == 200
    assert "Another kind was chosen" in page
    assert 'name="component-3-p_tolerance"' in page
    assert re.search(r'name="component-3-p_extract".*?<option value="boxed" selected', page, re.DOTALL), "it is kept"
    assert not Verifier.objects.exists()


def test_limits_are_part_of_the_reward_only_where_they_differ(
    client_for: ClientFor, ours: Project, oscar: User
) -> None:
    usual = {"deadline_seconds": "30", "retries": "2", "workers": "4"}
    client = client_for(oscar)
    client.post("/p/ours/rewards/new/", FORM | usual)
    assert "limits" not in VerifierVersion.objects.get().spec
    client.post("/p/ours/rewards/new/", FORM | usual | {"name": "slow", "deadline_seconds": "90.5"})
    newest = VerifierVersion.objects.get(verifier__name="slow")
    assert newest.spec["limits"] == {"deadline_seconds": 90.5, "retries": 2, "workers": 4}
    wrong = client.post("/p/ours/rewards/new/", FORM | {"name": "none", "workers": "0"})
    assert wrong.status_code == 422
    assert "workers" in wrong.context["form"].head.errors
    assert b'<details class="fold" open>' in wrong.content


def test_operator_makes_one_from_rows(client_for: ClientFor, ours: Project, oscar: User) -> None:
    response = client_for(oscar).post("/p/ours/rewards/new/", FORM)
    version = VerifierVersion.objects.get(verifier__project=ours)
    assert response.url == f"/p/ours/rewards/{version.verifier_id}/"
    assert version.created_by == oscar
    assert version.spec["components"] == [
        {"name": "format", "kind": "r1_format", "weight": 0.2, "params": {}},
        {"name": "answer", "kind": "exact", "weight": 1.0, "params": {"extract": "boxed", "ignore_case": True}},
    ]


@pytest.mark.parametrize(
    ("change", "row", "field", "said"),
    [
        ({"component-3-name": "Answer!"}, 1, "name", "pattern"),
        ({"component-3-weight": "much"}, 1, "weight", "number"),
        ({"component-3-p_extract": "nowhere"}, 1, "p_extract", "not one of the available choices"),
        ({"component-3-kind": "numeric", "component-3-p_tolerance": "-1"}, 1, "p_tolerance", "greater than or equal"),
        ({"component-3-kind": "regex", "component-3-p_pattern": "(a"}, 1, "p_pattern", "missing )"),
        ({"component-3-kind": "regex"}, 1, "p_pattern", "is needed"),
        ({"component-3-kind": "json_schema", "component-3-p_json_schema": "a: [unclosed"}, 1, "p_json_schema", "YAML"),
        (
            {"component-3-kind": "json_schema", "component-3-p_json_schema": "a: &x [1]\nb: *x"},
            1,
            "p_json_schema",
            "aliases",
        ),
        (
            {"component-3-kind": "json_schema", "component-3-p_json_schema": "a: 1\na: 2"},
            1,
            "p_json_schema",
            "given twice",
        ),
        (
            {"component-3-kind": "json_schema", "component-3-p_json_schema": "a: !!bool x"},
            1,
            "p_json_schema",
            "leave the tag",
        ),
        (
            {
                "component-3-kind": "json_schema",
                "component-3-p_extract": "whole",
                "component-3-p_json_schema": "a: 2026-01-01",
            },
            1,
            "p_json_schema",
            "JSON",
        ),
        ({"component-3-kind": "magic"}, 1, "kind", "not one of the available choices"),
    ],
)
def test_faults_stand_beside_their_field(
    client_for: ClientFor, ours: Project, oscar: User, change: dict[str, str], row: int, field: str, said: str
) -> None:
    response = client_for(oscar).post("/p/ours/rewards/new/", FORM | change)
    assert response.status_code == 422
    form = response.context["form"].rows[row]
    assert form.errors, response.context["form"].head.errors
    assert said in str(form.errors[field])
    assert f'id="id_{form.prefix}-{field}_error"' in response.content.decode()
    assert not Verifier.objects.exists()


def test_faults_of_the_whole_are_said_at_the_top(client_for: ClientFor, ours: Project, oscar: User) -> None:
    twice = client_for(oscar).post("/p/ours/rewards/new/", FORM | {"component-3-name": "format"})
    assert b"given twice: format" in twice.content
    none = client_for(oscar).post("/p/ours/rewards/new/", {"name": "x", "on_error": "mask"})
    assert b"at least one component" in none.content


def test_used_name_is_refused(client_for: ClientFor, oscar: User, verifier_version: VerifierVersion) -> None:
    response = client_for(oscar).post("/p/ours/rewards/new/", FORM | {"name": verifier_version.verifier.name})
    assert b"Open it to add a version" in response.content
    assert VerifierVersion.objects.count() == 1


def test_a_row_can_be_added_without_javascript(client_for: ClientFor, ours: Project, oscar: User) -> None:
    response = client_for(oscar).post("/p/ours/rewards/new/", FORM | {"add_row": "1"})
    assert response.status_code == 200
    assert [row.number for row in response.context["form"].rows] == ["0", "3", "4"]
    assert not Verifier.objects.exists()


def test_a_row_can_be_removed_without_javascript(client_for: ClientFor, ours: Project, oscar: User) -> None:
    response = client_for(oscar).post("/p/ours/rewards/new/", FORM | {"remove_row": "0"})
    assert response.status_code == 200
    assert [row.number for row in response.context["form"].rows] == ["3"]
    assert not Verifier.objects.exists()


def test_components_and_their_buttons_are_told_apart_by_name(client_for: ClientFor, ours: Project, oscar: User) -> None:
    page = client_for(oscar).post("/p/ours/rewards/new/", FORM | {"add_row": "1"}).content.decode()
    assert re.findall(r"<legend[^>]*>(.*?)</legend>", page) == [
        "Component 1",
        "Component 4",
        "Component 5",
        "Component __place__",
    ]
    assert re.findall(r'Remove component<span class="sr-only"> (\w+)', page) == ["1", "4", "5", "__place__"]
    first = re.search(r'<button[^>]*type="submit"[^>]*>[^<]*', page[page.index('<form class="panel') :])
    assert first is not None
    assert first[0].endswith(">Save"), "Enter in a field saves and neither adds nor removes a component"


def test_one_component_too_many_is_refused_and_none_is_dropped(
    client_for: ClientFor, ours: Project, oscar: User
) -> None:
    many = {"name": "many", "on_error": "mask"}
    for number in range(21):
        prefix = f"component-{number}"
        many |= {f"{prefix}-kind": "exact", f"{prefix}-name": f"c{number}", f"{prefix}-weight": "1"}
    response = client_for(oscar).post("/p/ours/rewards/new/", many)
    assert response.status_code == 422
    assert b"A reward has at most 20 components; these are 21. Remove 1." in response.content
    assert len(response.context["form"].rows) == 21
    assert not Verifier.objects.exists()


def test_new_version_starts_from_the_newest_and_leaves_it(
    client_for: ClientFor, oscar: User, verifier_version: VerifierVersion
) -> None:
    client = client_for(oscar)
    address = f"/p/ours/rewards/{verifier_version.verifier_id}/new-version/"
    page = client.get(address).content.decode()
    assert re.search(r'name="component-0-weight" value="0.2"', page)
    before = dict(verifier_version.spec)
    client.post(address, FORM)
    newest = VerifierVersion.objects.get(verifier=verifier_version.verifier, number=2)
    verifier_version.refresh_from_db()
    assert verifier_version.spec == before
    assert newest.spec["components"][1]["params"] == {"extract": "boxed", "ignore_case": True}
    same = client.post(address, FORM, follow=True)
    assert b"Nothing changed: version 2" in same.content
    assert VerifierVersion.objects.count() == 2


# ---------------------------------------------------------------- who may


@pytest.mark.parametrize("who", ["bob", "rita"])
def test_readers_look_and_do_not_make(
    client_for: ClientFor, request: pytest.FixtureRequest, verifier_version: VerifierVersion, who: str
) -> None:
    client = client_for(request.getfixturevalue(who))
    page = client.get(f"/p/ours/rewards/{verifier_version.verifier_id}/")
    assert page.status_code == 200
    assert verifier_version.digest in page.content.decode()
    assert b"New version" not in page.content
    assert client.post("/p/ours/rewards/component/", {"row": "0"}).status_code == 403
    assert client.post("/p/ours/rewards/check/", {"row": "0"}).status_code == 403
    assert client.post("/p/ours/rewards/new/", FORM).status_code == 403
    assert client.post(f"/p/ours/rewards/{verifier_version.verifier_id}/new-version/", FORM).status_code == 403


def test_stranger_reaches_it_through_no_project(
    client_for: ClientFor, charlie: User, verifier_version: VerifierVersion
) -> None:
    pk = verifier_version.verifier_id
    for slug in ("ours", "theirs"):
        assert client_for(charlie).get(f"/p/{slug}/rewards/{pk}/").status_code == 404
        assert client_for(charlie).get(f"/p/{slug}/rewards/{pk}/compare/").status_code == 404
        assert client_for(charlie).post(f"/p/{slug}/rewards/{pk}/new-version/", FORM).status_code == 404


def test_wrong_method(client_for: ClientFor, alice: User, verifier_version: VerifierVersion) -> None:
    pk = verifier_version.verifier_id
    assert client_for(alice).get("/p/ours/rewards/check/").status_code == 405
    assert client_for(alice).post(f"/p/ours/rewards/{pk}/").status_code == 405
