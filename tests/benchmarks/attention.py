"""How long a decoding step takes with every attention, relative to the additive one.

16 images x 5 hypotheses, a grid of 7 x 7 cells with 1280 features, float32, the sizes of the
bundled checkpoint; the transformer as wide as gives it as many parameters. Every variant's step is
timed in turn, round by round, so that a disturbance meets all of them; the median of its rounds
counts.

    python -m tests.benchmarks.attention --threads 2

The bars: the dot family takes at most 0.8 of the time of additive, the transformer at most 1.5.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import Decoder, build_decoder
from captioner_training.ablation import count_parameters, equal_transformer
from tests.benchmarks.measuring import in_turns

IMAGES, BEAM, STEPS = 16, 5, 10
SIZES: dict[str, Any] = {
    "embedding_dim": 512,
    "hidden_dim": 512,
    "attention_dim": 256,
    "value_dim": 512,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "additive": {},
    "none": {"score": "none"},
    "multiplicative": {"score": "multiplicative"},
    "dot": {"score": "dot"},
    "scaled_dot": {"score": "scaled_dot"},
    "scaled_dot, 4 heads": {"score": "scaled_dot", "heads": 4},
    "additive, 4 heads": {"heads": 4},
    "additive, current": {"query": "current"},
    "scaled_dot, current": {"score": "scaled_dot", "query": "current"},
    "top_down, additive": {"kind": "top_down"},
    "top_down, scaled_dot": {"kind": "top_down", "score": "scaled_dot"},
}
PLACES = {"grid_dim": 1280, "vocabulary_size": 3574}


@torch.inference_mode()
def steps(decoder: Decoder, features: torch.Tensor) -> None:
    """Take STEPS steps of the decoder, each with the choice of parents that a beam makes."""
    state = decoder.start(features).expand(BEAM)
    parents = torch.randint(BEAM, (IMAGES, BEAM))
    tokens = torch.randint(4, 3000, (IMAGES, BEAM))
    for _ in range(STEPS):
        output = decoder.step(tokens, state)
        state = output.state.select(parents)


def main() -> None:
    """Print parameters and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    features = torch.randn(IMAGES, 49, 1280)
    configs = {name: DecoderConfig(**SIZES, **variant) for name, variant in VARIANTS.items()}
    wanted = count_parameters(configs["additive"], **PLACES)
    configs["transformer, 4 heads"] = equal_transformer(
        configs["additive"], parameters=wanted, **PLACES
    )
    decoders = {name: build_decoder(config, **PLACES).eval() for name, config in configs.items()}
    for decoder in decoders.values():
        decoder.tabulate()
    ways = {name: partial(steps, decoder, features) for name, decoder in decoders.items()}
    times = in_turns(ways, rounds=arguments.rounds)
    print(f"{arguments.threads} threads, {IMAGES} images x {BEAM} hypotheses, float32")
    print(f"{'':22}  parameters  ms a step  of additive")
    for name, decoder in decoders.items():
        relative = times[name] / times["additive"]
        parameters = sum(p.numel() for p in decoder.parameters()) / 1e6
        print(f"{name:22} {parameters:9.2f} M {1e3 * times[name] / STEPS:9.2f} {relative:11.2f}")


if __name__ == "__main__":
    main()
