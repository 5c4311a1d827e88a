"""Token arrays of a real run: equal to what transformers computes from the stored weights, and no influence on them."""

import hashlib
import io
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from grpo_core.files.token_file import TokenFile, TokenFileError, TokenRow, row_digest, write_rows
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.records.commitments import unpack
from grpo_core.records.leaves import leaf
from tests.processes import clean_environment

from .runs import KILLED, PLAIN, Setting, far, groups_of, make_home, merged, resuming, rows, spooled, weights_of

ALL = {"traces": {"groups_per_step": 3, "tokens": ["all"]}, "eval": {"before": False, "after": False}}
KL = {"kl": {"coef": 0.05}}
SETTINGS = {
    "plain": {"algorithm": {"entropy_coef": 0.01, **KL}},
    "clipping": {"algorithm": {"inner_iterations": 2, "clip_low": 0.001, "clip_high": 0.001, **KL}},
    "lora": {"model": {"lora": {"rank": 2}}, "algorithm": KL},
    "critic": {"algorithm": {"advantage": "gae", "scale": "batch_std", "critic": {"lr": 0.01}}},
}
SALT = bytes(range(16))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("home"))


def trained(home, out, *words, steps=1, **parts):
    parts = merged(merged(ALL, parts), {"optim": {"steps": steps, "lr": 0.01}})
    assert Setting(home, out.name, merged(PLAIN, parts)).train(out, *words) == 0
    return out


def stored(out, step):
    """Rows of a step's file, with the group of samples that each is of."""
    groups = {group["index"]: group for group in rows(out / "samples" / f"step-{step:06d}.jsonl")}
    content = (out / "tokens" / f"step-{step:06d}.parquet").read_bytes()
    file = TokenFile(io.BytesIO(content))
    return [(row, groups[row.group]) for number in range(file.rows) if (row := file.row(number, most_tokens=24))]


def recomputed(folder, out, step):
    """(log-probs, entropies) of each stored row by transformers alone: one row at a time, float64 softmax."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    computed = []
    for row, group in stored(out, step):
        prompt = tokenizer(group["prompt"])["input_ids"]
        ids = torch.tensor([[*prompt, *row.columns["token_id"]]])
        with torch.no_grad():
            table = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1].double(), dim=-1)
        picked = table.gather(1, ids[0, len(prompt) :, None])[:, 0]
        computed.append((picked.tolist(), (-(table.exp() * table).sum(-1)).tolist()))
    return computed


def recomputed_values(base, weights, out, step):
    """The critic's value before each token of each stored row: its backbone by transformers alone, its head by hand in
    float64."""
    model = AutoModel.from_pretrained(base, dtype=torch.float32).eval()
    tensors = load_file(weights)
    model.load_state_dict(
        {name.removeprefix("backbone."): t for name, t in tensors.items() if name.startswith("backbone.")}
    )
    tokenizer = AutoTokenizer.from_pretrained(base)
    values = []
    for row, group in stored(out, step):
        prompt = tokenizer(group["prompt"])["input_ids"]
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *row.columns["token_id"]]])
            hidden = model(ids).last_hidden_state[0, len(prompt) - 1 : -1].double()
        values.append((hidden @ tensors["head.weight"][0].double() + tensors["head.bias"].double()).tolist())
    return values


def near(values: Sequence[float]):
    return pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_arrays_equal_what_transformers_computes_from_the_weights(name, home, tmp_path):
    base = home / "base"
    one = trained(home, tmp_path / f"{name}-1", **SETTINGS[name])
    two = trained(home, tmp_path / f"{name}-2", steps=2, **SETTINGS[name])
    before = one / "checkpoints" / "final"
    now = recomputed(before, two, 2)
    reference = recomputed(base, two, 2)
    assert far(weights_of(one), weights_of(two)) > 1e-3
    seen = 0
    for (row, group), (logprobs, entropies), (of_base, _) in zip(stored(two, 2), now, reference, strict=True):
        columns = row.columns
        assert columns["sampler_logprob"] == near(logprobs)
        assert (
            columns["advantage"] == near([group["samples"][row.sample]["advantage"]] * len(logprobs))
            or name == "critic"
        )
        if "policy_logprob" not in columns:  # an advantage of 0, which nothing acts on
            assert name == "critic" or group["signal"] != "mixed"
            continue
        seen += 1
        if name != "clipping":
            assert columns["policy_logprob"] == near(logprobs)
        assert ("reference_logprob" in columns) == (name != "critic")
        if name != "critic":
            assert columns["reference_logprob"] == near(of_base)
            assert columns["reference_logprob"] != near(logprobs)
        assert ("entropy" in columns) == (name == "plain")
        if name == "plain":
            assert columns["entropy"] == near(entropies)
        assert ("ratio" in columns) == ("old_logprob" in columns)
        if name == "clipping":
            assert columns["old_logprob"] == near(logprobs)
        assert ("value" in columns) == (name == "critic")
        assert columns["in_loss"] == [True] * len(logprobs)
    assert seen > 4


def test_the_last_inner_update_is_what_is_stored_and_its_clip_is_the_formula(home, tmp_path):
    """One update of μ = 1 leaves the weights that the second of μ = 2 begins with."""
    once = {"algorithm": {**SETTINGS["clipping"]["algorithm"], "inner_iterations": 1}}
    one = trained(home, tmp_path / "once", **once)
    two = trained(home, tmp_path / "twice", **SETTINGS["clipping"])
    old, new = recomputed(home / "base", two, 1), recomputed(one / "checkpoints" / "final", two, 1)
    clipped = []
    for (row, _), (before, _), (after, _) in zip(stored(two, 1), old, new, strict=True):
        columns = row.columns
        assert columns["policy_logprob"] == near(after)
        assert columns["old_logprob"] == columns["reference_logprob"] == near(before)
        assert columns["ratio"] == pytest.approx(
            [math.exp(a - b) for a, b in zip(after, before, strict=True)], rel=1e-5
        )
        expected = [
            (ratio > 1.001 and advantage > 0) or (ratio < 0.999 and advantage < 0)
            for ratio, advantage in zip(columns["ratio"], columns["advantage"], strict=True)
        ]
        assert columns["clipped"] == expected
        clipped += expected
    assert {True, False} == set(clipped)
    assert all("ratio" not in row.columns for row, _ in stored(one, 1))  # of the policy to itself: always 1


def test_values_are_the_critics_and_a_row_that_no_update_saw_has_no_policy(home, tmp_path):
    out = trained(home, tmp_path / "critic", **SETTINGS["critic"])
    values = [value for row, _ in stored(out, 1) for value in row.columns["value"]]
    assert values == [0.0] * len(values)  # its head begins with zeros
    plain = trained(home, tmp_path / "zero", sampling={"group_size": 2})
    unseen = [row.columns for row, group in stored(plain, 1) if group["signal"] != "mixed"]
    assert unseen
    assert all("policy_logprob" not in columns and not any(columns["advantage"]) for columns in unseen)


def gae(reward: float, values: Sequence[float], decay: float) -> list[float]:
    """Of one completion with γ = 1, by the sum of the paper: A_t = Σ_k λᵏ·δ_{t+k} (arXiv 1506.02438, equation 16)."""
    later = [*values[1:], 0.0]
    rewards = [0.0] * (len(values) - 1) + [reward]
    deltas = [r + after - value for r, after, value in zip(rewards, later, values, strict=True)]
    return [sum(decay**k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(values))]


@pytest.mark.parametrize("decay", [0.95, 0.3])
def test_a_critics_values_and_advantages_equal_a_recomputation(decay, home, tmp_path):
    """The values of step 2 are of the weights after step 1; all samples are stored, so the batch can be whitened."""
    critic = {"critic": {"lr": 0.01, "gae_lambda": decay}}
    out = trained(home, tmp_path / "critic", steps=2, algorithm=SETTINGS["critic"]["algorithm"] | critic)
    rows, values = (
        stored(out, 2),
        recomputed_values(home / "base", out / "checkpoints" / "step-000001" / "critic.safetensors", out, 2),
    )
    assert len(rows) == 3 * 8
    assert max(abs(value) for own in values for value in own) > 0.01
    for (row, _), own in zip(rows, values, strict=True):
        assert row.columns["value"] == near(own)
    rewards = [group["samples"][row.sample]["reward"] for row, group in rows]
    advantages = [gae(reward, own, decay) for reward, own in zip(rewards, values, strict=True)]
    whole = torch.tensor([a for own in advantages for a in own], dtype=torch.float64)
    mean, divisor = whole.mean().item(), whole.std(correction=0).item() + 1e-4
    for (row, _), own in zip(rows, advantages, strict=True):
        assert row.columns["advantage"] == near([(a - mean) / divisor for a in own])


NEXT = {"": "123", **dict.fromkeys("123", "+=;"), **dict.fromkeys("+=;", "123")}
"""Character → those that may follow it, each as likely; "": any that is none of them."""


def write_sums(weights) -> None:
    """Changes a model so that its next token depends on the last one alone, by NEXT: it writes such as 1+2=3;2=1+1."""
    tensors = load_file(weights)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()  # what the layers add to a token's embedding
    embeddings, head = tensors["model.embed_tokens.weight"].zero_(), tensors["lm_head.weight"].zero_()
    embeddings[:, 0] = 1.0
    token = {letter: byte_tokenizer().convert_tokens_to_ids(letter) for letter in NEXT if letter}
    for dimension, (letter, following) in enumerate(NEXT.items()):
        if letter:
            embeddings[token[letter]] = torch.eye(embeddings.shape[1])[dimension]
        for other in following:
            head[token[other], dimension] = 2.0
    save_file(tensors, weights, metadata={"format": "pt"})


def ends_of(decode, tokens: Sequence[int], ends: Sequence[int]) -> Iterator[int]:
    """Index of the token with which the decoded text first reaches each end."""
    for end in ends:
        yield next(index for index in range(len(tokens)) if len(decode(tokens[: index + 1])) >= end)


@pytest.mark.parametrize("scale", ["group_std", "none"])
def test_step_rewards_and_their_advantages_equal_a_recomputation(scale, tmp_path):
    """Two components, of which one rewards each equation that is written out: rewards by the steps that the record
    has, placed by transformers' decoding; advantages by DeepSeekMath's section 4.1.3, written out."""
    writes_sums = make_home(tmp_path / "home")
    write_sums(writes_sums / "base" / "model.safetensors")
    sums = {"name": "sums", "kind": "equations", "weight": 0.7}
    one = {"name": "near", "kind": "numeric", "weight": 0.5, "params": {"extract": "last_number", "tolerance": 5}}
    parts = {"reward": {"components": [sums, one]}, "algorithm": {"supervision": "process", "scale": scale}}
    out = trained(writes_sums, tmp_path / "process", sampling={"max_completion_tokens": 24}, **parts)
    tokenizer = AutoTokenizer.from_pretrained(writes_sums / "base")
    given: dict[int, list[dict[int, float]]] = {}
    for row, group in stored(out, 1):
        components, tokens = group["samples"][row.sample]["components"], row.columns["token_id"]
        rewards = {len(tokens) - 1: 0.5 * components["near"]["value"]}
        steps = components["sums"]["steps"]
        ends = ends_of(lambda ids: tokenizer.decode(ids), tokens, [step["end"] for step in steps])
        for index, step in zip(ends, steps, strict=True):
            rewards[index] = rewards.get(index, 0.0) + 0.7 * step["value"]
        expected = [rewards.get(index) for index in range(len(tokens))]
        stored_rewards = row.columns["step_reward"]
        assert [value is None for value in stored_rewards] == [value is None for value in expected]
        assert [value or 0.0 for value in stored_rewards] == near([value or 0.0 for value in expected])
        given.setdefault(row.group, []).append(rewards)
    assert any(len(rewards) > 1 for group in given.values() for rewards in group), "several steps in a completion"
    assert any(0.6 < value < 0.8 for group in given.values() for rewards in group for value in rewards.values())
    for row, _ in stored(out, 1):
        everything = torch.tensor([v for own in given[row.group] for v in own.values()], dtype=torch.float64)
        mean, divisor = everything.mean().item(), 1.0
        if scale == "group_std":
            divisor = everything.std(correction=0).item() + 1e-4
        own = given[row.group][row.sample]
        expected = [
            sum((reward - mean) / divisor for index, reward in own.items() if index >= token)
            for token in range(len(row.columns["token_id"]))
        ]
        assert row.columns["advantage"] == near(expected)


def test_two_ranks_store_what_one_does(home, tmp_path):
    parts = merged(PLAIN, merged(ALL, SETTINGS["clipping"]))
    one, two = tmp_path / "one", tmp_path / "two"
    assert Setting(home, "one", parts).train(one, optim={"steps": 1, "lr": 0.01}) == 0
    path = Setting(home, "two", parts).write(engine={"devices": 2}, optim={"steps": 1, "lr": 0.01})
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, "-m", "grpo_core.cli.main", "train", str(path), "--out", str(two)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
    assert done.returncode == 0, done.stderr[-3000:]
    for (row, _), (other, _) in zip(stored(one, 1), stored(two, 1), strict=True):
        assert row.columns.keys() == other.columns.keys()
        for name, values in row.columns.items():
            assert values == (other.columns[name] if name == "piece" else pytest.approx(other.columns[name], rel=1e-4))


@pytest.mark.parametrize("name", SETTINGS)
def test_training_is_the_same_to_the_bit_with_arrays_and_without(name, home, tmp_path):
    arrays = trained(home, tmp_path / "arrays", steps=3, **SETTINGS[name])
    none = trained(home, tmp_path / "none", steps=3, **merged(SETTINGS[name], {"traces": {"tokens": ["none"]}}))
    assert far(weights_of(arrays), weights_of(none)) == 0
    assert not (none / "tokens").exists()
    drawn = [
        [(sample["completion"], sample["advantage"]) for group in groups_of(out) for sample in group["samples"]]
        for out in (arrays, none)
    ]
    assert drawn[0] == drawn[1]


def test_the_record_names_the_file_and_each_leaf_its_row(home, tmp_path):
    out = trained(home, tmp_path / "spooled", "--spool")
    records = [envelope["record"] for envelope in spooled(out)]
    (tokens,) = [record for record in records if record["kind"] == "tokens"]
    (committed,) = [record for record in records if record["kind"] == "commitments"]
    content = (out / tokens["path"]).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (tokens["size"], tokens["sha256"])
    leaves = unpack(committed["leaves"])
    for (row, group), key in zip(stored(out, 1), tokens["samples"], strict=True):
        sample = group["samples"][row.sample]
        assert [row.group, row.sample] == key
        assert sample["tokens_sha256"] == row_digest(row.salt, row.columns)
        text = {name: group[name] for name in ("step", "problem_id", "prompt")}
        bound = ("completion", "tokens", "finish_reason", "reward", "advantage", "tokens_sha256")
        bound = {"group": row.group, "sample": row.sample, **{name: sample[name] for name in bound}}
        assert leaves[row.group * 8 + row.sample] == leaf(bytes.fromhex(sample["salt"]), text | bound)
        assert "\ufffd" in sample["completion"] or "".join(row.columns["piece"]).startswith(sample["completion"])


CHOICES = {
    ("best",): lambda rewards: sorted(rewards, reverse=True)[:2],
    ("worst",): lambda rewards: sorted(rewards)[:2],
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_takes_the_samples_it_names(choice, home, tmp_path):
    out = trained(home, tmp_path / "chosen", traces={"tokens": list(choice)})
    rewards = [sample["reward"] for group in groups_of(out) for sample in group["samples"]]
    chosen = [group["samples"][row.sample]["reward"] for row, group in stored(out, 1)]
    assert sorted(chosen) == sorted(CHOICES[choice](rewards))


def test_random_ones_are_the_seeds_and_flagged_ones_are_those_masked(home, tmp_path):
    runs = [trained(home, tmp_path / name, traces={"tokens": ["random"]}) for name in ("first", "second")]
    keys = [[(row.group, row.sample) for row, _ in stored(out, 1)] for out in runs]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 2
    masks = {"algorithm": {"overlong": {"mask_truncated": True}}, "traces": {"tokens": ["flagged"]}}
    flagged = stored(trained(home, tmp_path / "flagged", **masks), 1)
    assert [group["samples"][row.sample]["mask_cause"] for row, group in flagged] == ["truncated"] * 2
    assert all(row.columns["in_loss"] == [False] * 4 for row, _ in flagged)


def test_a_resumed_run_writes_its_files_again(home, tmp_path):
    setting = Setting(home, "resumed", merged(PLAIN, merged(ALL, {"optim": {"steps": 3}})))
    out, whole = tmp_path / "killed", tmp_path / "whole"
    assert setting.train(out, fault="recorded:3") == KILLED
    assert setting.train(out, *resuming(out)) == 0
    assert setting.train(whole) == 0
    assert [row["step"] for row in rows(out / "tokens.jsonl")] == [1, 2, 3]
    assert [row.columns for row, _ in stored(out, 3)] == [row.columns for row, _ in stored(whole, 3)]
    assert (out / "superseded" / "1" / "tokens" / "step-000003.parquet").exists()


def test_the_digest_is_as_documented():
    """Worked by hand: SHA-256 of the salt and, by name, each column's name, NUL, count and little-endian values."""
    columns = {"token_id": [1, 258], "clipped": [True, False], "step_reward": [None, 1.0], "piece": ["a", "\u00e9"]}
    packed = (
        b"clipped\0" + (2).to_bytes(8, "little") + b"\1\0"
        b"piece\0" + (2).to_bytes(8, "little") + b"\1\0\0\0a\2\0\0\0\xc3\xa9"
        b"step_reward\0" + (2).to_bytes(8, "little") + bytes.fromhex("0000c07f0000803f")
        + b"token_id\0" + (2).to_bytes(8, "little") + b"\1" + bytes(7) + b"\2\1" + bytes(6)
    )  # fmt: skip
    assert row_digest(SALT, columns) == hashlib.sha256(SALT + packed).hexdigest()


def file_of(*rows):
    sink = io.BytesIO()
    write_rows(sink, rows)
    return sink.getvalue()


def test_a_file_gives_its_rows_as_they_were_and_refuses_more_tokens_than_announced():
    row = TokenRow(3, 1, SALT, {"token_id": [7, 8], "piece": ["x", " y"], "step_reward": [None, 0.5]})
    other = TokenRow(3, 2, SALT, {"token_id": [9], "piece": ["z"], "policy_logprob": [-0.5]})
    file = TokenFile(io.BytesIO(file_of(row, other)))
    assert [file.row(number, most_tokens=2) for number in range(file.rows)] == [row, other]
    with pytest.raises(TokenFileError, match="2 tokens, not 1"):
        file.row(0, most_tokens=1)
    with pytest.raises(TokenFileError, match="no row 2"):
        file.row(2, most_tokens=2)
