"""What a person types into the run form is kept: saved by every check, offered again, gone once launched; and a form
that is sent twice makes one run."""

import json
import subprocess
from pathlib import Path

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.launch.drafts import KEPT, MAX_CHARS
from cohort.runs.models import LaunchDraft, Run
from grpo_core.config.run import RunConfig
from tests.web.conftest import ClientFor
from tests.web.form_page import as_browser, value
from tests.web.pages import html

NEW = "/p/ours/runs/new/"
HTMX = {"HX-Request": "true"}
JSON = {"Accept": "application/json"}


def opened(client: Client, query: str = "") -> dict[str, str]:
    return as_browser(html(client.get(NEW + query)))


def check(client: Client, sent: dict[str, str]) -> str:
    return html(client.post(NEW, sent | {"action": "check"}, headers=HTMX))


# ---------------------------------------------------------------- drafts


def test_a_check_saves_what_was_typed_faulty_too(operator: Client, chosen: dict[str, str], oscar: User) -> None:
    sent = opened(operator) | chosen | {"name": "long thought", "sampling.group_size": "eight"}
    assert "Draft saved" in check(operator, sent)
    draft = LaunchDraft.objects.get()
    assert (draft.user, draft.form_token) == (oscar, sent["form_token"])
    page = html(operator.get(NEW, {"draft": draft.form_token}))
    assert (value(page, "name"), value(page, "sampling.group_size")) == ("long thought", "eight")
    again = as_browser(page)
    assert (again["form_token"], again["window"] == sent["window"]) == (sent["form_token"], False)


def test_a_new_form_offers_drafts_and_leaves_them(operator: Client, chosen: dict[str, str]) -> None:
    first = opened(operator) | chosen | {"name": "the first"}
    check(operator, first)
    for query in ("", "?preset=dapo"):
        page = html(operator.get(NEW + query))
        assert f'href="/p/ours/runs/new/?draft={first["form_token"]}"' in page
        assert value(page, "name") != "the first"
    check(operator, opened(operator) | {"name": "the second"})
    assert sorted(map(str, LaunchDraft.objects.all())) == ["the first", "the second"]
    operator.post(NEW, {"action": "discard", "discarded": first["form_token"]})
    assert [str(draft) for draft in LaunchDraft.objects.all()] == ["the second"]


def test_a_draft_is_its_persons_alone(
    operator: Client, admin: Client, client_for: ClientFor, chosen: dict[str, str]
) -> None:
    sent = opened(operator) | chosen
    check(operator, sent)
    assert admin.get(NEW, {"draft": sent["form_token"]}).status_code == 404
    admin.post(NEW, {"action": "discard", "discarded": sent["form_token"]})
    assert LaunchDraft.objects.count() == 1
    assert 'id="drafts"' not in html(admin.get(NEW))


def test_the_later_window_wins_and_the_earlier_is_told(operator: Client, chosen: dict[str, str]) -> None:
    first = opened(operator) | chosen
    check(operator, first)
    second = opened(operator, f"?draft={first['form_token']}") | {"name": "of the second"}
    assert "Another window" not in check(operator, second)
    assert LaunchDraft.objects.get().texts["name"] == "of the second"
    answer = check(operator, first | {"name": "of the first"})
    assert "Another window" in answer
    assert LaunchDraft.objects.get().texts["name"] == "of the first"
    assert "Another window" not in check(operator, first), "said once"


def test_a_launch_takes_its_draft_along_and_a_late_check_does_not_bring_it_back(
    operator: Client, chosen: dict[str, str]
) -> None:
    sent = opened(operator) | chosen
    check(operator, sent)
    assert operator.post(NEW, sent | {"action": "launch"}).status_code == 302
    assert not LaunchDraft.objects.exists()
    assert "Draft saved" not in check(operator, sent)
    assert not LaunchDraft.objects.exists()
    check(operator, sent | {"seed": "7"})
    assert LaunchDraft.objects.exists(), "Back, and another setting"


def test_a_preset_is_saved_with_what_it_fills_in(operator: Client, chosen: dict[str, str]) -> None:
    operator.post(NEW, opened(operator) | chosen | {"preset": "dapo", "action": "preset"}, headers=HTMX)
    texts = LaunchDraft.objects.get().texts
    assert (texts["preset"], texts["algorithm.clip_high"]) == ("dapo", "0.28")


def test_drafts_are_bounded(operator: Client, chosen: dict[str, str]) -> None:
    sent = opened(operator) | chosen
    for number in range(KEPT + 2):
        check(operator, sent | {"form_token": f"{number:016x}", "name": f"draft {number}"})
    names = set(map(str, LaunchDraft.objects.all()))
    assert names == {f"draft {number}" for number in range(2, KEPT + 2)}
    page = check(operator, sent | {"form_token": f"{99:016x}", "data.template": "{prompt}" * (MAX_CHARS // 8)})
    assert "Not saved as a draft" in page
    assert set(map(str, LaunchDraft.objects.all())) == names


def test_a_hostile_draft_is_kept_and_shown_as_text(operator: Client, chosen: dict[str, str]) -> None:
    sent = opened(operator) | chosen | {"name": "<script>alert(1)</script>\0"}
    check(operator, sent)
    for query in ("", f"?draft={sent['form_token']}"):
        page = html(operator.get(NEW + query))
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page
    assert operator.get(NEW, {"draft": "\0"}).status_code == 404
    assert "form_token is none" in check(operator, sent | {"form_token": "../x"})


# ---------------------------------------------------------------- one form, one run


def test_the_same_form_sent_twice_makes_one_run(operator: Client, chosen: dict[str, str]) -> None:
    sent = opened(operator) | chosen
    first, second = (operator.post(NEW, sent | {"action": "launch"}) for _ in range(2))
    run = Run.objects.get()
    assert first["Location"] == second["Location"] == f"/p/ours/runs/{run.pk}/"
    assert run.state == "queued"
    operator.post(NEW, sent | {"action": "launch", "seed": "3"})
    operator.post(NEW, opened(operator) | chosen | {"action": "launch"})
    assert Run.objects.count() == 3, "another setting, and the same ones in a form opened anew"


def test_a_form_that_was_saved_is_launched_as_that_draft(operator: Client, chosen: dict[str, str]) -> None:
    sent = opened(operator) | chosen
    operator.post(NEW, sent | {"action": "draft"})
    operator.post(NEW, sent | {"action": "launch"})
    assert Run.objects.get().state == "queued"


# ---------------------------------------------------------------- copies


def test_the_config_is_copied_as_yaml_and_as_a_script(operator: Client, chosen: dict[str, str], tmp_path: Path) -> None:
    sent = opened(operator) | chosen | {"name": "it's mine"}
    answers = {what: operator.post(NEW, sent | {"action": what}, headers=JSON) for what in ("yaml", "command")}
    texts = {what: json.loads(answer.content)["text"] for what, answer in answers.items()}
    config = RunConfig.from_text(texts["yaml"], source="the copy")
    script = tmp_path / "train.sh"
    script.write_text(texts["command"].replace("\ngrpo ", "\necho grpo "))
    said = subprocess.run(["sh", script], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said == "grpo train config.yaml --out runs/it-s-mine\n"
    assert RunConfig.from_text((tmp_path / "config.yaml").read_text(), source="the script") == config
    assert config.data.path in texts["command"].split("cat >")[0]
    for what, name in (("yaml", "it-s-mine.yaml"), ("command", "it-s-mine.sh")):
        answer = operator.post(NEW, sent | {"action": what})
        assert (answer.content.decode(), name in answer["Content-Disposition"]) == (texts[what], True)


@pytest.mark.parametrize("what", ["yaml", "command"])
def test_a_faulty_form_is_not_copied_and_names_its_fields(operator: Client, chosen: dict[str, str], what: str) -> None:
    sent = chosen | {"sampling.group_size": "1", "optim.lr": "0", "action": what}
    answer = operator.post(NEW, sent, headers=JSON)
    faults = json.loads(answer.content)["faults"]
    assert (answer.status_code, len(faults)) == (422, 2)
    assert {fault.split(":")[0] for fault in faults} == {"Group size G", "Learning rate"}
    assert operator.post(NEW, sent).status_code == 422
