#!/bin/bash
# BERT and T5: documents split into sentences, a WordPiece vocabulary, and training of both.
#   bash run.sh                 in small, on what is here
#   bash run.sh --pre=65536 --next=65536 --shape_order=SBH      further flags of both trainings
#   LOGS=npu bash run.sh        logs in another directory; of two machines' directories
#   python docs/examples/adaptor-2023/table.py gpu npu     prints losses and times
#   SIZE=full DATA=corpus.jsonl VOCAB=bert-large-cased-vocab.txt PUNKT=/path/to/nltk_data bash run.sh
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

SIZE=${SIZE:-small}
OUT=${OUT:-bert-t5}
LOGS=${LOGS:-$OUT}
DATA=${DATA:-$OUT/corpus.jsonl}
VOCAB=${VOCAB:-$OUT/tokenizer/vocab.txt}
# NLTK's sentence model: `python -m nltk.downloader -d DIRECTORY punkt_tab`; made here where missing.
PUNKT=${PUNKT:-$OUT/nltk_data}
if [ "$SIZE" = full ]; then
    LAYERS=${LAYERS:-24} HIDDEN=${HIDDEN:-1024} HEADS=${HEADS:-16} LENGTH=${LENGTH:-512}
    BATCH=${BATCH:-32} ITERATIONS=${ITERATIONS:-1000000} VOCAB_SIZE=${VOCAB_SIZE:-30000} LR=${LR:-0.0001}
else
    LAYERS=${LAYERS:-2} HIDDEN=${HIDDEN:-128} HEADS=${HEADS:-4} LENGTH=${LENGTH:-128}
    BATCH=${BATCH:-16} ITERATIONS=${ITERATIONS:-100} VOCAB_SIZE=${VOCAB_SIZE:-4000} LR=${LR:-0.001}
fi
PROCESSES=${PROCESSES:-1}
BYTES=${BYTES:-1500000} SPLIT=${SPLIT:-900,100,0}
export NLTK_DATA=$PUNKT
export PYTHONDONTWRITEBYTECODE=1     # the scripts' directory stays as it is

mkdir -p "$OUT" "$LOGS"
python "$HERE/../make_data.py" jsonl "$DATA" --bytes "$BYTES"
[ -e "$VOCAB" ] || accel-bridge tokenizer train --kind wordpiece --cased --input "$DATA" \
    --output "$OUT/tokenizer" --vocab-size "$VOCAB_SIZE"
[ -e "$PUNKT" ] || python "$HERE/make_punkt.py" "$DATA" "$PUNKT"

# Each sentence is a sequence of its own: that is what both data sets need.
accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/data" --split-sentences \
    --tokenizer-type BertWordPieceCase --vocab-file "$VOCAB"

SHARED=(--num-attention-heads "$HEADS" --hidden-size "$HIDDEN" --max-position-embeddings "$LENGTH"
    --micro-batch-size 8 --global-batch-size "$BATCH" --train-iters "$ITERATIONS"
    --lr "$LR" --min-lr 1e-5 --lr-decay-style linear --lr-warmup-fraction .01
    --weight-decay 1e-2 --clip-grad 1.0 --attention-backend auto
    --data-path "$OUT/data_text_sentence" --tokenizer-type BertWordPieceCase --vocab-file "$VOCAB"
    --split "$SPLIT" --log-interval 1 --eval-interval 100000 --eval-iters 1)

accel-bridge run -- torchrun --standalone --nproc_per_node "$PROCESSES" "$HERE/pretrain_bert.py" \
    "${SHARED[@]}" --num-layers "$LAYERS" --seq-length "$LENGTH" "$@" \
    2>&1 | tee -a "$LOGS/bert.log"

accel-bridge run -- torchrun --standalone --nproc_per_node "$PROCESSES" "$HERE/pretrain_t5.py" \
    "${SHARED[@]}" --encoder-num-layers "$LAYERS" --decoder-num-layers "$LAYERS" \
    --encoder-seq-length "$LENGTH" --decoder-seq-length "$LENGTH" --vocab-extra-ids 100 "$@" \
    2>&1 | tee -a "$LOGS/t5.log"

accel-bridge plot "$LOGS/bert.log" "$LOGS/t5.log" --names BERT,T5 --png "$OUT/curve.png"
