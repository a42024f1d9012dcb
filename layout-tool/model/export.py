"""Writes the trained model as a GGUF file, and measures what is in it.

    python3 export.py WORK austen.gguf [TEXT...]

Attention and feed-forward are Q4_0, the embedding Q8_0, norms F32: the numbers that the last part
of the training computed with, so that writing them loses nothing.
"""

import json
import math
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F

from corpus import END, Tokenizer
from network import Matrix, Model, Shape, q4_0, q8_0
from train import held_out

ALIGNMENT = 32
F32, Q4_0, Q8_0 = 0, 2, 8  # ggml's numbers of tensor types
U32, I32, FLOAT, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9  # GGUF's numbers of value types


def text(value):
    """A text as GGUF stores it."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    """A metadata value; arrays are pairs of element type and list."""
    if kind == TEXT:
        return text(content)
    if kind == ARRAY:
        each, items = content
        return struct.pack("<IQ", each, len(items)) + b"".join(value(each, i) for i in items)
    return struct.pack({U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<?"}[kind], content)


def blocks(weights, kind):
    """Rows of weights as bytes of a tensor type."""
    if kind == F32:
        return weights.numpy().astype("<f4").tobytes()
    _, codes, scales = (q4_0 if kind == Q4_0 else q8_0)(weights)
    scales = scales.numpy().astype("<f2").view("u1").reshape(-1, 2)
    if kind == Q4_0:
        codes = codes.numpy().astype("u1")
        codes = codes[:, :16] | codes[:, 16:] << 4
    else:
        codes = codes.numpy().astype("i1").view("u1")
    return b"".join(s.tobytes() + c.tobytes() for s, c in zip(scales, codes))


def tensors(model):
    """Name, type and weights of every tensor."""
    yield "token_embd.weight", Q8_0, model.embedding.weight
    for index, layer in enumerate(model.layers):
        parts = [
            ("attn_norm", F32, layer.attn_norm),
            ("attn_q", Q4_0, layer.attn.q),
            ("attn_k", Q4_0, layer.attn.k),
            ("attn_v", Q4_0, layer.attn.v),
            ("attn_output", Q4_0, layer.attn.o),
            ("ffn_norm", F32, layer.ffn_norm),
            ("ffn_gate", Q4_0, layer.ffn.gate),
            ("ffn_up", Q4_0, layer.ffn.up),
            ("ffn_down", Q4_0, layer.ffn.down),
        ]
        for name, kind, part in parts:
            yield f"blk.{index}.{name}.weight", kind, part.weight
    yield "output_norm.weight", F32, model.norm.weight


def vocabulary(pairs):
    """Texts of all tokens and of all merges, a printable character for each byte as in GPT-2."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    tokens = ["<|endoftext|>", *(letters[byte] for byte in range(256))]
    merges = []
    for left, right in pairs:
        merges.append(f"{tokens[left]} {tokens[right]}")
        tokens.append(tokens[left] + tokens[right])
    return tokens, merges


def metadata(shape, pairs):
    """All keys with their types and values."""
    tokens, merges = vocabulary(pairs)
    kinds = [3] + [1] * (len(tokens) - 1)  # a control token, then normal ones
    return {
        "general.architecture": (TEXT, "llama"),
        "general.name": (TEXT, "Austen"),
        "general.license": (TEXT, "mit or apache-2.0"),
        "general.description": (TEXT, "A llama with ReLU gates, trained on Jane Austen's novels."),
        "llama.context_length": (U32, shape.seq_len),
        "llama.embedding_length": (U32, shape.dim),
        "llama.feed_forward_length": (U32, shape.ffn_dim),
        "llama.block_count": (U32, shape.n_layers),
        "llama.attention.head_count": (U32, shape.n_heads),
        "llama.attention.head_count_kv": (U32, shape.n_kv_heads),
        "llama.attention.key_length": (U32, shape.head_dim),
        "llama.attention.value_length": (U32, shape.head_dim),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT, shape.rms_eps),
        "llama.rope.dimension_count": (U32, shape.head_dim),
        "llama.rope.freq_base": (FLOAT, shape.rope_base),
        "llama.hidden_activation": (TEXT, "relu"),
        "llama.vocab_size": (U32, shape.vocab_size),
        "tokenizer.ggml.model": (TEXT, "gpt2"),
        "tokenizer.ggml.pre": (TEXT, "gpt-2"),
        "tokenizer.ggml.tokens": (ARRAY, (TEXT, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, kinds)),
        "tokenizer.ggml.merges": (ARRAY, (TEXT, merges)),
        "tokenizer.ggml.bos_token_id": (U32, 0),
        "tokenizer.ggml.eos_token_id": (U32, 0),
        "tokenizer.ggml.add_bos_token": (BOOL, True),
    }


def write(path, model, pairs):
    """Writes the file."""
    keys = metadata(model.shape, pairs)
    entries, data = [], b""
    for name, kind, weights in tensors(model):
        dims = list(reversed(weights.shape))
        head = text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        entries.append(head + struct.pack("<IQ", kind, len(data)))
        data += blocks(weights.detach(), kind)
        data += bytes(-len(data) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(keys))
    for key, (kind, content) in keys.items():
        head += text(key) + struct.pack("<I", kind) + value(kind, content)
    head += b"".join(entries)
    head += bytes(-len(head) % ALIGNMENT)
    path.write_bytes(head + data)
    print(f"{path}: {len(head) + len(data)} bytes")


def perplexity(model, tokens, length):
    """As `tessera perplexity --ctx` has it: over the second half of each window."""
    total, count = 0.0, 0
    for at in range(0, len(tokens) - length + 1, length):
        window = tokens[at : at + length].clone()
        window[0] = END
        with torch.no_grad():
            logits = model(window[None, :-1])[0]
        half = length // 2
        total += F.cross_entropy(logits[half:], window[half + 1 :], reduction="sum").item()
        count += length - half - 1
    return math.exp(total / count), count


def main(folder, path, texts):
    corpus = json.loads((folder / "corpus.json").read_text())
    state = torch.load(folder / "checkpoint.pt")
    model = Model(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    model.eval()
    Matrix.rounded = True
    write(path, model, corpus["merges"])
    test = torch.tensor(corpus["test"])
    chars = len((folder / "test.txt").read_text())
    for length in (256, 512):
        loss, zeros = held_out(model, test, length)
        shares = " ".join(f"{100 * share:.1f}" for share in zeros)
        per_char = loss * len(test) / chars
        print(f"{length}: {loss:.4f} nats a token, {per_char:.4f} a character; zeros {shares} %")
    tokenizer = Tokenizer(corpus["merges"])
    for name in [folder / "test.txt", *texts]:
        tokens = torch.tensor([END, *tokenizer.encode(pathlib.Path(name).read_text())])
        for length in (256, 512):
            result, count = perplexity(model, tokens, length)
            print(f"{name}: perplexity {result:.4f} over {count} tokens, context {length}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:])
