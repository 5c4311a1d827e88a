"""What ends a completion besides an end token: stop strings, in the local sampler and cut out of vLLM's tokens; and a
repetition penalty from token to token."""

from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig

from grpo_core.data.prompts import completion_text, stops
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.rollout.base import Completion, Decoding
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.vllm.rollout import up_to_the_end
from tests.core.tiny import load, sharpen, tiny_folder

PROMPTS = [list(b"one and"), list(b"12+34"), list(b"x")]
TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory):
    return sharpen(load(tiny_folder(tmp_path_factory.mktemp("ends") / "base")))


def sampled(policy, **decoding):
    rollout = LocalRollout(policy, max_rows=7)
    groups = rollout.generate(
        PROMPTS, samples=6, decoding=Decoding(**{"max_tokens": 60, "temperature": 1.0, **decoding}), key=(3,)
    )
    return [completion for group in groups for completion in group]


def text_of(policy, completion, stop=()):
    return completion_text(policy.tokenizer, completion.tokens, policy.eos_ids, stop)


def pairs_in(policy, plain):
    """Two letters that many of the completions hold."""
    texts = [text_of(policy, completion) for completion in plain]
    pairs = {text[i : i + 2] for text in texts for i in range(len(text) - 1) if "\ufffd" not in text[i : i + 2]}
    return max(sorted(pairs), key=lambda pair: sum(pair in text for text in texts))


def test_a_stop_string_ends_a_completion_with_the_token_that_completes_it(policy):
    plain = sampled(policy)
    stop = (pairs_in(policy, plain), "never written")
    ended = sampled(policy, stop=stop)
    assert {"stop", "length"} <= {completion.finish for completion in ended}
    for before, after in zip(plain, ended, strict=True):
        whole, cut = text_of(policy, before), text_of(policy, after, stop)
        assert after.tokens == before.tokens[: len(after.tokens)]
        assert list(after.logprobs) == pytest.approx(before.logprobs[: len(after.tokens)], abs=1e-5)
        assert (after.finish == "stop") == (stop[0] in whole)
        assert cut == whole.partition(stop[0])[0]
        if after.finish == "stop":
            assert text_of(policy, after).endswith(stop[0])


@pytest.mark.parametrize(
    ("text", "stop", "ends"),
    [("abc", ["bc"], True), ("abcd", ["bc"], False), ("ab€", ["€"], True), ("a b", [" b"], True), ("", ["a"], False)],
)
def test_stops_sees_the_last_token_alone(text, stop, ends):
    tokens = TOKENIZER(text)["input_ids"]
    fresh = stops(TOKENIZER, tokens, stop) and not stops(TOKENIZER, tokens[:-1], stop)
    assert fresh is ends


def test_text_is_cut_before_the_first_of_several_stop_strings():
    tokens = TOKENIZER("so 4 ### and $$ more")["input_ids"]
    assert completion_text(TOKENIZER, tokens, frozenset(), ("$$", "###")) == "so 4 "


def test_what_vllm_sampled_after_the_first_end_is_dropped(policy):
    end = policy.tokenizer.eos_token_id
    policy = replace(policy, eos_ids=frozenset([end]))
    tokens = [*TOKENIZER("4 ##")["input_ids"], end, *TOKENIZER("more")["input_ids"]]
    logprobs = [-float(number) for number in range(len(tokens))]
    for stop, length, finish in (((), 5, "eos"), (("##",), 4, "stop"), (("mo",), 5, "eos")):
        expected = Completion(tuple(tokens[:length]), tuple(logprobs[:length]), finish)
        assert up_to_the_end((tokens, logprobs), policy, stop) == expected
    assert up_to_the_end((tokens[5:], logprobs[5:]), policy, ()).finish == "length"


def test_a_repetition_penalty_counts_prompt_and_completion_as_transformers_does(policy):
    drawn = sampled(policy, temperature=0, repetition_penalty=1.4, max_tokens=30)[::6]
    for prompt, completion in zip(PROMPTS, drawn, strict=True):
        settings = GenerationConfig(
            do_sample=False,
            repetition_penalty=1.4,
            max_new_tokens=30,
            eos_token_id=sorted(policy.eos_ids),
            pad_token_id=policy.pad_id,
        )
        with torch.no_grad():
            theirs = policy.model.generate(torch.tensor([prompt]), generation_config=settings)
        assert list(completion.tokens) == theirs[0, len(prompt) :].tolist()
