"""The tiny random model of the other tests, written the way SGLang and `transformers` read models.

The weights are those of a GGUF file, so that the embedded engine and SGLang can be asked the same
and compared. They stay in float32: nothing is left to rounding but the order of additions.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from backend.vocabulary import vocabulary_from_gguf
from tests.support.tiny_gguf import CHAT_TEMPLATE

CONTEXT_LENGTH = 40_960

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_checkpoint(gguf: Path, directory: Path) -> Path:
    """Write a Qwen2 checkpoint with tokenizer and chat template, and return its directory.

    Args:
        gguf: a float32 file by `write_tiny_gguf`, with tied embeddings.
        directory: made if need be.
    """
    directory.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(gguf)
    tensors = {_name(tensor.name): np.asarray(tensor.data) for tensor in reader.tensors}
    _write_safetensors(directory / "model.safetensors", tensors)
    _write_json(directory / "config.json", _config(reader))
    _write_tokenizer(gguf, directory)
    return directory


def _name(name: str) -> str:
    *block, part, kind = name.removeprefix("blk.").split(".")
    where = f"model.layers.{block[0]}." if block else ""
    return f"{where}{_NAMES[part]}.{kind}"


def _config(reader: GGUFReader) -> dict[str, Any]:
    def field(name: str) -> Any:
        return reader.fields[f"qwen2.{name}"].contents()

    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "torch_dtype": "float32",
        "vocab_size": len(tokens),
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"),
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_LENGTH,
        "tie_word_embeddings": True,
        "eos_token_id": reader.fields["tokenizer.ggml.eos_token_id"].contents(),
    }


def _write_tokenizer(gguf: Path, directory: Path) -> None:
    vocabulary_from_gguf(gguf).tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _write_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, values in tensors.items():
        assert values.dtype == np.float32
        begin, end = end, end + values.nbytes
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(values.tobytes())
