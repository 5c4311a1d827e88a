"""A GGUF file becomes a model folder that computes what transformers computes of the file, or nothing is made."""

import json
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from grpo_core.cli.main import main
from grpo_core.data.fingerprint import file_sha256
from grpo_core.errors import ModelError
from grpo_core.files.weights import PROVENANCE
from grpo_core.model.tiny import END, PAD, byte_tokenizer

from .tiny import load

torch.set_num_threads(1)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}" + END + "{% endfor %}"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(path: Path, quantisation: Type) -> Path:
    """A Llama of one layer whose matrices are quantised so, its output layer tied to the embedding."""
    vocabulary = [*byte_tokenizer().convert_ids_to_tokens(range(256)), END, PAD, "ab"]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary), tie_word_embeddings=True, **sizes))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_license("mit")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([1] * 256 + [3, 3, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(256)
    writer.add_pad_token_id(257)
    writer.add_chat_template(TEMPLATE)
    for name, weight in model.model.named_parameters():
        layer, _, of = name.partition("layers.0.")
        if of:
            written = f"blk.0.{NAMES[of.removesuffix('.weight')]}.weight"
        else:
            written = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[layer]
        kind = quantisation if weight.ndim > 1 else Type.F32
        packed = gguf.quants.quantize(weight.detach().numpy(), kind)
        writer.add_tensor(written, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("quantisation", [Type.F32, Type.Q8_0, Type.Q4_1])
def test_the_folder_computes_what_the_file_does(tmp_path, quantisation, capsys):
    file, folder = write_gguf(tmp_path / "tiny.gguf", quantisation), tmp_path / "made"
    assert main(["import-gguf", str(file), "--out", str(folder)]) == 0
    assert quantisation.name in capsys.readouterr().out
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    policy, ids_BT = load(folder), torch.arange(40)[None]
    assert torch.equal(policy.model(ids_BT).logits, theirs(ids_BT).logits)
    assert policy.eos_ids == {256}
    assert policy.pad_id == 257
    assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE
    assert "_model_name_or_path" not in (folder / "config.json").read_text()
    assert "quantization_config" not in (folder / "config.json").read_text()
    provenance = json.loads((folder / PROVENANCE).read_text())
    assert provenance["quantisation"] == quantisation.name
    assert provenance["source"]["sha256"] == file_sha256(file)
    assert provenance["weights"] == {"model.safetensors": file_sha256(folder / "model.safetensors")}
    assert provenance["license"] == "mit"


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda content: content[:100], "not a whole GGUF file"),
        (lambda content: content[: len(content) // 2], "not a whole GGUF file"),
        (lambda content: content[:-1], "not a whole GGUF file"),
        (lambda content: b"PK" + content[2:], "not a GGUF file"),
        (lambda content: b"", "not a GGUF file"),
        (lambda content: content.replace(b"llama", b"lluma"), "cannot read a causal language model"),
    ],
)
def test_a_file_that_is_cut_or_something_else_makes_no_folder(tmp_path, capsys, damage, word):
    file = write_gguf(tmp_path / "tiny.gguf", Type.Q8_0)
    file.write_bytes(damage(file.read_bytes()))
    assert main(["import-gguf", str(file), "--out", str(tmp_path / "made")]) == ModelError.exit_status
    assert word in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_folder_that_is_there_is_left_alone(tmp_path, capsys):
    assert main(["import-gguf", str(tmp_path / "tiny.gguf"), "--out", str(tmp_path)]) == ModelError.exit_status
    assert "there already" in capsys.readouterr().err
    assert main(["import-gguf", str(tmp_path / "tiny.gguf"), "--out", str(tmp_path / "made")]) == ModelError.exit_status
    assert "no file" in capsys.readouterr().err
