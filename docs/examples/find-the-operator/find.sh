#!/bin/bash
# Inject an error into a training, and go from the loss to the operator with files alone.
#   PROCESSES=2 bash find.sh
set -euo pipefail

OUT=${OUT:-operator}
PROCESSES=${PROCESSES:-1}
HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$OUT"

MODEL="--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64
    --max-position-embeddings 64 --micro-batch-size 2 --global-batch-size 4 --mock-data
    --tokenizer-type NullTokenizer --vocab-size 255 --num-workers 0 --lr 1e-3 --train-iters 3
    --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
    --attention-dropout 0 --hidden-dropout 0"

# What another machine, version or backend would be: the same run with the error.
wrong() { PYTHONPATH="$HERE" ACCEL_BRIDGE_PLUGINS=wrong_gate "$@"; }

echo "== Two recordings, and where they part"
# shellcheck disable=SC2086 # the list of arguments is meant to be split
accel-bridge parity record --out "$OUT/a.rec" --nproc-per-node "$PROCESSES" -- $MODEL >"$OUT/a.log"
# shellcheck disable=SC2086
wrong accel-bridge parity record --out "$OUT/b.rec" --nproc-per-node "$PROCESSES" -- $MODEL \
    >"$OUT/b.log"
accel-bridge parity compare "$OUT/a.rec" "$OUT/b.rec" --png "$OUT/depth.png" || true

echo "== A capsule of each: the layer in which they part, operator by operator"
# shellcheck disable=SC2086
accel-bridge parity capsule "$OUT/a.rec" "$OUT/b.rec" --out "$OUT/a.capsule" \
    --nproc-per-node "$PROCESSES" -- $MODEL >"$OUT/a.log"
# shellcheck disable=SC2086
wrong accel-bridge parity capsule "$OUT/a.rec" "$OUT/b.rec" --out "$OUT/b.capsule" \
    --nproc-per-node "$PROCESSES" -- $MODEL >"$OUT/b.log"

echo "== The operator"
accel-bridge parity replay "$OUT/a.capsule" "$OUT/b.capsule" && exit 1 || [ $? = 1 ]
