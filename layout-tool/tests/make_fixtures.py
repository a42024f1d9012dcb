#!/usr/bin/env python3
"""Makes fixtures/types.gguf: random blocks of every tensor type that can be read, and
fixtures/types.f32: what the Python package gguf makes of them, tensor by tensor.

Needs numpy and gguf 0.19.0 (pip). Run once; the results are committed.
"""
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0,
         T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL]
# Where each block has its half floats: random ones may be infinite or no number.
HALVES = {T.F16: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
          T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
          T.IQ4_NL: [0]}
ROWS, COLS = 2, 256


def halves(rng, count):
    """Half floats of both signs and all sizes, zero and subnormal among them."""
    made = (rng.standard_normal(count) * 10.0 ** rng.uniform(-8, 2, count)).astype(np.float16)
    made[:2] = [0.0, -6e-8]
    return made.view(np.uint8).reshape(count, 2)


def blocks(rng, ty):
    """ROWS x COLS weights as stored."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[ty]
    count = ROWS * COLS // block_len
    made = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    if ty in (T.F32, T.BF16):
        floats = (rng.standard_normal(count) * 10.0 ** rng.uniform(-30, 30, count))
        bits = floats.astype(np.float32).view(np.uint32)
        made = bits.view(np.uint8).reshape(count, 4)[:, 4 - block_bytes:]
    for at in HALVES.get(ty, []):
        made[:, at:at + 2] = halves(rng, count)
    return np.ascontiguousarray(made).reshape(ROWS, -1)


def main():
    here = pathlib.Path(__file__).parent / "fixtures"
    here.mkdir(exist_ok=True)
    rng = np.random.default_rng(20260101)
    out = gguf.GGUFWriter(here / "types.gguf", "types")
    floats = b""
    for ty in TYPES:
        made = blocks(rng, ty)
        out.add_tensor(ty.name, made, raw_dtype=ty)
        floats += gguf.quants.dequantize(made, ty).astype("<f4").tobytes()
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    (here / "types.f32").write_bytes(floats)


main()
