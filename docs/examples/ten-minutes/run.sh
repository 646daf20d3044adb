#!/bin/bash
# One text file becomes a trained model: tokenizer, data set, training, curve, checkpoint, resume.
#   TEXT=book.txt bash run.sh   your own text
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

OUT=${OUT:-ten-minutes}               # everything is written here
TEXT=${TEXT:-$OUT/text.txt}           # plain UTF-8 text; made from Python's own where missing
VOCAB_SIZE=${VOCAB_SIZE:-4096}        # 32000 and more for a real corpus
ITERATIONS=${ITERATIONS:-200}
STOP_AT=${STOP_AT:-$((ITERATIONS * 3 / 4))}
LAYERS=${LAYERS:-4} HIDDEN=${HIDDEN:-128} HEADS=${HEADS:-4} LENGTH=${LENGTH:-128} BATCH=${BATCH:-16}
BYTES=${BYTES:-1500000}               # of the text that is made

mkdir -p "$OUT"
python "$HERE/../make_data.py" text "$TEXT" --bytes "$BYTES"

# 1. A tokenizer, learned from the text: vocab.json and merges.txt.
accel-bridge tokenizer train --input "$TEXT" --input-format text \
    --output "$OUT/tokenizer" --vocab-size "$VOCAB_SIZE"
TOKENIZER=(--tokenizer-type GPT2BPETokenizer
    --vocab-file "$OUT/tokenizer/vocab.json" --merge-file "$OUT/tokenizer/merges.txt")

# 2. The data set: token ids in Megatron's format.
accel-bridge preprocess --input "$TEXT" --input-format text --output-prefix "$OUT/data" \
    "${TOKENIZER[@]}" --append-eod
accel-bridge inspect "$OUT/data_text_document" "${TOKENIZER[@]}"

# 3. Training. A run that is started again continues from its last checkpoint. One text is one
#    document, so there is no other to validate on; a directory of texts can be split.
train() {
    accel-bridge pretrain -- --data-path "$OUT/data_text_document" "${TOKENIZER[@]}" \
        --split 100,0,0 \
        --num-layers "$LAYERS" --hidden-size "$HIDDEN" --num-attention-heads "$HEADS" \
        --seq-length "$LENGTH" --max-position-embeddings "$LENGTH" \
        --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear \
        --micro-batch-size 8 --global-batch-size "$BATCH" --train-iters "$ITERATIONS" \
        --lr 3e-3 --min-lr 3e-4 --lr-warmup-fraction 0.05 --clip-grad 1.0 \
        --log-interval 1 --eval-interval 1000 --eval-iters 0 \
        --ckpt-format torch_dist --save-interval "$ITERATIONS" \
        --save "$OUT/checkpoint" --load "$OUT/checkpoint" "$@" 2>&1 | tee -a "$OUT/training.log"
}
train --exit-interval "$STOP_AT"      # stops early, with a checkpoint

# 4. The same command goes on from there.
train

# 5. The curve.
accel-bridge plot "$OUT/training.log" --names "ten-minutes" --png "$OUT/curve.png"
