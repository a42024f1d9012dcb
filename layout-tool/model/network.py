"""The network: a llama with ReLU gates, and weights rounded as GGUF stores them."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Shape:
    """Hyper-parameters."""

    vocab_size: int = 2048
    dim: int = 256
    ffn_dim: int = 896
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 64
    seq_len: int = 512
    rope_base: float = 10000.0
    rms_eps: float = 1e-5


def q4_0(weights):
    """Rounded to 4 bits in blocks of 32 of a row, as ggml's Q4_0: (values, codes, scales)."""
    blocks = weights.reshape(-1, 32)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scales = (largest / -8).half().float()
    inverse = torch.where(largest == 0, torch.zeros_like(largest), -8 / largest)
    codes = (blocks * inverse + 8.5).floor().clamp(0, 15)
    return ((codes - 8) * scales).view_as(weights), codes, scales


def q8_0(weights):
    """Rounded to 8 bits in blocks of 32 of a row, as ggml's Q8_0: (values, codes, scales)."""
    blocks = weights.reshape(-1, 32)
    largest = blocks.abs().amax(1, keepdim=True) / 127
    scales = largest.half().float()
    codes = torch.where(largest == 0, torch.zeros_like(blocks), (blocks / largest).round())
    return (codes * scales).view_as(weights), codes, scales


class Matrix(nn.Linear):
    """A matrix whose weights are rounded in the forward pass once `rounded` is set."""

    rounded = False

    def __init__(self, cols, rows, scale=1.0):
        super().__init__(cols, rows, bias=False)
        nn.init.normal_(self.weight, std=scale * cols**-0.5)

    def forward(self, x):
        weight = self.weight
        if Matrix.rounded:
            # The gradient passes as if nothing were rounded.
            weight = weight + (q4_0(weight.detach())[0] - weight.detach())
        return F.linear(x, weight)


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.dim))
        self.eps = shape.rms_eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, angles):
    """Rotary positions on neighbouring pairs: the order of rows in a GGUF file of a llama."""
    cos, sin = angles
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Attention(nn.Module):
    """Causal attention with shared key and value heads."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        kv_dim = shape.n_kv_heads * shape.head_dim
        self.q = Matrix(shape.dim, shape.n_heads * shape.head_dim)
        self.k = Matrix(shape.dim, kv_dim)
        self.v = Matrix(shape.dim, kv_dim)
        self.o = Matrix(shape.n_heads * shape.head_dim, shape.dim, (2 * shape.n_layers) ** -0.5)

    def forward(self, x, angles, mask):
        batch, length, _ = x.shape
        shape = self.shape
        split = lambda y: y.view(batch, length, -1, shape.head_dim).transpose(1, 2)
        q = rotate(split(self.q(x)), angles) * shape.head_dim**-0.5
        k, v = rotate(split(self.k(x)), angles), split(self.v(x))
        # Queries of the heads that share a key, one below the other.
        q = q.reshape(batch, shape.n_kv_heads, -1, shape.head_dim)
        scores = (q @ k.transpose(2, 3)).view(batch, shape.n_heads, length, length) + mask
        weights = scores.softmax(-1).view(batch, shape.n_kv_heads, -1, length)
        heads = (weights @ v).view(batch, shape.n_heads, length, shape.head_dim)
        return self.o(heads.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """down(relu(gate x) * up x); keeps its share of zeros, and the gate's mean as a penalty."""

    def __init__(self, shape):
        super().__init__()
        self.gate = Matrix(shape.dim, shape.ffn_dim)
        self.up = Matrix(shape.dim, shape.ffn_dim)
        self.down = Matrix(shape.ffn_dim, shape.dim, (2 * shape.n_layers) ** -0.5)

    def forward(self, x):
        gate = F.relu(self.gate(x))
        self.penalty = gate.mean()
        self.zeros = (gate.detach() == 0).float().mean()
        return self.down(gate * self.up(x))


class Layer(nn.Module):
    """Attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape, dropout):
        super().__init__()
        self.attn_norm, self.attn = Norm(shape), Attention(shape)
        self.ffn_norm, self.ffn = Norm(shape), FeedForward(shape)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, angles, mask):
        x = x + self.dropout(self.attn(self.attn_norm(x), angles, mask))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class Model(nn.Module):
    """The whole: tokens to logits. The embedding is the lm_head too."""

    def __init__(self, shape, dropout=0.0):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim)
        nn.init.normal_(self.embedding.weight, std=shape.dim**-0.5)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.n_layers))
        self.norm = Norm(shape)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens):
        length, shape = tokens.shape[1], self.shape
        steps = torch.arange(0, shape.head_dim, 2) / shape.head_dim
        angles = torch.arange(length)[:, None] * shape.rope_base**-steps
        mask = torch.full((length, length), float("-inf")).triu(1)
        table = self.embedding.weight
        if Matrix.rounded:
            table = table + (q8_0(table.detach())[0] - table.detach())
        x = self.dropout(F.embedding(tokens, table))
        for layer in self.layers:
            x = layer(x, (angles.cos(), angles.sin()), mask)
        return F.linear(self.norm(x), table)
