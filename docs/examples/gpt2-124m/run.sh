#!/bin/bash
# GPT-2 124M (12 layers, hidden 768, 12 heads, 1024 tokens) on one card, stopped and resumed; then
# its checkpoint goes on, on two cards.
#   bash run.sh                 in small, on what is here
#   SIZE=full DATA=openwebtext.parquet bash run.sh
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

SIZE=${SIZE:-small}
OUT=${OUT:-gpt2-124m}
DATA=${DATA:-$OUT/corpus.jsonl}
if [ "$SIZE" = full ]; then
    LAYERS=${LAYERS:-12} HIDDEN=${HIDDEN:-768} HEADS=${HEADS:-12} LENGTH=${LENGTH:-1024}
    BATCH=${BATCH:-480} MICRO_BATCH=${MICRO_BATCH:-12} VOCAB_SIZE=${VOCAB_SIZE:-50257}
    ONE_CARD=${ONE_CARD:-2000} ITERATIONS=${ITERATIONS:-6000} LR=${LR:-6e-4} PRECISION=${PRECISION:---bf16}
else
    LAYERS=${LAYERS:-4} HIDDEN=${HIDDEN:-192} HEADS=${HEADS:-6} LENGTH=${LENGTH:-128}
    BATCH=${BATCH:-16} MICRO_BATCH=${MICRO_BATCH:-8} VOCAB_SIZE=${VOCAB_SIZE:-4096}
    ONE_CARD=${ONE_CARD:-80} ITERATIONS=${ITERATIONS:-120} LR=${LR:-2e-3} PRECISION=${PRECISION:-}
fi
STOP_AT=${STOP_AT:-$((ONE_CARD / 2))}
BYTES=${BYTES:-1500000}
# GPT-2's own files may be named here; without them a tokenizer is learned from the data.
VOCAB_FILE=${VOCAB_FILE:-$OUT/tokenizer/vocab.json}
MERGE_FILE=${MERGE_FILE:-$OUT/tokenizer/merges.txt}

mkdir -p "$OUT"
python "$HERE/../make_data.py" jsonl "$DATA" --bytes "$BYTES"
[ -e "$VOCAB_FILE" ] || accel-bridge tokenizer train --input "$DATA" \
    --output "$OUT/tokenizer" --vocab-size "$VOCAB_SIZE"
TOKENIZER=(--tokenizer-type GPT2BPETokenizer --vocab-file "$VOCAB_FILE" --merge-file "$MERGE_FILE")
accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/data" "${TOKENIZER[@]}" --append-eod

train() { # CARDS ARGUMENTS...
    local cards=$1
    shift
    # shellcheck disable=SC2086 # PRECISION may be empty
    accel-bridge pretrain --nproc-per-node "$cards" -- \
        --data-path "$OUT/data_text_document" "${TOKENIZER[@]}" --split 98,2,0 \
        --num-layers "$LAYERS" --hidden-size "$HIDDEN" --num-attention-heads "$HEADS" \
        --seq-length "$LENGTH" --max-position-embeddings "$LENGTH" \
        --micro-batch-size "$MICRO_BATCH" --global-batch-size "$BATCH" --train-iters "$ITERATIONS" \
        --lr "$LR" --min-lr 6e-5 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
        --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0 $PRECISION \
        --log-interval 1 --eval-interval 1000 --eval-iters 1 \
        --ckpt-format torch_dist --save-interval 1000 \
        --save "$OUT/checkpoint" --load "$OUT/checkpoint" \
        --tensorboard-dir "$OUT/tensorboard" "$@" 2>&1 | tee -a "$OUT/training.log"
}
train 1 --exit-interval "$STOP_AT"    # one card; stops with a checkpoint
train 1 --exit-interval "$ONE_CARD"   # resumes
train 2                               # the checkpoint goes on, on two cards

accel-bridge plot "$OUT/training.log" --names "gpt2-124m" --png "$OUT/curve.png"
