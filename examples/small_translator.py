"""A small translator: a complete transformer, encoder and decoder, made of captioner's parts.

The model is that of Vaswani et al. (2017) with the norm before each part. It translates into an
invented language. In the translation of

    the small dogs see a red bird

the verb comes last and adjectives follow their nouns. Articles, adjectives and verbs agree with the
nouns, which have a gender (-a or -o) and a number (-s):

    los canos piccos una ava russa vidan        (the dogs small, a bird red, see)

Training covers only a small part of all possible sentences. To translate the others, the model has
to learn which words belong together; the heads show this.

    python examples/small_translator.py --out FOLDER       # two minutes on one core
"""

from __future__ import annotations

import argparse
import itertools
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from captioner.model.attention import Attention, causal
from captioner.model.positions import Positions

try:
    from matplotlib.figure import Figure
except ImportError:
    raise SystemExit("this example draws: pip install matplotlib") from None

# Stem and gender of the translation, by English noun.
NOUNS = {
    "dog": ("can", "o"), "cat": ("gatt", "o"), "bird": ("av", "a"), "fish": ("pesc", "o"),
    "horse": ("cavall", "o"), "cow": ("vacc", "a"), "bee": ("ap", "a"), "ant": ("formic", "a"),
}  # fmt: skip
ADJECTIVES = {"small": "picc", "red": "russ", "old": "vecch", "fast": "veloc", "black": "ner"}
VERBS = {"see": "vid", "hear": "sent", "follow": "segu", "love": "am"}
ARTICLES = {"the": "l", "a": "un"}

WIDTH, HEADS, LAYERS = 64, 4, 2
PAD, BEGIN, END = 0, 1, 2


def say(article: str, adjective: str | None, noun: str, *, plural: bool) -> tuple[str, str]:
    """Return a noun phrase in both languages."""
    stem, gender = NOUNS[noun]
    ending = gender + ("s" if plural else "")
    english = [article if not (plural and article == "a") else "some"]
    english += [adjective] if adjective else []
    english += [noun + "s" if plural else noun]
    foreign = [ARTICLES[article] + ending, stem + ending]
    foreign += [ADJECTIVES[adjective] + ending] if adjective else []
    return " ".join(english), " ".join(foreign)


def all_pairs() -> list[tuple[str, str]]:
    """Return all possible sentences with their translations."""
    adjectives = [None, *ADJECTIVES]
    someone = [
        (*say(article, adjective, noun, plural=plural), plural)
        for article, adjective, noun, plural in itertools.product(
            ARTICLES, adjectives, NOUNS, (False, True)
        )
    ]
    pairs = []
    for (who, chi, many), (whom, cui, _) in itertools.product(someone, someone):
        for verb, stem in VERBS.items():
            english = f"{who} {verb if many else verb + 's'} {whom}"
            pairs.append((english, f"{chi} {cui} {stem}{'an' if many else 'a'}"))
    return pairs


class Words:
    """The vocabulary of a language."""

    def __init__(self, sentences: list[str]) -> None:
        known = sorted({word for sentence in sentences for word in sentence.split()})
        self.words = ["<pad>", "<begin>", "<end>", *known]
        self.numbers = {word: number for number, word in enumerate(self.words)}

    def encode(self, sentences: list[str]) -> Tensor:
        """Return the tokens (B, L): <begin>, the words, <end>, and <pad>."""
        rows = [[BEGIN, *(self.numbers[word] for word in s.split()), END] for s in sentences]
        length = max(map(len, rows))
        return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])

    def decode(self, row: list[int]) -> str:
        """Return the words up to <end>."""
        stop = row.index(END) if END in row else len(row)
        return " ".join(self.words[number] for number in row[:stop])


def attention() -> Attention:
    """Return scaled dot-product attention with several heads."""
    return Attention(
        score="scaled_dot",
        query_dim=WIDTH,
        key_dim=WIDTH,
        attention_dim=WIDTH,
        value_dim=WIDTH,
        heads=HEADS,
    )


class Part(nn.Module):
    """Layer norm, attention and a linear map, with a residual connection."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.norm, self.inside = nn.LayerNorm(WIDTH), inside
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor, seen: Tensor | None, mask: Tensor | None) -> Tensor:
        """Attend from words (B, T, n) to `seen` (B, L, n), or to the words if `seen` is None."""
        queries = self.norm(words)
        grid = self.inside.project(queries if seen is None else seen)
        context, self.weights = self.inside(queries, grid, mask)  # kept for `draw`
        return words + self.output(context)


class Think(nn.Module):
    """Layer norm and two linear maps with a ReLU for each word, with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, words: Tensor) -> Tensor:
        """Transform words (B, T, n)."""
        return words + self.inside(words)


class Translator(nn.Module):
    """An encoder for English and a decoder for the other language."""

    def __init__(self, english: int, foreign: int) -> None:
        super().__init__()
        self.english, self.foreign = nn.Embedding(english, WIDTH), nn.Embedding(foreign, WIDTH)
        self.positions = Positions(kind="sine", dim=WIDTH, axes=1, length=32, scaled=False)
        self.read = nn.ModuleList(Part(attention()) for _ in range(LAYERS))
        self.read_think = nn.ModuleList(Think() for _ in range(LAYERS))
        self.write = nn.ModuleList(Part(attention()) for _ in range(LAYERS))
        self.look = nn.ModuleList(Part(attention()) for _ in range(LAYERS))
        self.write_think = nn.ModuleList(Think() for _ in range(LAYERS))
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, foreign)

    def encode(self, sentences: Tensor) -> Tensor:
        """Encode English tokens (B, L) as (B, L, n)."""
        visible = (sentences != PAD)[:, None]
        words = self.positions(self.english(sentences))
        for look, think in zip(self.read, self.read_think, strict=True):
            words = think(look(words, None, visible))
        return words

    def forward(self, sentences: Tensor, before: Tensor) -> Tensor:
        """Score the word after each word of `before` (B, T); returns (B, T, foreign words)."""
        visible, seen = (sentences != PAD)[:, None], self.encode(sentences)
        words = self.positions(self.foreign(before))
        mask = causal(before.shape[1], before.shape[1])
        for write, look, think in zip(self.write, self.look, self.write_think, strict=True):
            words = think(look(write(words, None, mask), seen, visible))
        return self.output(self.norm(words))

    @torch.no_grad()
    def translate(self, sentences: Tensor, *, longest: int = 10) -> Tensor:
        """Decode greedily; return the tokens (B, T)."""
        written = torch.full((len(sentences), 1), BEGIN)
        for _ in range(longest):
            following = self(sentences, written)[:, -1:].argmax(-1)
            written = torch.cat([written, following], dim=1)
        return written[:, 1:]


def train(model: Translator, english: Tensor, foreign: Tensor, *, steps: int) -> None:
    """Train with teacher forcing, in batches of 128 pairs."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in tqdm(range(steps), desc="training", unit="step"):
        rows = torch.randint(len(english), (128,))
        right = foreign[rows]
        scores = model(english[rows], right[:, :-1])
        loss = F.cross_entropy(
            scores.flatten(0, 1), right[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.05
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def draw(model: Translator, sentence: str, languages: tuple[Words, Words], path: Path) -> str:
    """Draw the attention of each head of the last layer; return the translation."""
    english, foreign = languages
    row = english.encode([sentence])
    written = model.translate(row)
    text = foreign.decode(written[0].tolist())
    count = len(text.split())
    model(row, torch.cat([torch.tensor([[BEGIN]]), written[:, : count - 1]], dim=1))
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, HEADS + 1, sharey=True)
    weights = model.look[-1].weights[0]  # (T, H, L)
    pictures = [*weights.unbind(1), weights.mean(1)]
    names = [*(f"head {head + 1}" for head in range(HEADS)), "mean"]
    read = [english.words[number] for number in row[0]]
    for axis, name, picture in zip(axes, names, pictures, strict=True):
        axis.imshow(picture.numpy(), cmap="magma", vmin=0, vmax=1, aspect="auto")
        axis.set_title(name)
        axis.set_xticks(range(len(read)), read, rotation=90)
    axes[0].set_yticks(range(count), text.split())
    figure.savefig(path, dpi=100)
    return text


def run(out: Path, *, steps: int = 1200) -> dict[str, float | str]:
    """Train on some sentences; return the share of unseen sentences that are translated exactly."""
    torch.manual_seed(1)
    pairs = all_pairs()
    random.Random(1).shuffle(pairs)
    english, foreign = (Words([pair[side] for pair in pairs]) for side in (0, 1))
    seen, unseen = pairs[:8000], pairs[-1000:]
    model = Translator(len(english.words), len(foreign.words))
    train(
        model,
        english.encode([pair[0] for pair in seen]),
        foreign.encode([pair[1] for pair in seen]),
        steps=steps,
    )
    written = model.translate(english.encode([pair[0] for pair in unseen]))
    right = sum(
        foreign.decode(row) == pair[1] for row, pair in zip(written.tolist(), unseen, strict=True)
    )
    sentence = "the small dogs see a red bird"
    text = draw(model, sentence, (english, foreign), out / "small_translator.png")
    return {
        "sentences of the language": len(pairs),
        "seen in training": len(seen),
        "unseen ones exactly right": right / len(unseen),
        sentence: text,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
    for key, value in run(parser.parse_args().out).items():
        print(f"{key}: {value}")
