"""Writes a tiny llama model with random weights. Runs in the peer environment, which has `gguf` and numpy.

It says nothing sensible: what matters is that a real engine loads it, tokenises any text (every byte has a token of
its own), applies a chat template and generates for as long as it is told to. The key and tensor names are those of
the `llama` architecture in the GGUF specification.

    python llamacpp_model.py FILE.gguf
"""

import os
import sys

import gguf
import numpy as np

LAYERS = 2
DIMS = 64
HEADS = 4
FEED_FORWARD = 128
CONTEXT = 4096
SEED = 20

# Turns end in a newline, so that the last token of a prompt is an ordinary byte.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def vocabulary():
    """The SentencePiece parts: tokens, their scores and their kinds. Bytes 0-255 follow the three special tokens,
    then single printable characters, which win over the byte tokens when they can."""
    kind = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % byte for byte in range(256)]
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL] + [kind.BYTE] * 256
    characters = ["\u2581"] + [chr(code) for code in range(33, 127)]  # U+2581 stands for a space
    tokens += [character.encode("utf-8") for character in characters]
    kinds += [kind.NORMAL] * len(characters)
    scores = [0.0] * 259 + [-1.0 - 0.01 * rank for rank in range(len(characters))]
    return tokens, scores, kinds


def write_model(path):
    tokens, scores, kinds = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIMS)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(DIMS // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)

    random = np.random.default_rng(SEED)

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    ones = np.ones(DIMS, dtype=np.float32)
    writer.add_tensor("token_embd.weight", matrix(len(tokens), DIMS))
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        writer.add_tensor(prefix + "attn_norm.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(prefix + name + ".weight", matrix(DIMS, DIMS))
        writer.add_tensor(prefix + "ffn_norm.weight", ones)
        writer.add_tensor(prefix + "ffn_gate.weight", matrix(FEED_FORWARD, DIMS))
        writer.add_tensor(prefix + "ffn_up.weight", matrix(FEED_FORWARD, DIMS))
        writer.add_tensor(prefix + "ffn_down.weight", matrix(DIMS, FEED_FORWARD))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", matrix(len(tokens), DIMS))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    # Whole or not at all: another test process may be waiting for this name to appear.
    partial = f"{sys.argv[1]}.{os.getpid()}"
    write_model(partial)
    os.replace(partial, sys.argv[1])
