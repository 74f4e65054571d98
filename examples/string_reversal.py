"""Reversing strings: what a sequence-to-sequence model gains by attention.

An LSTM reads a string of the letters a, b, c, d from both sides; another writes it backwards.
Without attention, all of the string has to fit into the state between the two. With attention,
each step of the writer compares its state with the reader's at every letter (a dot product: both
are of one size) and writes from what it finds there (Luong et al. 2015). It learns by itself to
look at the last letter first: its weights are the anti-diagonal.

    python examples/string_reversal.py --out FOLDER        # two minutes on one core
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.attention.attention import Attention

try:
    from matplotlib.figure import Figure
except ImportError:
    raise SystemExit("this example draws: pip install matplotlib") from None

LETTERS = "abcd"
BEGIN = len(LETTERS)  # what the writer reads before its first letter
LENGTH = 30  # of the longest string
SIZE = 64  # of the states


class Reverser(nn.Module):
    """Two LSTMs, with or without attention between them."""

    def __init__(self, *, attends: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS) + 1, 16)
        # Read from one side, the state after a letter knows the letter before as well, and
        # attention may settle one off. From both sides, a letter is known best at its own place.
        self.reader = nn.LSTM(16, SIZE // 2, batch_first=True, bidirectional=True)
        self.writer = nn.LSTM(16, SIZE, batch_first=True)
        self.attention = Attention(
            score="dot" if attends else "none", query_dim=SIZE, key_dim=SIZE, attention_dim=SIZE
        )
        self.attends = attends
        self.attentional = nn.Linear(2 * SIZE if attends else SIZE, SIZE)
        self.output = nn.Linear(SIZE, len(LETTERS))

    def forward(self, strings: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Read strings (B, L) and write after each letter of `before` (B, T).

        Returns the scores of the letters (B, T, 4), and where each looked (B, T, L).
        """
        read, ends = self.reader(self.embedding(strings))
        # The last state of each direction (2, B, S/2), side by side, is where the writer begins.
        state = tuple(end.transpose(0, 1).reshape(1, len(strings), SIZE) for end in ends)
        written, _ = self.writer(self.embedding(before), state)
        context, weights = self.attention(written, self.attention.project(read))
        both = torch.cat([context, written], dim=-1) if self.attends else written
        return self.output(self.attentional(both).tanh()), weights.squeeze(2)

    @torch.no_grad()
    def reverse(self, strings: Tensor) -> tuple[Tensor, Tensor]:
        """Write one letter after the other, each read again: letters (B, L), weights (B, L, L)."""
        before = torch.full((len(strings), 1), BEGIN)
        for _ in range(strings.shape[1]):
            scores, weights = self(strings, before)
            before = torch.cat([before, scores[:, -1:].argmax(-1)], dim=1)
        return before[:, 1:], weights


def train(*, attends: bool, steps: int) -> Reverser:
    """Train on random strings; no string is shown on purpose a second time."""
    torch.manual_seed(1)
    model = Reverser(attends=attends)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(steps):
        # All strings of a batch are of one length, so that there is nothing to pad.
        length = int(torch.randint(1, LENGTH + 1, ()))
        strings = torch.randint(len(LETTERS), (128, length))
        right = strings.flip(1)
        before = F.pad(right[:, :-1], (1, 0), value=BEGIN)
        scores, _ = model(strings, before)
        loss = F.cross_entropy(scores.flatten(0, 1), right.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def accuracy(model: Reverser) -> float:
    """The share of right letters in 50 new strings of each length."""
    torch.manual_seed(2)
    right, letters = 0, 0
    for length in range(1, LENGTH + 1):
        strings = torch.randint(len(LETTERS), (50, length))
        right += int((model.reverse(strings)[0] == strings.flip(1)).sum())
        letters += strings.numel()
    return right / letters


def draw(model: Reverser, text: str, path: Path) -> Tensor:
    """Draw where each written letter looked; return the weights (written, read)."""
    strings = torch.tensor([[LETTERS.index(letter) for letter in text]])
    letters, weights = model.reverse(strings)
    figure = Figure(figsize=(4.5, 4.5), layout="constrained")
    axis = figure.subplots()
    axis.imshow(weights[0].numpy(), cmap="magma", vmin=0, vmax=1)
    axis.set_xticks(range(len(text)), list(text))
    axis.set_yticks(range(len(text)), [LETTERS[letter] for letter in letters[0]])
    axis.set_xlabel("read")
    axis.set_ylabel("written, downwards")
    figure.savefig(path, dpi=100)
    return weights[0]


def run(out: Path, *, steps: int = 2000) -> tuple[dict[str, float], Tensor]:
    """Train both, draw the second's attention, and say how many letters each gets right."""
    without = train(attends=False, steps=steps)
    with_attention = train(attends=True, steps=steps)
    weights = draw(with_attention, "abacadabacc", out / "string_reversal.png")
    return {"without": accuracy(without), "with": accuracy(with_attention)}, weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="where the figure goes")
    for key, value in run(parser.parse_args().out)[0].items():
        print(f"letters right {key} attention: {value:.1%}")
