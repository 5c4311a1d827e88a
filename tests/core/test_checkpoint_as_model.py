"""A run that begins from a checkpoint of another: the very weights, whole or adapters, over several runs, and what is
refused where the model below is missing or another one."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_core.cli.main import main
from grpo_core.config.run import ModelConfig
from grpo_core.data.fingerprint import file_sha256
from grpo_core.errors import CheckpointError, ModelError
from grpo_core.files.checkpoint import MANIFEST
from grpo_core.model.load import find_model, load_model, load_source_tokenizer
from grpo_core.model.lora import adapters_off, load_policy
from grpo_core.rewards.base import Context
from grpo_core.rewards.models.scoring_model import ModelParams, ScoringModel

from .runs import PLAIN, make_home, merged, rows
from .tiny import config, load, tiny_folder

torch.set_num_threads(1)
CPU = torch.device("cpu")
LORA = {"rank": 2, "alpha": 6.0, "targets": "attention"}
TEMPLATE = "{% for message in messages %}<{{ message.content }}>{% endfor %}"


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path)


def train(home, name, **model):
    """A run of two steps; returns the folder of the checkpoint after the second."""
    parts = {"model": model, "optim": {"steps": 2}, "checkpoints": {"every": 1, "keep": 9}}
    given = config(**merged(PLAIN, parts))
    (home / f"{name}.json").write_text(json.dumps(given.to_dict()))
    assert main(["train", str(home / f"{name}.json"), "--out", str(home / name)]) == 0
    return home / name / "checkpoints/step-000002"


def moved(checkpoint, to):
    """As a worker has it: what the model needs, and no more, at a path of the run's own inputs."""
    to.mkdir(parents=True)
    for name in ("policy.safetensors", "state.json"):
        shutil.copy(checkpoint / name, to / name)
    return to


def policy_of(checkpoint):
    return load_file(checkpoint / "policy.safetensors")


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def began_with(home, name):
    return policy_of(home / name / "checkpoints/step-000000")


@torch.no_grad()
def logits(model):
    return model(torch.arange(40)[None]).logits


def test_a_run_begins_with_the_very_weights_and_says_whose_they_are(home):
    first = train(home, "one", path="base")
    assert not same(policy_of(first), began_with(home, "one")), "the first run learned something"
    train(home, "two", path="one/checkpoints/step-000002")
    assert same(began_with(home, "two"), policy_of(first))
    model = json.loads((home / "two/manifest.json").read_text())["model"]
    assert model["source"] == "one/checkpoints/step-000002"
    assert model["checkpoint"] == {name: file_sha256(first / name) for name in ("policy.safetensors", "state.json")}
    (event,) = [row for row in rows(home / "two/events.jsonl") if row.get("type") == "model"]
    assert "after step 2" in event["message"]


def test_a_third_run_from_the_second_needs_no_weights_below_it(home):
    """The lower checkpoint only leads to the folder with the tokenizer."""
    moved(train(home, "one", path="base"), home / "inputs/checkpoint-1")
    second = train(home, "two", path="inputs/checkpoint-1")
    moved(second, home / "inputs/checkpoint-2")
    (home / "inputs/checkpoint-1/policy.safetensors").unlink()
    train(home, "three", path="inputs/checkpoint-2")
    assert same(began_with(home, "three"), policy_of(second))
    third = home / "three/checkpoints"
    (home / "three/inputs").symlink_to(home / "inputs")
    assert main(["export", str(third / "step-000002"), "--out", str(home / "made")]) == 0
    assert same(load_file(home / "made/model.safetensors"), load_file(third / "final/model.safetensors"))


def test_adapters_go_on_or_are_merged(home):
    first = train(home, "one", path="base", lora=LORA)
    train(home, "two", path="one/checkpoints/step-000002", lora=LORA)
    assert same(began_with(home, "two"), policy_of(first)), "the same adapters go on"
    whole = load(home / "one/checkpoints/final")
    given = ModelConfig(path="one/checkpoints/step-000002", lora=LORA)
    going_on = load_policy(find_model(given, base=home), given, device=CPU, seed=0)
    assert torch.allclose(logits(going_on.model), logits(whole.model), atol=1e-5)
    with adapters_off(going_on.model):
        assert torch.equal(logits(going_on.model), logits(load(home / "base").model))
    train(home, "three", path="one/checkpoints/step-000002", adapter="merge")
    assert same(began_with(home, "three"), dict(whole.model.named_parameters()))


def test_adapters_on_a_checkpoint_of_adapters(home):
    first = moved(train(home, "one", path="base", lora=LORA), home / "inputs/checkpoint-1")
    train(home, "two", path="inputs/checkpoint-1", adapter="merge", lora=LORA)
    source = find_model(ModelConfig(path="two/checkpoints/step-000002"), base=home)
    assert (source.folder.name, source.below) == ("base", (first,))
    ours = load_model(source, dtype="float32", device=CPU)
    assert torch.allclose(logits(ours.model), logits(load(home / "two/checkpoints/final").model), atol=1e-5)
    train(home, "three", path="two/checkpoints/step-000002", lora=LORA)
    model = json.loads((home / "three/manifest.json").read_text())["model"]
    assert model["below"].keys() == {"checkpoint-1"}
    assert same(began_with(home, "three"), policy_of(home / "two/checkpoints/step-000002"))


def test_a_template_that_its_run_brought_stays_with_it(home):
    given = config(data={"path": "train.jsonl", "chat_template": TEMPLATE}, checkpoints={"every": 1})
    (home / "one.json").write_text(json.dumps(given.to_dict()))
    assert main(["train", str(home / "one.json"), "--out", str(home / "one")]) == 0
    source = find_model(ModelConfig(path="one/checkpoints/step-000002"), base=home)
    assert load_model(source, dtype="float32", device=CPU).tokenizer.chat_template == TEMPLATE
    assert load_source_tokenizer(source).chat_template == TEMPLATE


def test_the_doctor_takes_one_too(home, capsys):
    checkpoint = train(home, "one", path="base")
    capsys.readouterr()
    assert main(["doctor", str(checkpoint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "LlamaForCausalLM"


def damage_policy(checkpoint):
    tensors = policy_of(checkpoint)
    save_file({**tensors, next(iter(tensors)): torch.ones(1)}, checkpoint / "policy.safetensors")
    (checkpoint / MANIFEST).unlink()


def change_byte(checkpoint):
    content = bytearray((checkpoint / "policy.safetensors").read_bytes())
    content[-1] ^= 1
    (checkpoint / "policy.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (change_byte, "policy.safetensors was changed"),
        (damage_policy, "is of another model"),
        (lambda checkpoint: (checkpoint / "policy.safetensors").unlink(), "cannot be read as a model"),
        (lambda checkpoint: (checkpoint / "policy.safetensors").write_bytes(b"short"), "cannot be read as a model"),
        (lambda checkpoint: (checkpoint / "state.json").write_text("{}"), "another version of Cohort"),
        (lambda checkpoint: shutil.rmtree(checkpoint.parents[2] / "base"), "needs the model that its run began from"),
    ],
)
def test_what_is_not_whole_is_refused_with_what_is_wrong(home, damage, words):
    checkpoint = train(home, "one", path="base")
    damage(checkpoint)
    with pytest.raises((ModelError, CheckpointError), match=words):
        load_model(find_model(ModelConfig(path=str(checkpoint)), base=home), dtype="float32", device=CPU)


@pytest.mark.parametrize("lora", [{}, LORA], ids=["whole", "adapters"])
def test_another_model_in_the_place_of_the_one_below(home, lora):
    checkpoint = train(home, "one", path="base", lora=lora)
    shutil.rmtree(home / "base")
    tiny_folder(home / "base", seed=7)
    source = find_model(ModelConfig(path=str(checkpoint)), base=home)
    if not lora:  # all weights are the checkpoint's, and the tokenizer is the same
        ours = load_model(source, dtype="float32", device=CPU)
        assert same(dict(ours.model.named_parameters()), policy_of(checkpoint))
        (home / "base/config.json").write_text((home / "base/config.json").read_text() + "\n")
    given = ModelConfig(path=str(checkpoint), lora=lora)
    with pytest.raises(ModelError, match=r"began from another model.*grpo export"):
        load_policy(source, given, device=CPU, seed=0)


def test_one_is_no_reward_model_and_not_held_in_4_bits(home):
    checkpoint = train(home, "one", path="base")
    source = find_model(ModelConfig(path=str(checkpoint)), base=home)
    with pytest.raises(ModelError, match="in 4 bits"):
        load_model(source, dtype="bfloat16", device=CPU, quantization="nf4")
    context = Context(limits=config().reward.limits, base=home, device="cpu")
    with pytest.raises(ModelError, match="grpo export"):
        ScoringModel(ModelParams(path=str(checkpoint)), context, head="sequence")
