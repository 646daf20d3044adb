#!/bin/bash
# megatron-core's simple training loop, from the wheel alone, tensor parallel on two processes.
# Megatron's own file, unedited, from a checkout:
#   SCRIPT=Megatron-LM/examples/run_simple_mcore_train_loop.py bash run.sh
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

OUT=${OUT:-simple-loop}
PROCESSES=${PROCESSES:-2}
ITERATIONS=${ITERATIONS:-100}
SCRIPT=$(realpath "${SCRIPT:-$HERE/train.py}")

mkdir -p "$OUT"
OUT=$(realpath "$OUT")
export OUT ITERATIONS
cd "$OUT"                             # Megatron's file saves into the directory where it runs
accel-bridge run -- torchrun --standalone --nproc-per-node "$PROCESSES" "$SCRIPT" 2>&1 \
    | tee "$OUT/training.log"

accel-bridge plot "$OUT/training.log" --names "simple-loop" --png "$OUT/curve.png"
