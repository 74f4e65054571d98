"""Pulse equalisation: a thing that convolutions cannot do and one layer of attention can.

A signal has two triangles and two rectangles. In the output, both triangles have the mean height of
the two, and both rectangles that of theirs (after "13.2. Attention Mechanisms", Geneva). A
convolution sees a few samples around each place, so it cannot know the height of a partner far
away. In a layer of self-attention every place asks the whole signal for those that are like it.

In a second task the two leftmost pulses are a pair and the two rightmost. What a pulse looks like
says nothing now, and attention is blind to places: it fails too, until the bits of each place are
given to it with the signal.

    python examples/pulse_equalisation.py --out FOLDER     # three minutes on one core
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from captioner.attention.attention import Attention
from captioner.attention.masks import masked_softmax
from captioner.attention.positions import Positions, word_places

try:
    from matplotlib.figure import Figure
except ImportError:
    raise SystemExit("this example draws: pip install matplotlib") from None

LENGTH = 100  # samples of a signal
WIDTH = 64  # channels


def pulses(count: int, *, by_place: bool) -> tuple[Tensor, Tensor]:
    """Draw signals and what they should become: both (count, 100, 1)."""
    slot = LENGTH / 4  # one pulse in each quarter, so that none covers another
    centers = (torch.arange(4) + 0.5) * slot + (torch.rand(count, 4) - 0.5) * 0.5 * slot
    heights = 1 + 24 * torch.rand(count, 4)
    halves = 2.5 + 3 * torch.rand(count, 4)  # of the widths
    triangle = torch.rand(count, 4).argsort(1) < 2  # two of the four, anywhere
    pair = (torch.arange(4) < 2).expand(count, 4) if by_place else triangle
    means = torch.where(
        pair,
        (heights * pair).sum(1, keepdim=True) / 2,
        (heights * ~pair).sum(1, keepdim=True) / 2,
    )
    far = (torch.arange(LENGTH)[:, None] - centers[:, None]).abs() / halves[:, None]
    shapes = torch.where(triangle[:, None], (1 - far).clamp(min=0), (far < 1).float())
    return (shapes * heights[:, None]).sum(-1, keepdim=True), (shapes * means[:, None]).sum(
        -1, keepdim=True
    )


class Convolution(nn.Module):
    """A convolution over the samples of signals (B, L, channels)."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.inside = nn.Conv1d(ins, outs, kernel_size=5, padding=2)

    def forward(self, signals: Tensor) -> Tensor:
        """Slide over (B, L, ins): (B, L, outs)."""
        return self.inside(signals.transpose(1, 2)).transpose(1, 2)


class SelfAttention(nn.Module):
    """Every place asks all places: queries, keys and values are projections of one signal."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(
            score="multiplicative",
            query_dim=WIDTH,
            key_dim=WIDTH,
            attention_dim=WIDTH,
            value_dim=WIDTH,
            value_bias=False,
        )

    def forward(self, signals: Tensor) -> Tensor:
        """Average (B, L, 64) as each place sees fit: (B, L, 64)."""
        return self.attention.attend(signals, self.attention.project(signals))


class Places(nn.Module):
    """Appends the bits of its place to every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions(kind="binary", dim=1, axes=1, length=LENGTH)

    def forward(self, signals: Tensor) -> Tensor:
        """Append to (B, L, 1): (B, L, 1 + 7)."""
        return self.positions(signals, word_places(LENGTH))


def convolutional() -> nn.Sequential:
    """Five convolutions, each output sample made from 21 input samples: 62,337 parameters."""
    parts: list[nn.Module] = [Convolution(1, WIDTH), nn.ReLU()]
    for _ in range(3):
        parts += [Convolution(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*parts, Convolution(WIDTH, 1))


def attentive(*, places: bool = False) -> nn.Sequential:
    """Attention in the place of the middle convolution: 54,081 parameters without places."""
    start = [Places(), Convolution(8, WIDTH)] if places else [Convolution(1, WIDTH)]
    return nn.Sequential(
        *start,
        nn.ReLU(),
        Convolution(WIDTH, WIDTH),
        nn.ReLU(),
        SelfAttention(),
        Convolution(WIDTH, WIDTH),
        nn.ReLU(),
        Convolution(WIDTH, 1),
    )


def train(model: nn.Sequential, *, by_place: bool, steps: int) -> float:
    """Train on signals drawn anew at every step; return the error on new ones.

    The error is the mean square, as a share of what leaving the signal as it is would cost.
    """
    signals, wanted = pulses(2000, by_place=by_place)
    center, scale = signals.mean(), signals.std()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        signals, wanted = pulses(64, by_place=by_place)
        guess = model((signals - center) / scale)
        loss = (guess - (wanted - center) / scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        signals, wanted = pulses(500, by_place=by_place)
        guess = model((signals - center) / scale) * scale + center
        return ((guess - wanted).square().mean() / (signals - wanted).square().mean()).item()


@torch.no_grad()
def draw(models: dict[str, tuple[nn.Sequential, bool]], path: Path) -> None:
    """Draw one signal through every model, and where the attention of the last looks."""
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    axes = figure.subplots(2, len(models))
    tasks = []
    for by_place in (False, True):
        torch.manual_seed(7)  # the same signals
        tasks.append(pulses(500, by_place=by_place))
    signals = tasks[0][0]
    center, scale = signals.mean(), signals.std()
    # The signal whose two tasks are furthest apart.
    row = int((tasks[0][1] - tasks[1][1]).square().sum((1, 2)).argmax())
    for column, (title, (model, by_place)) in enumerate(models.items()):
        inputs = (signals[row : row + 1] - center) / scale
        above, below = axes[:, column]
        above.plot(signals[row].numpy(), color="silver", label="signal")
        above.plot(tasks[by_place][1][row].numpy(), "k--", linewidth=1, label="wanted")
        above.plot((model(inputs)[0] * scale + center).numpy(), color="firebrick", label="output")
        above.set_title(title, fontsize=10)
        below.set_axis_off()
        for part in model:
            if isinstance(part, SelfAttention):
                attention = part.attention
                scores = attention.score(inputs, attention.score.project(inputs))
                below.set_axis_on()
                below.imshow(masked_softmax(scores)[0, :, 0].numpy(), cmap="magma", vmax=0.2)
                below.set_xlabel("looked at")
            inputs = part(inputs)
    axes[1, 0].legend(*axes[0, 0].get_legend_handles_labels(), frameon=False, loc="upper center")
    axes[1, 1].set_ylabel("asked by")
    figure.savefig(path, dpi=100)


def run(out: Path, *, steps: int = 600) -> dict[str, float]:
    """Train four models, draw them, and say how far each is from what is wanted."""
    torch.manual_seed(1)
    models = {
        "shapes: convolutions": (convolutional(), False),
        "shapes: attention": (attentive(), False),
        "sides: attention": (attentive(), True),
        "sides: attention with places": (attentive(places=True), True),
    }
    results = {}
    for name, (model, by_place) in models.items():
        results[name] = train(model, by_place=by_place, steps=steps)
        print(f"{name}: {results[name]:.3f} of the error of doing nothing", flush=True)
    draw(models, out / "pulse_equalisation.png")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="where the figure goes")
    run(parser.parse_args().out)
