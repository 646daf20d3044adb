#!/bin/bash
# The two-GPU run of the WikiText-2 tutorials: Parquet to a GPT of 12 layers, hidden 512, 8 heads,
# sequences of 1024 tokens, fp16, data parallel on two cards.
#   bash run.sh                 in small, on what is here
#   SIZE=full DATA=train-00000-of-00001.parquet bash run.sh
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

SIZE=${SIZE:-small}
OUT=${OUT:-two-gpus}
DATA=${DATA:-$OUT/wikitext.parquet}   # a Parquet file with a column `text`
if [ "$SIZE" = full ]; then
    LAYERS=${LAYERS:-12} HIDDEN=${HIDDEN:-512} HEADS=${HEADS:-8} LENGTH=${LENGTH:-1024}
    ITERATIONS=${ITERATIONS:-500000} VOCAB_SIZE=${VOCAB_SIZE:-32000} LR=${LR:-0.00015} SCALE=${SCALE:-4294967296}
else
    LAYERS=${LAYERS:-4} HIDDEN=${HIDDEN:-128} HEADS=${HEADS:-4} LENGTH=${LENGTH:-128}
    ITERATIONS=${ITERATIONS:-100} VOCAB_SIZE=${VOCAB_SIZE:-4096} LR=${LR:-0.002} SCALE=${SCALE:-65536}
fi
GPUS=${GPUS:-2}
BATCH=${BATCH:-16}
BYTES=${BYTES:-1500000} SPLIT=${SPLIT:-949,50,1}
# GPT-2's own files may be named here; without them a tokenizer is learned from the data.
VOCAB_FILE=${VOCAB_FILE:-$OUT/tokenizer/vocab.json}
MERGE_FILE=${MERGE_FILE:-$OUT/tokenizer/merges.txt}
# A checkout's own script, unedited: PRETRAIN_GPT=Megatron-LM/pretrain_gpt.py
PRETRAIN_GPT=${PRETRAIN_GPT:--m accel_bridge.pretrain.pretrain_gpt}

mkdir -p "$OUT"
python "$HERE/../make_data.py" parquet "$DATA" --bytes "$BYTES"
[ -e "$VOCAB_FILE" ] || accel-bridge tokenizer train --input "$DATA" \
    --output "$OUT/tokenizer" --vocab-size "$VOCAB_SIZE"

# The tutorials convert Parquet to JSON with pandas first; here nothing needs to be converted.
accel-bridge preprocess --input "$DATA" --json-keys text --output-prefix "$OUT/wikitext" \
    --tokenizer-type GPT2BPETokenizer --vocab-file "$VOCAB_FILE" --merge-file "$MERGE_FILE" \
    --append-eod

DISTRIBUTED_ARGS="--standalone --nproc_per_node $GPUS"
GPT_ARGS="
    --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS
    --seq-length $LENGTH --max-position-embeddings $LENGTH
    --micro-batch-size 4 --global-batch-size $BATCH
    --lr $LR --train-iters $ITERATIONS --lr-decay-style cosine --min-lr 1.0e-5
    --weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0
    --fp16 --initial-loss-scale $SCALE
"
DATA_ARGS="
    --data-path $OUT/wikitext_text_document --tokenizer-type GPT2BPETokenizer
    --vocab-file $VOCAB_FILE --merge-file $MERGE_FILE --split $SPLIT
"
OUTPUT_ARGS="--log-interval 1 --save-interval 10000 --eval-interval 1000 --eval-iters 1"

# shellcheck disable=SC2086 # the lists of arguments are meant to be split
accel-bridge run -- torchrun $DISTRIBUTED_ARGS $PRETRAIN_GPT \
    $GPT_ARGS $DATA_ARGS $OUTPUT_ARGS \
    --distributed-backend nccl \
    --save "$OUT/checkpoint" --load "$OUT/checkpoint" 2>&1 | tee -a "$OUT/training.log"

accel-bridge plot "$OUT/training.log" --names "two-gpus" --png "$OUT/curve.png"
