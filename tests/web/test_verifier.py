"""Rewards: versions never change and are compared, faults of the form and of a source stand beside their field. Trying
one: test_lab_pages.py."""

import difflib
import re
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import Verifier, VerifierVersion
from cohort.catalog.services import SpecInvalid, checked_rubric, verifier_version_create
from cohort.web.catalog.reward_examples import EXAMPLES, Example
from cohort.web.catalog.reward_form import RewardForm, param_specs
from cohort.web.catalog.reward_versions import difference, source_lines
from grpo_core.rewards import KINDS
from tests.tables import cases
from tests.web.control import fresh
from tests.web.form_page import as_browser
from tests.web.pages import html

NEW = "/p/ours/rewards/new/"
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
    def version(**more: str) -> VerifierVersion:
        return verifier_version_create(project=ours, actor=alice, name="v", spec={**EXACT, **more})

    first = version()
    assert first.spec == {
        "components": [{"name": "answer", "kind": "exact", "weight": 1.0, "params": {}}],
        "on_error": "mask",
    }
    assert version(on_error="mask").pk == first.pk, "the default written out is the same reward"
    second, third = version(on_error="fail"), version()
    assert [first.number, second.number, third.number] == [1, 2, 3]
    assert third.digest == first.digest != second.digest


@pytest.mark.parametrize(("spec", "path"), cases("catalog/reward_spec_faults", "spec", "path"))
def test_a_wrong_spec_is_refused_at_its_field(ours: Project, alice: User, spec: dict[str, object], path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        verifier_version_create(project=ours, actor=alice, name="v", spec=spec)
    assert [problem.path for problem in caught.value.problems] == [path]
    assert not Verifier.objects.exists()


# ---------------------------------------------------------------- form


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_kind_of_reward_can_be_picked_with_its_parameters(operator: Client, kind: str) -> None:
    sent = {"row": "2", "component-2-kind": kind, "component-2-shown_kind": "exact", "component-2-name": "mine"}
    row = html(operator.post("/p/ours/rewards/component/", sent))
    assert {name for name in KINDS if f'<option value="{name}"' in row} == set(KINDS)
    assert f'<option value="{kind}" selected>' in row
    assert 'name="component-2-name" value="mine"' in row
    inputs = set(re.findall(r'<[a-z]+[^>]* name="component-2-p_(\w+)"', row))
    assert {spec.path for spec in param_specs(kind)} == inputs
    assert not re.search(r'type="checkbox"[^>]* value="false"', row), "a box that is ticked says true"
    assert all(spec.help for spec in param_specs(kind)), "every parameter says what it is"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
def test_an_example_opens_in_the_form_and_comes_back_as_it_was(operator: Client, example: Example) -> None:
    page = html(operator.get(f"{NEW}?example={example.id}"))
    sent = as_browser(page, '<form class="panel stack" method="post" id="reward-form"')
    assert operator.post(NEW, sent).status_code == 302
    assert VerifierVersion.objects.get().digest == checked_rubric(example.spec).digest


def test_a_component_for_chosen_rows_is_made_shown_and_compared(operator: Client) -> None:
    only = {"component-3-only_column": "data_source", "component-3-only_values": "gsm8k\r\nmath"}
    filtered = operator.post(NEW, FORM | only).headers["Location"]
    version = VerifierVersion.objects.get()
    assert version.spec["components"][1]["only"] == {"column": "data_source", "values": ["gsm8k", "math"]}
    assert "only rows with data_source" in html(operator.get(filtered))
    initial = RewardForm(initial=version.spec)
    assert [str(row["only_column"].value() or "") for row in initial.rows] == ["", "data_source"]
    operator.post(NEW, FORM | {"name": "all rows"})
    (changed,) = difference(version, VerifierVersion.objects.get(verifier__name="all rows")).components
    assert {setting.name for setting in changed.settings} == {"only.column", "only.values"}


@pytest.mark.parametrize("missing", ["column", "values"])
def test_half_a_row_filter_is_refused_at_its_field(operator: Client, missing: str) -> None:
    only = {"component-3-only_column": "data_source", "component-3-only_values": "gsm8k"}
    only[f"component-3-only_{missing}"] = ""
    response = operator.post(NEW, FORM | only)
    assert response.status_code == 422
    assert list(response.context["form"].rows[1].errors) == [f"only_{missing}"]


def test_examples_name_every_kind_that_needs_no_server_or_weights() -> None:
    shown = {component["kind"] for example in EXAMPLES for component in example.components}
    assert {name for name, kind in KINDS.items() if kind.mode not in ("model", "judge")} <= shown


def test_a_parameter_that_was_written_out_stays_so_and_another_at_its_default_is_left_out() -> None:
    def params(**given: str) -> Any:
        data = QueryDict(mutable=True)
        data.update({"name": "x", "on_error": "mask", "component-0-kind": "exact", "component-0-shown_kind": "exact"})
        data.update({"component-0-name": "a", "component-0-weight": "1", "component-0-p_extract": "answer_tag"})
        data.update({f"component-0-{name}": text for name, text in given.items()})
        form = RewardForm(data)
        assert form.is_valid()
        return form.spec()["components"][0]["params"]

    spec = {"components": [{"name": "a", "kind": "exact", "params": {"extract": "answer_tag"}}]}
    assert RewardForm(initial=spec).rows[0].given_names == "extract"
    assert params() == {}
    assert params(given="extract") == {"extract": "answer_tag"}


def test_operator_makes_one_from_rows(operator: Client, oscar: User) -> None:
    response = operator.post(NEW, FORM | {"component-0-p_allow_whitespace": "false"})
    version = VerifierVersion.objects.get(verifier__project__slug="ours")
    assert response.url == f"/p/ours/rewards/{version.verifier_id}/"  # type: ignore[attr-defined]
    assert version.created_by == oscar
    assert version.spec["components"] == [
        {"name": "format", "kind": "r1_format", "weight": 0.2, "params": {"allow_whitespace": False}},
        {"name": "answer", "kind": "exact", "weight": 1.0, "params": {"extract": "boxed", "ignore_case": True}},
    ]


def test_another_kind_is_shown_before_anything_is_saved(operator: Client) -> None:
    """Without JavaScript: the row was sent with the fields of the kind before."""
    response = operator.post(NEW, FORM | {"component-3-kind": "numeric", "component-3-shown_kind": "exact"})
    page = html(response)
    assert response.status_code == 200
    assert 'name="component-3-p_tolerance"' in page
    assert re.search(r'name="component-3-p_extract".*?<option value="boxed" selected', page, re.DOTALL), "it is kept"
    assert not Verifier.objects.exists()


def test_limits_are_part_of_the_reward_only_where_they_differ(operator: Client) -> None:
    usual = {"deadline_seconds": "30", "retries": "2", "workers": "4"}
    operator.post(NEW, FORM | usual)
    assert "limits" not in VerifierVersion.objects.get().spec
    operator.post(NEW, FORM | usual | {"name": "slow", "deadline_seconds": "90.5"})
    newest = VerifierVersion.objects.get(verifier__name="slow")
    assert newest.spec["limits"] == {"deadline_seconds": 90.5, "retries": 2, "workers": 4}
    wrong = operator.post(NEW, FORM | {"name": "none", "workers": "0"})
    assert wrong.status_code == 422
    assert "workers" in wrong.context["form"].head.errors
    assert b'<details class="fold" open>' in wrong.content


@pytest.mark.parametrize(("change", "field", "names"), cases("catalog/reward_form_faults", "change", "field", "names"))
def test_a_fault_stands_beside_its_field(operator: Client, change: dict[str, str], field: str, names: str) -> None:
    response = operator.post(NEW, FORM | change)
    assert response.status_code == 422
    form = response.context["form"].rows[1]
    assert names in str(form.errors[field])
    assert f'id="id_{form.prefix}-{field}_error"' in html(response)
    assert not Verifier.objects.exists()


def test_faults_of_the_whole_store_nothing(operator: Client, verifier_version: VerifierVersion) -> None:
    many = {"name": "many", "on_error": "mask"}
    for number in range(21):
        prefix = f"component-{number}"
        many |= {f"{prefix}-kind": "exact", f"{prefix}-name": f"c{number}", f"{prefix}-weight": "1"}
    for sent, words in (
        (FORM | {"component-3-name": "format"}, b"given twice: format"),
        ({"name": "x", "on_error": "mask"}, b"at least one component"),
        (FORM | {"name": verifier_version.verifier.name}, b"Open it to add a version"),
        (many, b"these are 21"),
    ):
        response = operator.post(NEW, sent)
        assert response.status_code == 422
        assert words in response.content
    assert len(response.context["form"].rows) == 21, "none is dropped"
    assert VerifierVersion.objects.count() == 1


@pytest.mark.parametrize(("button", "rows"), [({"add_row": "1"}, ["0", "3", "4"]), ({"remove_row": "0"}, ["3"])])
def test_rows_change_without_javascript(operator: Client, button: dict[str, str], rows: list[str]) -> None:
    response = operator.post(NEW, FORM | button)
    assert response.status_code == 200
    assert [row.number for row in response.context["form"].rows] == rows
    assert not Verifier.objects.exists()


def test_components_and_their_buttons_are_told_apart_by_name(operator: Client) -> None:
    page = html(operator.post(NEW, FORM | {"add_row": "1"}))
    places = ["1", "4", "5", "__place__"]
    assert re.findall(r"<legend[^>]*>Component (.*?)</legend>", page) == places
    assert re.findall(r'Remove component ?<span class="sr-only"> (\w+)', page) == places
    first = re.search(r'<button[^>]*type="submit"[^>]*>[^<]*', page[page.index('<form class="panel') :])
    assert first is not None
    assert first[0].endswith(">Save"), "Enter in a field saves and neither adds nor removes a component"


def test_new_version_starts_from_the_newest_and_leaves_it(operator: Client, verifier_version: VerifierVersion) -> None:
    address, before = f"/p/ours/rewards/{verifier_version.verifier_id}/new-version/", dict(verifier_version.spec)
    assert re.search(r'name="component-0-weight" value="0.2"', html(operator.get(address)))
    for _ in range(2):  # the second time nothing has changed
        operator.post(address, FORM)
    newest = VerifierVersion.objects.get(verifier=verifier_version.verifier, number=2)
    assert fresh(verifier_version).spec == before
    assert newest.spec["components"][1]["params"] == {"extract": "boxed", "ignore_case": True}
    assert VerifierVersion.objects.count() == 2


# ---------------------------------------------------------------- versions and source


CHECK = "/p/ours/rewards/check/"
SOURCE = "def verify(sample):\n    return 1.0\n"


def test_lines_that_changed_stand_with_their_numbers_and_neighbours() -> None:
    lines = source_lines("\n".join("abcdefgh"), "\n".join("abcdEfghi"))
    assert [(line.sign, line.before, line.after, line.text) for line in lines] == [
        ("…", None, None, ""),
        *((" ", number, number, text) for number, text in ((2, "b"), (3, "c"), (4, "d"))),
        ("−", 5, None, "e"),
        ("+", None, 5, "E"),
        *((" ", number, number, text) for number, text in ((6, "f"), (7, "g"), (8, "h"))),
        ("+", None, 9, "i"),
    ]


def test_texts_that_would_take_minutes_to_compare_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that each of them has over and over, and more lines than a source has."""
    monkeypatch.setattr(difflib.SequenceMatcher, "find_longest_match", lambda *_: pytest.fail("they are compared"))
    for many in ("#\n" * 400, "\n".join(map(str, range(5001)))):
        (line,) = source_lines(many, f"{many}\nx")
        assert (line.sign, line.before, line.after) == ("…", None, None)
    monkeypatch.undo()
    assert len(list(source_lines("", "#\n" * 400))) == 400, "the first version is shown whole"


def test_versions_are_compared_component_by_component(ours: Project, oscar: User, viewer: Client) -> None:
    python = {"name": "own", "kind": "python", "weight": 1.0, "params": {"source": SOURCE}}
    changed = python | {"weight": 0.5, "params": {"source": SOURCE + "# more\n", "memory_mb": 64}}
    specs = (
        {"components": [python]},
        {"components": [{"name": "form", "kind": "r1_format"}, changed], "on_error": "zero"},
    )
    first, second = (verifier_version_create(project=ours, actor=oscar, name="own", spec=spec) for spec in specs)
    changes = difference(first, second)
    assert [(field.name, field.before, field.after) for field in changes.head] == [("on_error", "mask", "zero")]
    components = {component.name: component for component in changes.components}
    assert components["form"].change == "added"
    own = components["own"]
    assert [(field.name, field.before, field.after, field.has_before) for field in own.settings] == [
        ("weight", 1.0, 0.5, True),
        ("memory_mb", None, 64, False),
    ]
    assert [line.text for line in own.sources[0][1] if line.sign == "+"] == ["# more"]
    assert difference(second, second).none
    page = html(viewer.get(f"/p/ours/rewards/{first.verifier_id}/compare/?from=1&to=2"))
    assert "# more" in page


# ---------------------------------------------------------------- source as one types


def check(client: Client, source: str, **more: str) -> str:
    sent = {"row": "0", "component-0-kind": "python", "component-0-shown_kind": "python"}
    sent |= {"component-0-p_source": source, **{f"component-0-p_{name}": text for name, text in more.items()}}
    return html(client.post(CHECK, sent))


@pytest.mark.parametrize(
    ("source", "line", "names"),
    [*cases("catalog/source_faults", "source", "line", "names"), ("(" * 5000, "1", ""), ("#" * 70_001, "1", "bytes")],
)
def test_what_is_wrong_is_said_with_its_line(operator: Client, source: str, line: str, names: str) -> None:
    page = check(operator, source)
    assert f'data-lines="{line} ' in page
    assert names in page


def test_packages_that_are_chosen_may_be_imported_and_source_is_escaped(operator: Client) -> None:
    source = f"import numpy\n{SOURCE}"
    assert 'data-lines="1 ' in check(operator, source)
    assert "It parses" in check(operator, source, packages="numpy")
    page = check(operator, "<script>alert(1)</script>")
    assert ("<script>" in page, "&lt;script&gt;" in page) == (False, True)


@pytest.mark.parametrize("row", ["", "x", "9" * 40, "-1", "²"])
def test_a_row_that_no_page_sends_is_harmless(operator: Client, row: str) -> None:
    for address in (CHECK, "/p/ours/rewards/component/"):
        assert operator.post(address, {"row": row}).status_code == 200
