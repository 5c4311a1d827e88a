"""Weights from one process to another through memory."""

import json
import os
import subprocess
import sys

import pytest
import torch

from grpo_core.rollout.vllm.shared import Outgoing, incoming, planned

READER = """
import json, sys
from grpo_core.rollout.vllm.shared import incoming
for line in sys.stdin:
    place, entries = json.loads(line)
    got = incoming(place, entries)
    told = {name: [str(one.dtype), list(one.shape), one.double().sum().item()] for name, one in got.items()}
    print(json.dumps(told), flush=True)
"""


def weights() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return {
        "wide": torch.randn(30, 70, generator=random),
        "half": torch.randn(3, 5, 7, generator=random).to(torch.bfloat16),
        "turned": torch.randn(8, 16, generator=random).t(),
        "one": torch.tensor(2.5),
        "ids": torch.arange(9),
    }


@pytest.mark.parametrize("chunk", [64, 2**20])
def test_another_process_reads_what_was_written(chunk):
    outgoing, sent = Outgoing(chunk=chunk), weights()
    seen, parts = {}, 0
    with subprocess.Popen(
        [sys.executable, "-P", "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        for entries in outgoing.chunks(sent):
            print(json.dumps([outgoing.place, entries]), file=reader.stdin, flush=True)
            seen |= json.loads(reader.stdout.readline())
            parts += 1
        reader.stdin.close()
    outgoing.close()
    expected = {name: [str(one.dtype), list(one.shape), one.double().sum().item()] for name, one in sent.items()}
    assert seen == expected
    assert parts == {64: 5, 2**20: 1}[chunk]


def test_what_is_read_is_a_copy_and_lies_in_no_file():
    outgoing, sent = Outgoing(), weights()
    (entries,) = outgoing.chunks(sent)
    got = incoming(outgoing.place, entries)
    for _ in outgoing.chunks({name: torch.zeros_like(one) for name, one in sent.items()}):
        assert "memfd" in os.readlink(f"/proc/self/fd/{outgoing.place[1]}")
    assert all(torch.equal(got[name], one) for name, one in sent.items())
    place = outgoing.place
    outgoing.close()
    with pytest.raises(OSError):
        incoming(place, entries)


def test_the_memory_grows_when_a_later_model_part_is_larger():
    outgoing = Outgoing(chunk=64)
    for size in (4, 4000, 8):
        sent = {"w": torch.rand(size)}
        (entries,) = outgoing.chunks(sent)
        assert torch.equal(incoming(outgoing.place, entries)["w"], sent["w"])
    outgoing.close()


def test_a_chunk_holds_no_more_than_it_may_but_for_one_large_tensor():
    """Numbers of 4 bytes, each tensor from a multiple of 64 on: 64 + 40 fit into 128, 64 + 64 + 64 do not."""
    sizes = {name: torch.zeros(n) for name, n in zip("abcdef", (10, 10, 100, 3, 3, 16), strict=True)}
    chunks = [[(name, first) for name, _, _, first in chunk] for chunk in planned(sizes, 128)]
    assert chunks == [[("a", 0), ("b", 64)], [("c", 0)], [("d", 0), ("e", 64)], [("f", 0)]]
