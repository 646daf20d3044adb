#!/bin/bash
# The eight flash-attention commands of the 2023 adaptor, and the table that its guide leaves empty:
# losses and times of two machines side by side.
#   MACHINE=npu bash run.sh                on one machine
#   MACHINE=gpu bash run.sh                on the other; then bring both directories together:
#   python docs/examples/adaptor-2023/table.py adaptor-2023/gpu adaptor-2023/npu
# The full size is SIZE=full; CUDA and Ascend need the same DATA and tokenizer files.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

SIZE=${SIZE:-small}
OUT=${OUT:-adaptor-2023}
MACHINE=${MACHINE:-$(hostname)}       # the logs go to $OUT/$MACHINE
DATA=${DATA:-$OUT/corpus.jsonl}
if [ "$SIZE" = full ]; then
    DEVICES=${DEVICES:-8} LAYERS=${LAYERS:-24} HIDDEN=${HIDDEN:-1024} HEADS=${HEADS:-16}
    LENGTH=${LENGTH:-4096} BATCH=${BATCH:-32} ITERATIONS=${ITERATIONS:-1000}
    VOCAB_SIZE=${VOCAB_SIZE:-32000} SPARSE=${SPARSE:-2048}
else
    DEVICES=${DEVICES:-1} LAYERS=${LAYERS:-2} HIDDEN=${HIDDEN:-128} HEADS=${HEADS:-4}
    LENGTH=${LENGTH:-128} BATCH=${BATCH:-8} ITERATIONS=${ITERATIONS:-20}
    VOCAB_SIZE=${VOCAB_SIZE:-4096} SPARSE=${SPARSE:-32}
fi
BYTES=${BYTES:-1500000} SPLIT=${SPLIT:-949,50,1}
VOCAB_FILE=${VOCAB_FILE:-$OUT/tokenizer/vocab.json}
MERGE_FILE=${MERGE_FILE:-$OUT/tokenizer/merges.txt}
PRETRAIN_GPT=${PRETRAIN_GPT:--m accel_bridge.pretrain.pretrain_gpt}
# Which of the eight to run: "fp16" or "bf16", full attention and the band, in both layouts.
DTYPES=${DTYPES:-fp16 bf16} ORDERS=${ORDERS:-SBH BSH}
export SPLIT DEVICES LAYERS HIDDEN HEADS LENGTH BATCH ITERATIONS OUT VOCAB_FILE MERGE_FILE PRETRAIN_GPT

mkdir -p "$OUT/$MACHINE"
python "$HERE/../make_data.py" jsonl "$DATA" --bytes "$BYTES"
[ -e "$VOCAB_FILE" ] || accel-bridge tokenizer train --input "$DATA" \
    --output "$OUT/tokenizer" --vocab-size "$VOCAB_SIZE"
accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/data" --append-eod \
    --tokenizer-type GPT2BPETokenizer --vocab-file "$VOCAB_FILE" --merge-file "$MERGE_FILE"

for DTYPE in $DTYPES; do
    export DTYPE
    for ORDER in $ORDERS; do
        # 65536/65536 is full causal attention; N/0 is a causal band of the last N + 1 positions.
        accel-bridge run -- bash "$HERE/pretrain_gpt_distributed.sh" \
            --pre=65536 --next=65536 --shape_order="$ORDER" 2>&1 \
            | tee "$OUT/$MACHINE/$DTYPE-flash-$ORDER.log"
        accel-bridge run -- bash "$HERE/pretrain_gpt_distributed.sh" \
            --pre="$SPARSE" --next=0 --shape_order="$ORDER" 2>&1 \
            | tee "$OUT/$MACHINE/$DTYPE-sparse-$ORDER.log"
    done
done

NAMES=$(basename --multiple --suffix=.log "$OUT/$MACHINE"/*.log | paste --serial --delimiters=,)
accel-bridge plot "$OUT/$MACHINE"/*.log --names "$NAMES" --png "$OUT/curve.png"
