"""Calibration: whether words said with probability p come true in a share p of the cases."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner.vocabulary import PAD, Vocabulary
from captioner_training.data.dataset import CaptionedImage, collate, encode_captions
from captioner_training.data.loader import make_split_loader

__all__ = ["calibration_error", "measure_calibration"]


def calibration_error(confidence: Tensor, right: Tensor, *, bins: int = 10) -> float:
    """Expected calibration error (Guo et al. 2017, section 2).

    The predictions are put into bins of equal width by their confidence; the error is how far
    the mean confidence of a bin is from its share of right ones, weighted by the bins' sizes.

    Args:
        confidence: (N,), in 0..1, what was said of each prediction.
        right: (N,), 1 where it came true, else 0.
        bins: how many.

    """
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64)
    gaps.index_add_(0, bin_of, confidence.double() - right.double())
    return float(gaps.abs().sum() / len(confidence))


@torch.inference_mode()
def measure_calibration(
    model: CaptionModel,
    images: Sequence[CaptionedImage],
    *,
    transform: Transform,
    vocabulary: Vocabulary,
    maximum_length: int,
    autocast: torch.autocast,
    workers: int = 2,
    batch_size: int = 50,
) -> dict[str, float]:
    """Compare the likeliest next word after each start of a reference with what the reference says.

    Returns:
        `tokens`: how many were compared, the ends of sentences among them; `confidence` and
        `accuracy`: the mean probability of the likeliest word, and how often the reference says
        it, in percent; `error`: see calibration_error, in percent.

    """
    device = next(model.parameters()).device
    model.eval()
    loader = make_split_loader(images, transform, workers=workers, batch_size=batch_size)
    captions = encode_captions(images, vocabulary)
    confidences, rights = [], []
    for pixels, index in tqdm(loader, desc="calibration", leave=False, disable=None):
        mine = [captions[at] for at in index.tolist()]
        tokens = collate(pixels, mine, maximum_length=maximum_length).tokens.to(device)
        targets = tokens[..., 1:]
        said = targets != PAD
        with autocast:
            grid = model.encode(transform.normalize(pixels.to(device)))
            deep = model.decoder(grid.features, tokens[..., :-1]).deep[said]
            confidence, word = model.decoder.logits(deep).float().softmax(dim=-1).max(dim=-1)
        confidences.append(confidence.cpu())
        rights.append((word == targets[said]).cpu())
    confidence, right = torch.cat(confidences), torch.cat(rights).float()
    return {
        "tokens": len(right),
        "confidence": 100 * float(confidence.mean()),
        "accuracy": 100 * float(right.mean()),
        "error": 100 * calibration_error(confidence, right),
    }
