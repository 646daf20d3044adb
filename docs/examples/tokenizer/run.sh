#!/bin/bash
# A tokenizer of your own, of three kinds, and how many tokens each makes of the same text.
#   DATA=corpus.jsonl VOCAB_SIZE=32000 bash run.sh     your own text
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

OUT=${OUT:-tokenizer}
DATA=${DATA:-$OUT/corpus.jsonl}       # JSON lines, Parquet, CSV; plain text with --input-format text
VOCAB_SIZE=${VOCAB_SIZE:-4096}
ITERATIONS=${ITERATIONS:-100}
BYTES=${BYTES:-1500000}

mkdir -p "$OUT"
python "$HERE/../make_data.py" jsonl "$DATA" --bytes "$BYTES"

# vocab.json and merges.txt, as GPT-2 has them.
accel-bridge tokenizer train --input "$DATA" --output "$OUT/bpe" --vocab-size "$VOCAB_SIZE"
accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/bpe-data" --append-eod \
    --tokenizer-type GPT2BPETokenizer \
    --vocab-file "$OUT/bpe/vocab.json" --merge-file "$OUT/bpe/merges.txt"

# The same tokenizer as a directory for Hugging Face's classes: the same ids.
accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/directory-data" --append-eod \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$OUT/bpe"
cmp "$OUT/bpe-data_text_document.bin" "$OUT/directory-data_text_document.bin"

# tokenizer.model, as Llama 2 has it.
accel-bridge tokenizer train --kind sentencepiece --input "$DATA" --output "$OUT/sentencepiece" \
    --vocab-size "$VOCAB_SIZE"
accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/sentencepiece-data" --append-eod \
    --tokenizer-type Llama2Tokenizer --tokenizer-model "$OUT/sentencepiece/tokenizer.model"

# vocab.txt, as BERT has it.
accel-bridge tokenizer train --kind wordpiece --input "$DATA" --output "$OUT/wordpiece" \
    --vocab-size "$VOCAB_SIZE"
accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/wordpiece-data" --append-eod \
    --tokenizer-type BertWordPieceLowerCase --vocab-file "$OUT/wordpiece/vocab.txt"

# Training takes the flags that preprocessing took.
accel-bridge pretrain -- --data-path "$OUT/bpe-data_text_document" \
    --tokenizer-type GPT2BPETokenizer \
    --vocab-file "$OUT/bpe/vocab.json" --merge-file "$OUT/bpe/merges.txt" \
    --num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 \
    --max-position-embeddings 128 --micro-batch-size 8 --global-batch-size 16 \
    --train-iters "$ITERATIONS" --lr 2e-3 --min-lr 2e-4 --lr-warmup-fraction 0.05 \
    --log-interval 1 --eval-interval 1000 --eval-iters 1 --split 98,2,0 \
    2>&1 | tee -a "$OUT/training.log"

accel-bridge plot "$OUT/training.log" --names "tokenizer" --png "$OUT/curve.png"
