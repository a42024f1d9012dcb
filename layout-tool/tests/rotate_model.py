#!/usr/bin/env python3
"""Writes a GGUF of llama or qwen2 architecture anew with its residual stream turned by a random rotation.

The model computes the same, but no weight lies on the grid of a quantised type any more: what
quantisers lose can be compared fairly although only quantised models are at hand (decision 0006).
Matrices of layers get the named types, by the reference quantiser of the package gguf; embedding and output F16.

    rotate_model.py MODEL.gguf OUT F16 Q4_0 Q4_1     writes OUT-F16.gguf and so on
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

F16, F32 = GGMLQuantizationType.F16, GGMLQuantizationType.F32


def rotated(weights):
    """The same model's weights with every vector of the residual stream multiplied by `turn`.

    Norms' weights move into the matrices that follow them, since a rotation commutes with the
    norm alone; the output matrix stops being tied to the embedding for that reason.
    """
    dim = weights["token_embd.weight"].shape[1]
    turn, upper = np.linalg.qr(np.random.default_rng(1).standard_normal((dim, dim)))
    turn = (turn * np.sign(np.diag(upper))).astype(np.float32)
    ones = np.ones(dim, np.float32)
    head = weights.get("output.weight", weights["token_embd.weight"])
    new = {
        "token_embd.weight": weights["token_embd.weight"] @ turn,
        "output_norm.weight": ones,
        "output.weight": (head * weights["output_norm.weight"]) @ turn,
    }
    for name, weight in weights.items():
        if not name.startswith("blk."):
            continue
        layer, part = name.rsplit(".", 2)[0], name.split(".", 2)[2]
        if part in ("attn_q.weight", "attn_k.weight", "attn_v.weight"):
            new[name] = (weight * weights[f"{layer}.attn_norm.weight"]) @ turn
        elif part in ("ffn_gate.weight", "ffn_up.weight"):
            new[name] = (weight * weights[f"{layer}.ffn_norm.weight"]) @ turn
        elif part in ("attn_output.weight", "ffn_down.weight"):
            new[name] = turn.T @ weight
        elif part in ("attn_norm.weight", "ffn_norm.weight"):
            new[name] = ones
        else:
            new[name] = weight
    return new


def write(path, fields, weights, matrices):
    """A GGUF with the metadata `fields`, its layers' matrices of type `matrices`."""
    out = GGUFWriter(path, fields["general.architecture"].contents())
    ours = ("general.architecture", "general.file_type", "general.quantization_version")
    for key, field in fields.items():
        if key.startswith("GGUF.") or key in ours:
            continue
        if field.types[0] == GGUFValueType.ARRAY:
            out.add_array(key, field.contents())
        else:
            out.add_key_value(key, field.contents(), field.types[0])
    for name, weight in weights.items():
        ty = F32 if weight.ndim == 1 else matrices if name.startswith("blk.") else F16
        if ty == F32:
            out.add_tensor(name, weight.astype(np.float32))
        elif ty == F16:
            out.add_tensor(name, weight.astype(np.float16))
        else:
            rounded = weight.astype(np.float16).astype(np.float32)
            out.add_tensor(name, quants.quantize(rounded, ty), raw_dtype=ty)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    source, prefix, *types = sys.argv[1:]
    model = GGUFReader(source)
    weights = {
        tensor.name: quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for tensor in model.tensors
    }
    weights = rotated(weights)
    for name in types:
        write(f"{prefix}-{name}.gguf", model.fields, weights, GGMLQuantizationType[name])


if __name__ == "__main__":
    main()
