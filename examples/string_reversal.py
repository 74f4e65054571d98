"""Reverse strings with a sequence-to-sequence model, with and without attention.

One LSTM reads a string of the letters a, b, c, d, and another LSTM writes it backwards. Without
attention, the state between them has to hold the whole string, which fails for long strings. With
attention, each step of the writer compares its state with the reader's state at every letter (dot
product) and uses the weighted mean of these states (Luong et al. 2015). The model learns to attend
to the last letter first, so its weights form the anti-diagonal.

    python examples/string_reversal.py --out FOLDER        # two minutes on one core
    python examples/string_reversal.py --forward           # the reader reads only forwards

If the reader reads in both directions, 78.7 % of the letters are right without attention and 99.9 %
with attention. If it reads only forwards, and so saw the last letters most recently, 84.2 % and
99.1 % are right.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from captioner.model.attention import Attention

try:
    from matplotlib.figure import Figure
except ImportError:
    raise SystemExit("this example draws: pip install matplotlib") from None

LETTERS = "abcd"
BEGIN = len(LETTERS)  # the start token of the writer
LENGTH = 30  # the longest string
SIZE = 64  # numbers of a state
STEPS = 2000  # of training


class Reverser(nn.Module):
    """Two LSTMs, with or without attention between them.

    The reader has two directions with half of the size each, or only the forward direction. In
    the second case a state also depends on the letters before it, so the attention may be shifted
    by one letter.
    """

    def __init__(self, *, attends: bool, forward: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS) + 1, 16)
        size = SIZE if forward else SIZE // 2
        self.reader = nn.LSTM(16, size, batch_first=True, bidirectional=not forward)
        self.writer = nn.LSTM(16, SIZE, batch_first=True)
        self.attention = Attention(
            score="dot" if attends else "none", query_dim=SIZE, key_dim=SIZE, attention_dim=SIZE
        )
        self.attends = attends
        self.attentional = nn.Linear(2 * SIZE if attends else SIZE, SIZE)
        self.output = nn.Linear(SIZE, len(LETTERS))

    def forward(self, strings: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Read strings (B, L) and score the letter after each letter of `before` (B, T).

        Returns the scores (B, T, 4) and the attention (B, T, L).
        """
        read, ends = self.reader(self.embedding(strings))
        # The writer starts with the last states of both directions (2, B, S/2), concatenated.
        state = tuple(end.transpose(0, 1).reshape(1, len(strings), SIZE) for end in ends)
        written, _ = self.writer(self.embedding(before), state)
        context, weights = self.attention(written, self.attention.project(read))
        both = torch.cat([context, written], dim=-1) if self.attends else written
        return self.output(self.attentional(both).tanh()), weights.squeeze(2)

    @torch.no_grad()
    def reverse(self, strings: Tensor) -> tuple[Tensor, Tensor]:
        """Decode greedily; return the letters (B, L) and the attention (B, L, L)."""
        before = torch.full((len(strings), 1), BEGIN)
        for _ in range(strings.shape[1]):
            scores, weights = self(strings, before)
            before = torch.cat([before, scores[:, -1:].argmax(-1)], dim=1)
        return before[:, 1:], weights


def train(*, attends: bool, forward: bool, steps: int) -> Reverser:
    """Train on random strings, drawn anew at every step."""
    torch.manual_seed(1)
    model = Reverser(attends=attends, forward=forward)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in tqdm(range(steps), desc="training", unit="step"):
        # The strings of a batch have the same length, so they need no padding.
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


def accuracy(model: Reverser) -> Tensor:
    """Return the share of right letters in 50 test strings of each length from 1, (LENGTH,)."""
    torch.manual_seed(2)
    shares = []
    for length in range(1, LENGTH + 1):
        strings = torch.randint(len(LETTERS), (50, length))
        shares.append((model.reverse(strings)[0] == strings.flip(1)).float().mean())
    return torch.stack(shares)


def share(by_length: Tensor) -> float:
    """Return the share of right letters over all strings, weighted by their length."""
    lengths = torch.arange(1, LENGTH + 1)
    return ((by_length * lengths).sum() / lengths.sum()).item()


def draw(model: Reverser, text: str, accuracies: dict[str, Tensor], path: Path) -> Tensor:
    """Draw the attention for a string and the accuracies; return the attention (written, read)."""
    strings = torch.tensor([[LETTERS.index(letter) for letter in text]])
    letters, weights = model.reverse(strings)
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(weights[0].numpy(), cmap="magma", vmin=0, vmax=1)
    left.set_xticks(range(len(text)), list(text))
    left.set_yticks(range(len(text)), [LETTERS[letter] for letter in letters[0]])
    left.set_xlabel("read")
    left.set_ylabel("written, downwards")
    left.set_title("where each letter looked")
    for (name, by_length), color in zip(
        accuracies.items(), ("steelblue", "firebrick"), strict=True
    ):
        line = range(1, LENGTH + 1)
        label = f"{name} attention, {share(by_length):.1%} of all letters"
        right.plot(line, by_length.numpy(), color=color, label=label)
    right.axhline(1 / len(LETTERS), color="silver", linestyle="--", label="chance")
    right.set_ylim(0, 1.03)
    right.set_xlabel("letters in the string")
    right.set_title("letters right")
    right.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=100)
    return weights[0]


def run(out: Path, *, forward: bool = False) -> dict[str, Tensor]:
    """Train and draw both models; return their accuracies."""
    models = {
        "without": train(attends=False, forward=forward, steps=STEPS),
        "with": train(attends=True, forward=forward, steps=STEPS),
    }
    accuracies = {name: accuracy(model) for name, model in models.items()}
    draw(models["with"], "abacadabacc", accuracies, out / "string_reversal.png")
    return accuracies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
    parser.add_argument("--forward", action="store_true", help="read only forwards")
    arguments = parser.parse_args()
    for name, by_length in run(arguments.out, forward=arguments.forward).items():
        print(f"letters right {name} attention: {share(by_length):.1%}")
