"""Settings that do nothing under the other choices: out of the way, never lost, never silent when they are at fault."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.runs.models import Run
from tests.web.form_page import as_browser, error, said, value

ClientFor = Callable[[User], Client]
NEW = "/p/ours/runs/new/"


def state(page: str, field: str) -> str:
    found = re.search(rf'<div class="said ?(\w*)" id="said-{field}"', page)
    assert found is not None, field
    return found[1]


def away(page: str, group: str) -> str:
    found = re.search(rf'id="away-{group}"[^>]*>([^<]*)</p>', page)
    assert found is not None, group
    return found[1]


def test_what_nothing_uses_is_out_of_the_way(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    client = client_for(oscar)
    page = client.get(NEW).content.decode()
    assert state(page, "f-algorithm-sapo-tau-positive") == "idle"
    assert state(page, "f-algorithm-loss") == ""
    assert "settings that need policy loss cispo · policy loss sapo · policy loss vespo · policy loss dppo." in away(
        page, "loss"
    )
    assert away(page, "critic") == "Nothing here is used now; it needs normalization by a critic (PPO)."
    assert away(page, "sampling") == ""
    assert "not used, needs normalization by a critic (PPO)" in re.search(r'id="sum-critic"[^>]*>([^<]*)', page)[1]  # type: ignore[index]

    data = chosen | {"algorithm.loss": "sapo", "variant": "gae/batch_std/0", "action": "check"}
    page = client.post(NEW, data, headers={"HX-Request": "true"}).content.decode()
    assert state(page, "f-algorithm-sapo-tau-positive") == "", "the check brings it back, beside its input"
    assert state(page, "f-algorithm-critic-lr") == ""
    assert away(page, "critic") == ""
    assert "lr 0.000001" in page or "lr 1e-06" in page
    assert state(page, "f-algorithm-clip-low") == "unused", "the first screen shows it, and says so"
    assert "Not used now; needs policy loss clip, gspo" in said(page, "f-algorithm-clip-low")


def test_the_engines_settings_come_with_the_engine(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    client = client_for(oscar)
    page = client.get(NEW).content.decode()
    assert state(page, "f-engine-vllm-place") == state(page, "f-engine-deepspeed-zero-stage") == "idle"
    assert "settings that need sampler vllm · trainer deepspeed." in away(page, "engine")
    assert "device auto · sampler local · trainer single" in page

    data = chosen | {"engine.rollout": "vllm", "engine.training": "deepspeed", "action": "check"}
    page = client.post(NEW, data, headers={"HX-Request": "true"}).content.decode()
    assert state(page, "f-engine-vllm-place") == state(page, "f-engine-deepspeed-zero-stage") == ""
    assert state(page, "f-engine-vllm-devices") == "idle", "until it is a server"
    assert state(page, "f-engine-rollout-tokens") == "idle", "of the local sampler"
    assert "sampler vllm · trainer deepspeed · vLLM colocated · ZeRO 2" in page


def test_a_hidden_setting_is_not_lost(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    """Typed for SAPO, kept while the loss is another, there again with SAPO."""
    client = client_for(oscar)
    data = chosen | {"algorithm.loss": "sapo", "algorithm.sapo.tau_negative": "1.2", "action": "check"}
    page = client.post(NEW, data).content.decode()
    page = client.post(NEW, as_browser(page) | {"algorithm.loss": "clip", "action": "check"}).content.decode()
    assert state(page, "f-algorithm-sapo-tau-negative") == "unused", "what a person gave is not hidden"
    assert state(page, "f-algorithm-sapo-tau-positive") == "idle"
    assert value(page, "algorithm.sapo.tau_negative") == "1.2"
    client.post(NEW, as_browser(page) | {"action": "draft"})
    assert Run.objects.get().config["algorithm"]["sapo"]["tau_negative"] == 1.2


def test_a_fault_is_never_hidden(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    data = chosen | {"algorithm.local_batch": "8", "algorithm.sapo.tau_positive": "-1", "action": "launch"}
    page = client_for(oscar).post(NEW, data).content.decode()
    assert state(page, "f-algorithm-sapo-tau-positive") == "unused"
    assert "must be more than 0" in error(page, "f-algorithm-sapo-tau-positive")


@pytest.mark.parametrize(
    ("data", "beside", "words"),
    [
        ({"algorithm.loss": "gspo"}, "f-algorithm-aggregation", "it needs aggregation: sequence_mean, not token_mean"),
        ({"variant": "pass_at_k/group_std/0"}, "f-algorithm-pass-k", "needs pass_k"),
        (
            {"variant": "gae/none/0", "algorithm.dynamic_sampling.enabled": "true"},
            "f-algorithm-dynamic-sampling-enabled",
            "which advantage gae learns from",
        ),
        ({"variant": "group/batch_std/0", "algorithm.supervision": "process"}, "f-algorithm-supervision", "needs"),
        ({"sampling.top_p": "0.9"}, "f-sampling-top-p", "draws from fewer tokens"),
        ({"algorithm.mini_batches": "64"}, "f-algorithm-mini-batches", "is more than the 32 groups"),
        ({"algorithm.kl.place": "reward"}, "f-algorithm-kl-place", "takes nothing off the reward"),
        ({"algorithm.local_batch": "8"}, "f-algorithm-local-batch", "has a meaning only with aggregation"),
        (
            {"engine.rollout": "vllm", "engine.vllm.devices": "2"},
            "f-engine-vllm-devices",
            "has a meaning only with engine.vllm.place: server",
        ),
        (
            {"engine.training": "deepspeed", "variant": "gae/batch_std/0"},
            "f-engine-training",
            "advantage gae has a critic beside the policy",
        ),
        (
            {"engine.training": "deepspeed", "engine.deepspeed.offload": "all"},
            "f-engine-deepspeed-offload",
            "ZeRO 2 does not divide them",
        ),
        (
            {"engine.training": "deepspeed", "engine.torch_compile": "on"},
            "f-engine-torch-compile",
            "fuses what a layer does",
        ),
    ],
)
def test_choices_that_do_not_go_together_are_refused_where_they_are_mended(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], data: dict[str, str], beside: str, words: str
) -> None:
    page = client_for(oscar).post(NEW, chosen | data | {"action": "launch"}).content.decode()
    assert words in error(page, beside)
    assert Run.objects.count() == 0
