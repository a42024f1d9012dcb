"""Trains the model; goes on from the last checkpoint in the folder.

    OMP_NUM_THREADS=1 python3 train.py WORK [--steps N]

WORK holds what corpus.py wrote. The same seed, steps and PyTorch give the same model, however often
the training is interrupted.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import time

import torch
import torch.nn.functional as F

from corpus import END
from network import Matrix, Model, Shape

SEED = 1
BATCH_TOKENS = 4096
DROPOUT = 0.1
LEARNING_RATE = 2e-3
WARMUP_STEPS = 100
WEIGHT_DECAY = 0.1
# Zeros that the penalty on the gates aims at, and how fast it follows.
ZEROS = 0.88
PENALTY_START, PENALTY_RATE = 1e-3, 0.2
# From these shares of the steps on: a falling learning rate; windows of the whole context and
# rounded weights.
DECAY_FROM, ROUNDED_FROM = 0.56, 0.85
SHORT_LEN = 256
CHECKPOINT_SECONDS = 60


def rate(step, steps):
    """Learning rate: linear warm-up, constant, then linear to nothing.

    Until it falls, `--steps` can still be changed.
    """
    left = (steps - step) / (steps * (1 - DECAY_FROM))
    return LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS, left)


def batch(tokens, starts, length):
    """Windows that begin with the end token and a paragraph, spread evenly over the text."""
    count = BATCH_TOKENS // length
    places = torch.randint(len(tokens) - 2 * length, (count,))
    first = starts[torch.searchsorted(starts, places).clamp(max=len(starts) - 1)]
    first = first.clamp(max=len(tokens) - length)
    windows = tokens[first[:, None] + torch.arange(length)]
    return after_end(windows), windows


def after_end(windows):
    """What the model sees when it is to give these windows: the end token, and all but the last."""
    return F.pad(windows[:, :-1], (1, 0), value=END)


def held_out(model, tokens, length):
    """Mean loss over the text in windows of their own, and each layer's share of zeros."""
    model.eval()
    total, zeros, count = 0.0, torch.zeros(model.shape.n_layers), 0
    with torch.no_grad():
        for at in range(0, len(tokens) - length + 1, length):
            window = tokens[None, at : at + length]
            logits = model(after_end(window))
            total += F.cross_entropy(logits[0], window[0], reduction="sum").item()
            zeros += torch.stack([layer.ffn.zeros for layer in model.layers]) * length
            count += length
    model.train()
    return total / count, zeros / count


def optimizer_of(model):
    """AdamW; norms and the embedding do not decay."""
    matrices = [m.weight for m in model.modules() if isinstance(m, Matrix)]
    inside = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in inside]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)


def train_step(model, optimizer, tokens, starts, penalties, step, steps):
    """One step; gives the loss and each layer's share of zeros."""
    torch.manual_seed(SEED * 1_000_003 + step)
    Matrix.rounded = step >= ROUNDED_FROM * steps
    length = model.shape.seq_len if Matrix.rounded else SHORT_LEN
    inputs, targets = batch(tokens, starts, length)
    for group in optimizer.param_groups:
        group["lr"] = rate(step, steps)
    # Half the width is enough here, and takes two thirds of the time.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(inputs)
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    ffns = [layer.ffn for layer in model.layers]
    (loss + sum(p * ffn.penalty for p, ffn in zip(penalties, ffns))).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    zeros = torch.stack([ffn.zeros for ffn in ffns])
    penalties *= torch.exp(PENALTY_RATE * (ZEROS - zeros).clamp(-0.1, 0.1))
    return loss.item(), zeros


def save(path, state):
    """Writes a checkpoint that is whole or not there."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=1700)
    parser.add_argument("--stop", type=int, help="stop after this step")
    args = parser.parse_args()
    corpus = json.loads((args.folder / "corpus.json").read_text())
    tokens, test = torch.tensor(corpus["train"]), torch.tensor(corpus["test"])
    # Paragraphs end with a line break, which is a token of its own; chapters begin after END.
    starts = (((tokens == 1 + ord("\n")) | (tokens == END)).nonzero()[:, 0] + 1)[:-1]
    torch.manual_seed(SEED)
    shape = Shape()
    model = Model(shape, DROPOUT)
    optimizer = optimizer_of(model)
    penalties = torch.full((shape.n_layers,), PENALTY_START)
    first, seconds = 0, 0.0
    path = args.folder / "checkpoint.pt"
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        penalties, first, seconds = state["penalties"], state["step"], state["seconds"]
    print(f"{sum(p.numel() for p in model.parameters())} parameters, from step {first}", flush=True)
    saved = begun = time.monotonic()
    seconds_before = seconds
    mean = None
    last = min(args.steps, args.stop or args.steps)
    for step in range(first, last):
        loss, zeros = train_step(model, optimizer, tokens, starts, penalties, step, args.steps)
        mean = loss if mean is None else 0.95 * mean + 0.05 * loss
        now = time.monotonic()
        seconds = seconds_before + now - begun
        done = step + 1 == last
        if step % 20 == 0 or done:
            shares = " ".join(f"{100 * share:.0f}" for share in zeros)
            print(f"{step} {seconds:.0f} s loss {mean:.3f} zeros {shares} %", flush=True)
        if now - saved > CHECKPOINT_SECONDS or done:
            saved = now
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"penalties": penalties, "step": step + 1, "seconds": seconds}
            save(path, state | {"shape": dataclasses.asdict(shape)})
        if step % 200 == 199 or done:
            loss, zeros = held_out(model, test, SHORT_LEN)
            shares = " ".join(f"{100 * share:.1f}" for share in zeros)
            print(f"held out: {loss:.4f} nats a token, zeros {shares} %", flush=True)


if __name__ == "__main__":
    main()
