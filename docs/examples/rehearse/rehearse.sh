#!/bin/bash
# Rehearse two trainings on this machine before they are queued: the two-GPU script of the WikiText-2
# tutorials, then 70.6 billion parameters as ranks of 1,024 GPUs. No GPU, nothing computed, no edit.
#   DEVICE=h200 BATCH=1024 bash rehearse.sh
set -euo pipefail

OUT=${OUT:-rehearsal}
DEVICE=${DEVICE:-h100-80g}
BATCH=${BATCH:-128}            # of the large model: sequences of a step
NODES=${NODES:-128}
LAYERS=${LAYERS:-80}
# A checkout's own script, unedited: PRETRAIN_GPT=Megatron-LM/pretrain_gpt.py
PRETRAIN_GPT=${PRETRAIN_GPT:--m accel_bridge.pretrain.pretrain_gpt}
mkdir -p "$OUT"

COMMON="--distributed-backend nccl --log-interval 1 --eval-iters 0 --position-embedding-type rope
    --attention-dropout 0 --hidden-dropout 0 --no-create-attention-mask-in-dataloader"

echo "== Two GPUs, fp16, as the tutorial types it; its data and vocabulary need not be here yet"
# shellcheck disable=SC2086 # the lists of arguments are meant to be split
accel-bridge rehearse --device "$DEVICE" --ranks all-kinds --json "$OUT/two-gpus.json" -- \
    torchrun --standalone --nproc_per_node 2 $PRETRAIN_GPT \
    --num-layers 12 --hidden-size 512 --num-attention-heads 8 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 4 --global-batch-size 16 --fp16 --lr 0.00015 --train-iters 500000 \
    --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .01 \
    --data-path wikitext_text_document --split 949,50,1 \
    --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt \
    --save checkpoint --save-interval 10000 --load checkpoint $COMMON 2>"$OUT/two-gpus.log"

echo "== 70.6 billion parameters on $((NODES * 8)) GPUs: the first and the last pipeline stage"
# shellcheck disable=SC2086
accel-bridge rehearse --device "$DEVICE" --jobs 2 --json "$OUT/70b.json" \
    --html "$OUT/70b.html" --png "$OUT/70b.png" -- \
    torchrun --nnodes "$NODES" --nproc_per_node 8 $PRETRAIN_GPT \
    --num-layers "$LAYERS" --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 --kv-channels 128 \
    --seq-length 8192 --max-position-embeddings 8192 --bf16 --swiglu --normalization RMSNorm \
    --disable-bias-linear --untie-embeddings-and-output-weights \
    --micro-batch-size 1 --global-batch-size "$BATCH" --lr 1e-4 --train-iters 500000 \
    --mock-data --tokenizer-type NullTokenizer --vocab-size 128255 \
    --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 8 \
    --num-layers-per-virtual-pipeline-stage 5 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    $COMMON 2>"$OUT/70b.log"
