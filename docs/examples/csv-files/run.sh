#!/bin/bash
# Several CSV files to a trained model: no conversion to JSON, one column chosen by its name.
#   DATA=directory COLUMN=body bash run.sh     your own files
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

OUT=${OUT:-csv-files}
DATA=${DATA:-$OUT/tables}             # a directory, a file, or a quoted pattern such as 'data/*.csv.gz'
COLUMN=${COLUMN:-body}
VOCAB_SIZE=${VOCAB_SIZE:-4096}
ITERATIONS=${ITERATIONS:-100}
BYTES=${BYTES:-1500000}

mkdir -p "$OUT"
python "$HERE/../make_data.py" csv "$DATA" --bytes "$BYTES"
accel-bridge tokenizer train --input "$DATA" --json-keys "$COLUMN" \
    --output "$OUT/tokenizer" --vocab-size "$VOCAB_SIZE"
TOKENIZER=(--tokenizer-type GPT2BPETokenizer
    --vocab-file "$OUT/tokenizer/vocab.json" --merge-file "$OUT/tokenizer/merges.txt")

# Rows that cannot be used are left out and listed; without --on-error the first one stops the run.
accel-bridge preprocess --input "$DATA" --json-keys "$COLUMN" --output-prefix "$OUT/data" \
    "${TOKENIZER[@]}" --append-eod --on-error skip --error-log "$OUT/skipped.jsonl"

accel-bridge pretrain -- --data-path "$OUT/data_${COLUMN}_document" "${TOKENIZER[@]}" \
    --num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 \
    --max-position-embeddings 128 --micro-batch-size 8 --global-batch-size 16 \
    --train-iters "$ITERATIONS" --lr 2e-3 --min-lr 2e-4 --lr-warmup-fraction 0.05 \
    --log-interval 1 --eval-interval 1000 --eval-iters 1 --split 98,2,0 \
    2>&1 | tee -a "$OUT/training.log"

accel-bridge plot "$OUT/training.log" --names "csv-files" --png "$OUT/curve.png"
