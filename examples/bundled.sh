#!/bin/sh
# Train the bundled checkpoint from ImageNet weights, with all steps:
#   sh examples/bundled.sh DIR efficientnet_v2_b0.safetensors OUT [OPTION ...]
# DIR contains flickr8k/ and coco/, as the recipe expects. OPTIONs are passed to `captioner train`, for
# example --device cuda. The result is OUT/captioner.safetensors with its trust file. On two cores with
# AVX-512 bfloat16 this takes about 105 minutes, plus a few minutes for trust. A DIR with a few hundred
# photos is enough for a trial run; with very few photos, `captioner trust` fails and ends the script.
set -eu
data=$1 encoder=$2 out=$3
shift 3

captioner train bundled --data.root "$data" --encoder_weights "$encoder" --out "$out/first" \
    --keep_epochs true "$@"
# Self-critical training from the middle of the third stage reaches other weights in the same basin;
# the mean of both scores higher.
captioner train bundled --data.root "$data" --weights "$out/first/epochs/3.4.safetensors" --seed 2 \
    --out "$out/second" "$@" --stages "[{epochs: 2, batch_size: 64, learning_rate: 1.0e-4, \
warmup: 20, self_critical: {samples: 5, cross_entropy: 0.2, maximum_length: 16}}]"
captioner average "$out/first/last.safetensors" "$out/second/last.safetensors" \
    --out "$out/captioner.safetensors"
captioner trust "$out/captioner.safetensors" "$data/coco" "$data/flickr8k" --dtype float32
captioner evaluate "$data/flickr8k" --checkpoint "$out/captioner.safetensors" --dtype float32
