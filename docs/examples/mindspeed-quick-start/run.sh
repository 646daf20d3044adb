#!/bin/bash
# MindSpeed's quick start: Alpaca as Parquet, tensor parallel 2, pipeline parallel 2 with virtual
# stages, fp16. Its own flags and values; nothing is edited, on an NPU, a GPU or a CPU.
#   bash run.sh                 in small, on what is here
#   SIZE=full DATA=train-00000-of-00001-a09b74b3ef9c3b56.parquet bash run.sh
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

SIZE=${SIZE:-small}
OUT=${OUT:-mindspeed-quick-start}
DATA=${DATA:-$OUT/alpaca.parquet}     # tatsu-lab/alpaca: the column `text` is trained on
if [ "$SIZE" = full ]; then
    DEVICES=${DEVICES:-8} LAYERS=${LAYERS:-8} HIDDEN=${HIDDEN:-4096} FFN=${FFN:-14336}
    HEADS=${HEADS:-64} LENGTH=${LENGTH:-4096} BATCH=${BATCH:-16}
    ITERATIONS=${ITERATIONS:-1000} VOCAB_SIZE=${VOCAB_SIZE:-32000} LR=${LR:-1.0e-6} MIN_LR=${MIN_LR:-1.0e-7}
else
    DEVICES=${DEVICES:-4} LAYERS=${LAYERS:-4} HIDDEN=${HIDDEN:-128} FFN=${FFN:-448}
    HEADS=${HEADS:-4} LENGTH=${LENGTH:-128} BATCH=${BATCH:-8}
    ITERATIONS=${ITERATIONS:-60} VOCAB_SIZE=${VOCAB_SIZE:-4096} LR=${LR:-2.0e-3} MIN_LR=${MIN_LR:-1.0e-4}
fi
BYTES=${BYTES:-1500000} SPLIT=${SPLIT:-990,5,5}
VOCAB_FILE=${VOCAB_FILE:-$OUT/tokenizer/vocab.json}
MERGE_FILE=${MERGE_FILE:-$OUT/tokenizer/merges.txt}
PRETRAIN_GPT=${PRETRAIN_GPT:--m accel_bridge.pretrain.pretrain_gpt}

mkdir -p "$OUT"
python "$HERE/../make_data.py" alpaca "$DATA" --bytes "$BYTES"
[ -e "$VOCAB_FILE" ] || accel-bridge tokenizer train --input "$DATA" \
    --output "$OUT/tokenizer" --vocab-size "$VOCAB_SIZE"

accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/alpaca" \
    --tokenizer-type GPT2BPETokenizer --vocab-file "$VOCAB_FILE" --merge-file "$MERGE_FILE" \
    --append-eod --log-interval 1000 --workers 2

export CUDA_DEVICE_MAX_CONNECTIONS=1
DISTRIBUTED_ARGS="--standalone --nproc_per_node $DEVICES"
GPT_ARGS="
    --transformer-impl local
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 2
    --num-layers-per-virtual-pipeline-stage 1
    --num-layers $LAYERS --hidden-size $HIDDEN --ffn-hidden-size $FFN --num-attention-heads $HEADS
    --seq-length $LENGTH --max-position-embeddings $LENGTH
    --micro-batch-size 1 --global-batch-size $BATCH --make-vocab-size-divisible-by 1
    --lr $LR --train-iters $ITERATIONS --init-method-std 0.01 --no-masked-softmax-fusion
    --attention-softmax-in-fp32 --min-lr $MIN_LR --weight-decay 0.1 --clip-grad 1.0
    --initial-loss-scale 4096.0 --disable-bias-linear --lr-warmup-fraction 0.01 --fp16
"
DATA_ARGS="
    --split $SPLIT --data-path $OUT/alpaca_text_document --tokenizer-type GPT2BPETokenizer
    --vocab-file $VOCAB_FILE --merge-file $MERGE_FILE
"
OUTPUT_ARGS="--log-throughput --log-interval 1 --save-interval 10000 --eval-interval 10000 --eval-iters 1"

# shellcheck disable=SC2086 # the lists of arguments are meant to be split
accel-bridge run -- torchrun $DISTRIBUTED_ARGS $PRETRAIN_GPT \
    $GPT_ARGS $DATA_ARGS $OUTPUT_ARGS \
    --distributed-backend nccl 2>&1 | tee -a "$OUT/training.log"

accel-bridge plot "$OUT/training.log" --names "mindspeed-quick-start" --png "$OUT/curve.png"
