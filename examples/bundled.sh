#!/bin/sh
# The bundled checkpoint, whole, from ImageNet's weights:
#   sh examples/bundled.sh DIR efficientnet_v2_b0.safetensors OUT [OPTION ...]
# DIR holds flickr8k/ and coco/, as in the recipe; OPTIONs go to `captioner train`, such as
# --device cuda. The end is OUT/captioner.safetensors with its trust. Two cores with AVX-512 bfloat16
# take an hour and three quarters, and some minutes more for trust. A DIR of a few hundred photos
# rehearses it; of very few, trust has too little to learn from, and the last two commands are left.
set -eu
data=$1 encoder=$2 out=$3
shift 3

captioner train bundled --data.root "$data" --encoder_weights "$encoder" --out "$out/first" \
    --keep_epochs true "$@"
# Rewards from the middle of the third stage end elsewhere in the same basin: their mean is better.
captioner train bundled --data.root "$data" --weights "$out/first/epochs/3.4.safetensors" --seed 2 \
    --out "$out/second" "$@" --stages "[{epochs: 2, batch_size: 64, learning_rate: 1.0e-4, \
warmup: 20, self_critical: {samples: 5, cross_entropy: 0.2, maximum_length: 16}}]"
captioner average "$out/first/last.safetensors" "$out/second/last.safetensors" \
    --out "$out/mean.safetensors"
captioner trust "$out/mean.safetensors" "$data/coco" "$data/flickr8k" --dtype float32
captioner evaluate "$data/flickr8k" --checkpoint "$out/mean.safetensors" --dtype float32 \
    --save "$out/captioner.safetensors"
