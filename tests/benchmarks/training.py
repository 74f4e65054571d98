"""Photos per second of a training step on a CPU, with the sizes of `coco-fast`.

    python -m tests.benchmarks.training [--threads 2]

The model has random weights and 9,490 words. Decoding of JPEG files is not included.
"""

from __future__ import annotations

import argparse

import torch

from tests.benchmarks.gpu import Bench, steps

STEPS = (("frozen", 128), ("fine-tuning", 64))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    bench = Bench(torch.device("cpu"), small=False)
    steps(bench, "efficientnet_v2_b0", 224, kinds=STEPS, compiled=False)


if __name__ == "__main__":
    main()
