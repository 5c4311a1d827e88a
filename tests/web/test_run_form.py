"""The run form: who may use it, what it makes, where it says what is wrong, and that nothing is lost on any way in."""

import re
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.accounts.models import Project, User
from cohort.catalog.models import PromptDataset
from cohort.catalog.services import base_model_register
from cohort.runs.models import Node, Run
from grpo_core.config import RunConfig
from tests.web.form_page import error, said, value
from tests.web.run_rows import HOSTILE, HOSTILE_SHOWN, Maker

ClientFor = Callable[[User], Client]
NEW = "/p/ours/runs/new/"


# ---------------------------------------------------------------- launch and draft


def test_launch_makes_the_run_that_the_form_says(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    data = chosen | {
        "preset": "dapo",
        "variant": "group/none/0",
        "sampling.group_size": "4",
        "algorithm.kl.coef": "0.04",
        "algorithm.clip_low": "0.1",
        "algorithm.clip_high": "0.3",
        "optim.steps": "12",
        "optim.lr": "3e-4",
        "checkpoints.final": "false",
        "action": "launch",
    }
    response = client_for(oscar).post(NEW, data)
    run = Run.objects.get()
    assert response.status_code == 302
    assert response.url == f"/p/ours/runs/{run.pk}/"
    assert (run.state, run.name, run.preset, run.created_by) == ("queued", "adder", "dapo", oscar)
    config = RunConfig.from_dict(run.config)
    assert (config.algorithm.scale, config.algorithm.std_ddof) == ("none", 0)
    assert (config.sampling.group_size, config.algorithm.kl.coef) == (4, 0.04)
    assert (config.algorithm.clip_low, config.algorithm.clip_high) == (0.1, 0.3)
    assert (config.optim.steps, config.optim.lr, config.eval.holdout) == (12, 3e-4, 4)
    assert config.checkpoints.final is False
    assert config.data.path == f"inputs/{run.dataset.sha256}.jsonl"


def test_a_draft_waits(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    page = client_for(oscar).post(NEW, chosen | {"action": "draft"}, follow=True).content.decode()
    assert Run.objects.get().state == "draft"
    assert "saved as a draft" in page


def test_a_held_out_dataset_is_used(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], heldout: PromptDataset
) -> None:
    client_for(oscar).post(NEW, chosen | {"eval_dataset": str(heldout.pk), "action": "draft"})
    run = Run.objects.get()
    assert run.eval_dataset == heldout
    assert run.config["eval"]["path"] == f"inputs/{heldout.sha256}.jsonl"


def test_the_training_dataset_is_no_held_out_dataset(
    client_for: ClientFor, oscar: User, chosen: dict[str, str]
) -> None:
    data = chosen | {"eval_dataset": chosen["dataset"], "action": "launch"}
    response = client_for(oscar).post(NEW, data)
    assert response.status_code == 422
    assert "is the same file as the dataset to train on" in error(response.content.decode(), "f-eval-dataset")
    assert Run.objects.count() == 0


@pytest.mark.parametrize(
    ("variant", "advantage", "scale", "ddof"),
    [
        ("group/group_std/0", "group", "group_std", 0),
        ("group/group_std/1", "group", "group_std", 1),
        ("group/batch_std/0", "group", "batch_std", 0),
        ("group/none/0", "group", "none", 0),
        ("rloo/none/0", "rloo", "none", 0),
        ("maxrl/none/0", "maxrl", "none", 0),
        ("reinforce_pp/batch_std/0", "reinforce_pp", "batch_std", 0),
        ("gae/batch_std/0", "gae", "batch_std", 0),
    ],
)
def test_each_variant(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], variant: str, advantage: str, scale: str, ddof: int
) -> None:
    client_for(oscar).post(NEW, chosen | {"variant": variant, "action": "draft"})
    algorithm = Run.objects.get().config["algorithm"]
    assert (algorithm["advantage"], algorithm["scale"], algorithm["std_ddof"]) == (advantage, scale, ddof)


def test_the_page_says_which_standard_deviation_is_used(
    client_for: ClientFor, oscar: User, chosen: dict[str, str]
) -> None:
    client = client_for(oscar)
    for variant, words in (
        ("group/group_std/0", "divided by the group&#x27;s population standard deviation (divide by n)"),
        ("group/group_std/1", "divided by the group&#x27;s sample standard deviation (divide by n−1)"),
        ("group/batch_std/0", "divided by the whole step&#x27;s population standard deviation (divide by n)"),
        ("group/none/0", "Dr. GRPO drops the division"),
    ):
        page = client.post(NEW, chosen | {"variant": variant, "action": "check"}).content.decode()
        assert words in said(page, "f-variant")


# ---------------------------------------------------------------- errors beside their fields


@pytest.mark.parametrize(
    ("field", "text", "beside", "words"),
    [
        ("sampling.group_size", "1", "f-sampling-group-size", "A group of 1 has no other completion"),
        ("sampling.group_size", "eight", "f-sampling-group-size", "G must be a whole number; given eight."),
        ("sampling.group_size", "", "f-sampling-group-size", "G must not be empty."),
        ("sampling.group_size", "8.5", "f-sampling-group-size", "G must be a whole number; given 8.5."),
        ("algorithm.kl.coef", "-0.1", "f-algorithm-kl-coef", "β must be 0 or more; given −0.1."),
        ("algorithm.kl.coef", "−0.1", "f-algorithm-kl-coef", "β must be 0 or more; given −0.1."),
        ("algorithm.kl.coef", "nan", "f-algorithm-kl-coef", "β must be a finite number"),
        ("algorithm.clip_low", "2", "f-algorithm-clip-low", "ε low must be at most 1; given 2"),
        ("optim.lr", "0", "f-optim-lr", "Learning rate must be more than 0; given 0"),
        ("data.template", "no place", "f-data-template", "must hold {prompt}"),
        ("algorithm.aggregation", "median", "f-algorithm-aggregation", "is not one of"),
        ("algorithm.aggregation", "constant", "f-algorithm-aggregation-constant", "needs aggregation_constant"),
        ("eval.success_component", "beauty", "f-eval-success-component", "is not a reward component"),
        ("eval.holdout", "20", "f-eval-holdout", "additions has 20 problems; hold out fewer"),
        ("data.limit", "4", "f-eval-holdout", "additions has 20 problems, of which 4 are used; hold"),
        ("optim.steps", "3000000000", "f-optim-steps", "Steps must be at most 10,000,000; given 3000000000."),
        ("optim.steps", "9" * 400, "f-optim-steps", "Steps must be at most 10,000,000; given 9999"),
        (
            "sampling.prompts_per_step",
            "9" * 5000,
            "f-sampling-prompts-per-step",
            "Prompts per step must be a whole number; given",
        ),
        ("traces.groups_per_step", "9" * 400, "f-traces-groups-per-step", "must be at most 10,000,000"),
        ("name", "a\0b", "f-name", "Name holds the character U+0000, which cannot be stored"),
        ("data.template", "\0{prompt}", "f-data-template", "holds the character U+0000, which cannot be stored"),
        ("variant", "group_mad/0", "f-variant", "Normalization must be one of: z-score in the group, population std"),
        ("preset", "dapoo", "f-preset", "'dapoo' is not a preset; did you mean dapo? There are deepseekmath"),
        ("base_model", "", "f-base-model", "Choose a base model."),
        ("base_model", "999999", "f-base-model", "Base model 999999 is not in this project."),
        ("dataset", "x", "f-dataset", "Dataset x is not in this project."),
        ("verifier_version", "", "f-verifier-version", "Choose what completions are scored by."),
        ("eval_dataset", "999999", "f-eval-dataset", "Held-out dataset 999999 is not in this project."),
        ("name", "", "f-name", "Name must not be empty."),
        ("name", "x" * 121, "f-name", "Name must have at most 120 characters"),
    ],
)
def test_a_fault_is_said_beside_its_field_and_the_text_is_kept(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], field: str, text: str, beside: str, words: str
) -> None:
    response = client_for(oscar).post(NEW, chosen | {field: text, "action": "launch"})
    page = response.content.decode()
    assert response.status_code == 422
    assert Run.objects.count() == 0
    assert words in error(page, beside).replace("&#x27;", "'")
    assert 'aria-invalid="true"' in re.search(rf'id="{beside}"[^>]*>', page)[0]  # type: ignore[index]
    if (
        f'<input id="{beside}"' in page
        and "\0" not in text
        and beside == "f-" + field.replace(".", "-").replace("_", "-")
    ):
        assert value(page, field) == text
    assert page.count('class="error-text"') == 1, "and nowhere else"


def test_all_faults_show_at_once(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    data = chosen | {"sampling.group_size": "1", "algorithm.kl.coef": "-1", "dataset": "", "action": "launch"}
    page = client_for(oscar).post(NEW, data).content.decode()
    assert error(page, "f-sampling-group-size")
    assert error(page, "f-algorithm-kl-coef")
    assert error(page, "f-dataset") == "✕ Choose a dataset to train on."
    assert "3 settings are not valid" in page


def test_nothing_to_evaluate_on_is_said_where_it_is_mended(
    client_for: ClientFor, oscar: User, chosen: dict[str, str]
) -> None:
    page = client_for(oscar).post(NEW, chosen | {"eval.holdout": "0", "action": "launch"}).content.decode()
    assert "Nothing to evaluate on" in error(page, "f-eval-holdout")


def test_a_fault_opens_its_folded_group(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    page = client_for(oscar).post(NEW, chosen | {"optim.lr": "0", "action": "launch"}).content.decode()
    folds = re.findall(r'<details class="fold"( open)?>\s*<summary>([^<]+)', page)
    assert [title for is_open, title in folds if is_open] == ["Optimiser"]
    assert "✕ 1 not valid" in page


@pytest.mark.parametrize("name", ["sampling.gruop_size", "algorithm.scale", "reward", "model.path", "eval.path"])
def test_an_unknown_field_is_refused_by_name(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], name: str
) -> None:
    """Parts of a config that the form decides otherwise too: nothing that was sent is dropped without a word."""
    response = client_for(oscar).post(NEW, chosen | {name: "8", "action": "launch"})
    assert response.status_code == 422
    assert f"{name} is not a field of the run form" in response.content.decode()
    assert Run.objects.count() == 0


def test_an_unknown_action_does_nothing(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    response = client_for(oscar).post(NEW, chosen | {"action": "delete"})
    assert response.status_code == 422
    assert Run.objects.count() == 0


def test_rows_of_another_project_cannot_be_used(
    client_for: ClientFor, oscar: User, charlie: User, chosen: dict[str, str], tiny_model_folder: str
) -> None:
    theirs = Project.objects.get(slug="theirs")
    foreign = base_model_register(project=theirs, actor=charlie, name="secret model", path=tiny_model_folder)
    page = client_for(oscar).post(NEW, chosen | {"base_model": str(foreign.pk), "action": "launch"}).content.decode()
    assert "is not in this project" in error(page, "f-base-model")
    assert "secret model" not in page
    assert Run.objects.count() == 0


def test_hostile_texts_come_back_escaped(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    data = chosen | {"name": HOSTILE, "sampling.group_size": HOSTILE, "preset": HOSTILE, "x.y": HOSTILE, HOSTILE: "1"}
    page = client_for(oscar).post(NEW, data | {"action": "launch"}).content.decode()
    assert HOSTILE_SHOWN in page
    assert "<script>alert" not in page
    assert "<b hx-get" not in page


# ---------------------------------------------------------------- the running summary


def test_what_this_will_do(client_for: ClientFor, oscar: User, maker: Maker, chosen: dict[str, str]) -> None:
    """3 steps × 2 prompts × G 4 = 24 completions of at most 64 tokens; 6 draws from 20 − 4 problems."""
    data = chosen | {
        "optim.steps": "3",
        "sampling.prompts_per_step": "2",
        "sampling.group_size": "4",
        "sampling.max_completion_tokens": "64",
        "action": "check",
    }
    client = client_for(oscar)
    page = client.post(NEW, data, headers={"HX-Request": "true"}).content.decode()
    side = " ".join(re.sub(r"<[^>]+>", " ", page[: page.index('id="said-')]).split())
    assert "Steps 3 Completions 24 Tokens, at most 1,536 Models in memory policy Training problems seen 0.38" in side
    assert "Evaluation 4 problems, before and after Suites none chosen Time no past run of this model to go by" in side
    assert "✓ done: every setting is valid" in side
    assert "no worker was seen in the last 60 s: the run will wait for one" in side

    past = maker.run("past", state="succeeded", sampling={"group_size": 8, "prompts_per_step": 4})
    Run.objects.filter(pk=past.pk).update(seconds_per_step=64.0)
    maker.attempt(past)
    page = client.post(NEW, data, headers={"HX-Request": "true"}).content.decode()
    assert "about 48\u00a0s" in page, "64 s for 32 completions is 2 s each, for 24"
    assert "from 1 past run of this model" in re.sub(r"\s+", " ", page)
    assert "a worker is there: node-a" in page
    Node.objects.update(draining="finish")
    page = client.post(NEW, data, headers={"HX-Request": "true"}).content.decode()
    assert "node-a is draining and takes no new run: the run will wait" in page


def test_what_more_the_algorithm_asks_for(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    """μ 2 × 3 mini-batches × 10 steps = 60 updates; 4 batches of 64 completions for each of 10 steps at most."""
    data = chosen | {
        "optim.steps": "10",
        "sampling.prompts_per_step": "16",
        "sampling.group_size": "4",
        "sampling.max_completion_tokens": "10",
        "algorithm.inner_iterations": "2",
        "algorithm.mini_batches": "3",
        "algorithm.dynamic_sampling.enabled": "true",
        "algorithm.dynamic_sampling.max_batches": "4",
        "algorithm.kl.coef": "0.1",
        "action": "check",
    }
    client = client_for(oscar)

    def side(more: dict[str, str]) -> str:
        page = client.post(NEW, data | more, headers={"HX-Request": "true"}).content.decode()
        return " ".join(re.sub(r"<[^>]+>", " ", page[: page.index('id="said-')]).split())

    text = side({})
    assert "Steps 10 · 60 updates Completions 640 to 2,560 with dynamic sampling Tokens, at most 25,600" in text
    assert "times or more" in text
    assert "Models in memory policy + reference Training" in text
    critic = {"variant": "gae/batch_std/0", "algorithm.dynamic_sampling.enabled": "false"}
    assert "Models in memory policy + critic + reference Training" in side(critic)
    assert "Models in memory policy, adapters trained Training" in side({"model.lora.rank": "8"})
    assert "Models in memory policy Training" in side({"algorithm.kl.target": "old"})


def test_a_check_says_everything_beneath_every_field(
    client_for: ClientFor, oscar: User, chosen: dict[str, str]
) -> None:
    client = client_for(oscar)
    data = chosen | {"algorithm.kl.coef": "-0.1", "action": "check"}
    response = client.post(NEW, data, headers={"HX-Request": "true"})
    page = response.content.decode()
    assert response.status_code == 200, "htmx swaps nothing else"
    whole = client.get(NEW).content.decode()
    for name in re.findall(r'id="(said-f-[^"]+|sum-[^"]+|away-[^"]+)"', whole):
        assert f'id="{name}" hx-swap-oob="true"' in page, name
    assert "β must be 0 or more" in error(page, "f-algorithm-kl-coef")
    assert "Completions</dt><dd>25,600" in page, "one wrong field does not hide the other numbers"
    assert "1 setting is not valid" in page
    assert Run.objects.count() == 0


def test_a_check_without_htmx_is_a_page(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    page = client_for(oscar).post(NEW, chosen | {"algorithm.kl.coef": "-0.1", "action": "check"}).content.decode()
    assert page.startswith("<!doctype")
    assert error(page, "f-algorithm-kl-coef")


def test_it_costs_the_same_however_large_the_catalog(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    client = client_for(oscar)
    with CaptureQueriesContext(connection) as few:
        client.get(NEW)
    for number in range(12):
        maker.run(f"run {number}")
        base_model_register(project=maker.project, actor=maker.actor, name=f"m{number}", path=maker.base_model.path)
    with CaptureQueriesContext(connection) as many:
        client.get(NEW)
    assert len(many) == len(few) <= 18


# ---------------------------------------------------------------- who


@pytest.mark.parametrize("who", ["bob", "rita"])
def test_viewers_and_reviewers_may_not(
    request: pytest.FixtureRequest, client_for: ClientFor, chosen: dict[str, str], who: str
) -> None:
    client = client_for(request.getfixturevalue(who))
    assert client.get(NEW).status_code == 403
    for action in ("launch", "draft", "check", "preset", "starters", "yaml", "import", "estimate"):
        assert client.post(NEW, chosen | {"action": action}).status_code == 403
    assert Run.objects.count() == 0


def test_a_stranger_gets_404(client_for: ClientFor, charlie: User, chosen: dict[str, str]) -> None:
    client = client_for(charlie)
    assert client.get(NEW).status_code == 404
    assert client.post(NEW, chosen | {"action": "launch"}).status_code == 404
    assert Run.objects.count() == 0


def test_only_by_get_and_post(client_for: ClientFor, oscar: User, ours: Project) -> None:
    assert client_for(oscar).put(NEW).status_code == 405
    assert client_for(oscar).delete(NEW).status_code == 405
