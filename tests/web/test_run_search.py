"""The language of the list of runs: what a query means, which runs it matches, and what is said of a wrong one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.accounts.models import Project
from cohort.runs.marks import run_archive, run_note_set, run_tags_change
from cohort.runs.models import Attempt, Run, RunValue
from cohort.runs.run_values import config_values_store, evaluation_values_store
from cohort.runs.search.fields import Fields, short_names
from cohort.runs.search.filters import search
from cohort.runs.search.syntax import MOST_CHARACTERS, MOST_TERMS, SearchError, parse, quoted
from cohort.runs.services import run_extend
from tests.factories.runs import Maker, add_checkpoint, add_evaluation, add_steps, put_in
from tests.tables import cases

ADDER = {"preset": "dapo", "sampling": {"group_size": 16}}


def stored_evaluation(attempt: Attempt, phase: str, scores: list[float]) -> None:
    evaluation_values_store(run_id=add_evaluation(attempt, phase, scores).run_id)


@pytest.fixture
def three(maker: Maker) -> Maker:
    """Three runs that differ, and one in the archive."""
    waits = maker.run("waits", state="queued")
    plain = maker.run(
        "plain",
        state="training",
        sampling={"group_size": 4},
        optim={"lr": 2e-5},
        algorithm={"scale": "none", "kl": {"coef": 0.04}},
    )
    attempt = maker.attempt(plain)
    add_steps(attempt, [{"reward": 0.25}])
    stored_evaluation(attempt, "before", [1, 0])
    hacker = maker.run("hacker", state="training", **ADDER)
    attempt = maker.attempt(hacker)
    add_steps(attempt, [{"reward": 0.5}, {"reward": 1.0, "kl": 0.5, "rewards/right/mean": 0.25}])
    stored_evaluation(attempt, "before", [1, 0, 0, 0])
    stored_evaluation(attempt, "after", [1, 1, 1, 0])
    put_in(hacker, "succeeded")
    run_tags_change(run=hacker, actor=maker.actor, add=["hack", "old"])
    run_note_set(run=hacker, actor=maker.actor, note="It went all out.")
    run_tags_change(run=plain, actor=maker.actor, add=["base"])
    away = maker.run("put away", state="failed")
    run_archive(run=away, actor=maker.actor, archived=True)
    Run.objects.filter(pk=waits.pk).update(step=1)
    return maker


@pytest.mark.parametrize(
    ("query", "terms", "code", "part"), cases("runs/search_terms", "query", "terms", "code", "part")
)
def test_terms_of_a_query(query: str, terms: list[list[str]] | None, code: str | None, part: str | None) -> None:
    if code is None:
        read = parse(query)
        assert [[t.field, t.operator, t.value, *(["not"] if t.negated else [])] for t in read] == terms
        return
    with pytest.raises(SearchError) as caught:
        parse(query)
    assert (caught.value.code, query[caught.value.start : caught.value.end]) == (code, part)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "names", "code", "part", "near"), cases("runs/searches", "query", "names", "code", "part", "near")
)
def test_which_runs_match(
    three: Maker, query: str, names: list[str] | None, code: str | None, part: str | None, near: str | None
) -> None:
    if code is None:
        assert sorted(search(three.project, query).runs.values_list("name", flat=True)) == sorted(names or [])
        return
    with pytest.raises(SearchError) as caught:
        search(three.project, query)
    assert (caught.value.code, query[caught.value.start : caught.value.end]) == (code, part)
    assert (near or "") in str(caught.value)


@pytest.mark.django_db
def test_every_short_name_can_be_searched_for(three: Maker) -> None:
    examples = {"number": ">=0", "text": ":a", "time": ">2026-01-01", "tag": ":a"}
    examples |= {"state": "=failed", "archived": ":any"}
    for name, field in short_names().items():
        search(three.project, f"{name}{examples[field.kind]}").runs.count()
        search(three.project, f"-{name}{examples[field.kind]}").runs.count()


@pytest.mark.django_db
def test_bounds_of_a_query(ours: Project) -> None:
    for query, code in (("a" * (MOST_CHARACTERS + 1), "search_too_long"), ("a " * (MOST_TERMS + 1), "too_many_terms")):
        with pytest.raises(SearchError) as caught:
            search(ours, query)
        assert caught.value.code == code
    assert search(ours, "a " * MOST_TERMS).runs.count() == 0


pieces = st.sampled_from(
    [*'=!<>:"\\- %().', ">=", "G", "reward", "eval.", "state", "created", "tag", "archived", "none", "1e999", "٣"]
)


@pytest.mark.django_db
@given(query=st.lists(pieces | st.text(max_size=4), max_size=12).map("".join))
def test_any_text_is_understood_or_refused_in_words(ours_committed: Project, query: str) -> None:
    query = query.replace("\0", "")
    refused: SearchError | None = None
    try:
        matching = search(ours_committed, query).runs.count()
    except SearchError as error:
        refused, matching = error, 0
    assert matching == 0
    if refused is not None:
        assert str(refused).endswith(".")
        assert 0 <= refused.start < refused.end <= len(query)


@pytest.fixture(scope="module")
def ours_committed(django_db_setup: object, django_db_blocker: object) -> Project:
    """The rows of no test are needed: a query of a project without runs."""
    return Project(pk=10**9, slug="none", name="none")


@given(value=st.text(min_size=1, max_size=20))
def test_a_quoted_value_is_read_back(value: str) -> None:
    (term,) = parse(f"tag:{quoted(value)}")
    assert term.value == value


@pytest.mark.django_db
def test_settings_are_found_again_after_a_run_is_extended(maker: Maker) -> None:
    run = maker.run("adder", state="training", optim={"steps": 5})
    add_checkpoint(maker.attempt(run, state="failed"), 2, stored=True)
    put_in(run, "paused")
    run_extend(run=run, actor=maker.actor, steps=3)
    keys = RunValue.objects.filter(run=run)
    assert keys.get(key="optim.steps").number == 8
    assert keys.get(key="name").text == "adder"
    assert search(maker.project, "steps=8").runs.get() == run


@pytest.mark.django_db
def test_numbers_that_no_column_holds_are_text_alone(maker: Maker) -> None:
    run = maker.run()
    run.config["reward"]["components"][0]["params"] = {"large": 10**400, "small": 1e-310, "x" * 500: 1}
    run.save()
    config_values_store(run_id=run.pk)
    at = "reward.components.0.params"
    kept = RunValue.objects.filter(run=run, key__startswith=at).values_list("key", "number")
    assert dict(kept) == {f"{at}.large": None, f"{at}.small": None}
    assert Fields(maker.project).field(f"{at}.large").kind == "text"
