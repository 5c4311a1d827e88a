"""Every address there is, found by walking the URLconf: none opens to people who are not signed in, and everything of
a project is 404 to a stranger, as if it did not exist. A new view cannot forget this without failing here.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.urls.converters import IntConverter, SlugConverter

from cohort.accounts.models import Membership, Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.runs.models import Run
from grpo_core.config import RunConfig
from tests.web.suite_rows import add_suite

ClientFor = Callable[[User], Client]

OPEN = {"login", "healthz", "verify_page", "verify_pyz", "log_page", "log_checkpoint", "log_checkpoints", "log_keys"}
BY_TOKEN = {"public_card", "public_card_download"}
"""Open to whoever has an address that cannot be guessed; 404 to everybody else, and never the sign-in page."""
METHODS = ["get", "post", "put", "patch", "delete"]


def routes(resolver: URLResolver, prefix: str = "", converters: dict[str, Any] | None = None) -> Iterator[Any]:
    """(name, route, converters) of every address; the worker API brings its own tokens and is tested with them."""
    for pattern in resolver.url_patterns:
        route = prefix + str(pattern.pattern)
        if route.startswith("api/worker/"):
            continue
        found = {**(converters or {}), **pattern.pattern.converters}
        if isinstance(pattern, URLPattern):
            yield pattern.name, route, found
        else:
            yield from routes(pattern, route, found)


ALL = [route for route in routes(get_resolver()) if route[0] not in OPEN | BY_TOKEN]
OF_A_PROJECT = [route for route in ALL if route[1].startswith("p/<slug:slug>/")]


@pytest.fixture
def run(
    ours: Project, alice: User, base_model: BaseModel, dataset: PromptDataset, verifier_version: VerifierVersion
) -> Run:
    config = RunConfig.model_validate(
        {
            "model": {"path": base_model.path},
            "data": {"path": "inputs/x.jsonl"},
            "reward": verifier_version.spec,
            "eval": {"before": False, "after": False},
        }
    )
    return Run.objects.create(
        project=ours,
        name="secret run",
        config=config.to_dict(),
        config_digest=config.digest(),
        base_model=base_model,
        dataset=dataset,
        verifier_version=verifier_version,
        created_by=alice,
    )


def address(name: str, converters: dict[str, Any], run: Run) -> str:
    """An address of something that exists in `ours`, where we know of it."""
    ids = {
        "run_id": run.pk,
        "membership_id": Membership.objects.get(project=run.project).pk,
        "pk": {
            "base_model": run.base_model_id,
            "dataset": run.dataset_id,
            "verifier": run.verifier_version.verifier_id,
            "suite": add_suite(run.project, run.created_by).suite_id,
        }.get(name.removesuffix("_detail").split("_new")[0].split("_version")[0].split("_try")[0], run.pk),
    }
    kwargs: dict[str, Any] = {}
    for key, converter in converters.items():
        if key == "slug" and isinstance(converter, SlugConverter):
            kwargs[key] = run.project.slug
        else:
            kwargs[key] = ids.get(key, 1 if isinstance(converter, IntConverter) else "x")
    return reverse(name, kwargs=kwargs)


def test_the_walk_finds_the_pages() -> None:
    names = {name for name, _, _ in ALL}
    assert {"home", "project_new", "member_remove", "dataset_detail", "verifier_try", "node_list", "run_list"} <= names
    assert len(OF_A_PROJECT) >= 20
    assert None not in names, "every address has a name"


@pytest.mark.parametrize(("name", "route", "converters"), ALL, ids=[name for name, _, _ in ALL])
def test_nothing_opens_without_signing_in(name: str, route: str, converters: dict[str, Any], run: Run) -> None:
    target = address(name, converters, run)
    for method in METHODS:
        response = getattr(Client(), method)(target)
        assert response.status_code == 302, f"{method} {target}"
        assert response.url.startswith("/login/?next="), f"{method} {target}"


def test_addresses_by_token_are_404_without_one_and_never_the_sign_in_page(run: Run) -> None:
    found = {name: route for name, route, _ in routes(get_resolver()) if name in BY_TOKEN}
    assert found.keys() == BY_TOKEN
    for name in BY_TOKEN:
        codes = {method: getattr(Client(), method)(reverse(name, args=["A" * 43])).status_code for method in METHODS}
        assert codes == {"get": 404, "post": 405, "put": 405, "patch": 405, "delete": 405}, name


@pytest.mark.parametrize(("name", "route", "converters"), OF_A_PROJECT, ids=[name for name, _, _ in OF_A_PROJECT])
def test_a_stranger_gets_404(
    client_for: ClientFor, charlie: User, name: str, route: str, converters: dict[str, Any], run: Run
) -> None:
    target = address(name, converters, run)
    client = client_for(charlie)
    answers = {method: getattr(client, method)(target) for method in METHODS}
    codes = {method: response.status_code for method, response in answers.items()}
    assert set(codes.values()) <= {404, 405}, f"{target}: {codes}"
    assert 404 in codes.values(), f"{target}: {codes}"
    for response in answers.values():
        assert b"secret run" not in response.content
        assert b"Our project" not in response.content


@pytest.mark.parametrize(("name", "route", "converters"), OF_A_PROJECT, ids=[name for name, _, _ in OF_A_PROJECT])
def test_what_lies_in_another_project_is_not_reached_through_ones_own(
    client_for: ClientFor, charlie: User, name: str, route: str, converters: dict[str, Any], run: Run
) -> None:
    if set(converters) == {"slug"}:
        target = reverse(name, kwargs={"slug": "theirs"})
        response = client_for(charlie).get(target)
        content = b"".join(response) if response.streaming else response.content
        assert b"secret run" not in content
        assert b"Our project" not in content
        return
    target = address(name, converters, run).replace("/p/ours/", "/p/theirs/")
    for method in METHODS:
        response = getattr(client_for(charlie), method)(target)
        assert response.status_code in {404, 405}, f"{method} {target}"


WITH_IDS = [route for route in OF_A_PROJECT if set(route[2]) != {"slug"}]
HUGE = "9" * 30
ASKED = [
    ("before", "after", "step", "from", "sample", "version"),
    ("clone",),
    ("record", "format", "signed", "verdict"),
    ("variant", "preset", "tab", "show", "state", "q", "v"),
]


@pytest.mark.parametrize(("name", "route", "converters"), WITH_IDS, ids=[name for name, _, _ in WITH_IDS])
def test_an_id_beyond_any_column_is_404(
    client_for: ClientFor, alice: User, name: str, route: str, converters: dict[str, Any], run: Run
) -> None:
    numbers = [key for key in converters if key != "slug"]
    for changed in numbers:
        target = reverse(name, kwargs={"slug": "ours", **{key: HUGE if key == changed else run.pk for key in numbers}})
        codes = {getattr(client_for(alice), method)(target).status_code for method in ("get", "post")}
        assert codes <= {404, 405}, target
        assert 404 in codes, target


@pytest.mark.parametrize(("name", "route", "converters"), OF_A_PROJECT, ids=[name for name, _, _ in OF_A_PROJECT])
def test_no_query_string_is_an_error_of_ours(
    client_for: ClientFor, alice: User, name: str, route: str, converters: dict[str, Any], run: Run
) -> None:
    client, target = client_for(alice), address(name, converters, run)
    for asked in ASKED:
        for value in (HUGE, "9" * 18, "-1", "٣", "\x00"):
            code = client.get(target, dict.fromkeys(asked, value)).status_code
            assert code < 500, f"{target} with {asked} as {value!r}"


def test_a_member_does_get_in(client_for: ClientFor, bob: User, run: Run) -> None:
    """So that the 404s above mean something."""
    for name in ("dataset_list", "base_model_list", "verifier_list", "member_list", "node_list"):
        assert client_for(bob).get(reverse(name, kwargs={"slug": "ours"})).status_code == 200
