#!/bin/bash
# The 2023 adaptor's launcher: DTYPE=fp16|bf16 bash pretrain_gpt_distributed.sh --pre=N --next=M
# --shape_order=SBH|BSH. The variables are set by run.sh.
set -euo pipefail
case $DTYPE in
    fp16) PRECISION="--fp16 --initial-loss-scale 65536" ;;
    bf16) PRECISION="--bf16" ;;
    *) echo "DTYPE is fp16 or bf16, not $DTYPE" >&2; exit 2 ;;
esac

# shellcheck disable=SC2086 # the lists of arguments are meant to be split
torchrun --standalone --nproc_per_node "$DEVICES" $PRETRAIN_GPT \
    --num-layers "$LAYERS" --hidden-size "$HIDDEN" --num-attention-heads "$HEADS" \
    --seq-length "$LENGTH" --max-position-embeddings "$LENGTH" \
    --micro-batch-size 4 --global-batch-size "$BATCH" --train-iters "$ITERATIONS" \
    --lr 0.0005 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 \
    --lr-warmup-fraction .01 --clip-grad 1.0 $PRECISION \
    --data-path "$OUT/data_text_document" --tokenizer-type GPT2BPETokenizer \
    --vocab-file "$VOCAB_FILE" --merge-file "$MERGE_FILE" --split "$SPLIT" \
    --log-interval 1 --save-interval 10000 --eval-interval 1000 --eval-iters 1 \
    --use-flash-attn --distributed-backend nccl "$@"
