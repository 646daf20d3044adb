#!/bin/bash
# A tutorial's script for two GPUs, as people have it but for its size: nothing in it knows of accel_bridge but the
# words `-m accel_bridge.run` before the training script.
set -e

DISTRIBUTED_ARGS="
    --nproc_per_node 2
    --nnodes 1
    --node_rank 0
    --master_addr localhost
    --master_port ${MASTER_PORT:-6000}
"

GPT_ARGS="
    --num-layers 2
    --hidden-size 128
    --num-attention-heads 2
    --seq-length 256
    --max-position-embeddings 256
    --micro-batch-size 1
    --global-batch-size 2
    --lr 0.00015
    --train-iters ${TRAIN_ITERS:-500000}
    --lr-decay-iters 320000
    --lr-decay-style cosine
    --min-lr 1.0e-5
    --weight-decay 1e-2
    --lr-warmup-fraction .01
    --clip-grad 1.0
    --fp16
"

DATA_ARGS="
    --data-path $DATA_PATH
    --vocab-file $VOCAB_FILE
    --merge-file $MERGE_FILE
    --split 949,50,1
"

OUTPUT_ARGS="
    --log-interval 1
    --save-interval 10000
    --eval-interval 1000
    --eval-iters 1
"

torchrun $DISTRIBUTED_ARGS -m accel_bridge.run $PRETRAIN_GPT \
    $GPT_ARGS \
    $DATA_ARGS \
    $OUTPUT_ARGS \
    --distributed-backend nccl \
    --save $CHECKPOINT_PATH \
    --load $CHECKPOINT_PATH
