#!/bin/bash
# Data for Llama models: by Llama 2's tokenizer.model (SentencePiece) and by Llama 3's directory with a
# tokenizer.json. Then a small model with Llama's layers on it.
#   bash run.sh                 with tokenizers of the same kinds, learned here
#   LLAMA2=tokenizer.model LLAMA3=Meta-Llama-3-8B DATA=corpus.jsonl bash run.sh
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

OUT=${OUT:-llama-data}
DATA=${DATA:-$OUT/corpus.jsonl}
LLAMA2=${LLAMA2:-$OUT/llama2/tokenizer.model}
LLAMA3=${LLAMA3:-$OUT/llama3}
VOCAB_SIZE=${VOCAB_SIZE:-4096}        # of the tokenizers that are learned; Llama 2 has 32000
ITERATIONS=${ITERATIONS:-100}
BYTES=${BYTES:-1500000}

mkdir -p "$OUT"
python "$HERE/../make_data.py" jsonl "$DATA" --bytes "$BYTES"
[ -e "$LLAMA2" ] || accel-bridge tokenizer train --kind sentencepiece --input "$DATA" \
    --output "$OUT/llama2" --vocab-size "$VOCAB_SIZE"
[ -e "$LLAMA3" ] || accel-bridge tokenizer train --kind bpe --input "$DATA" \
    --output "$OUT/llama3" --vocab-size "$VOCAB_SIZE"

# Llama 2: the end of a document is </s>.
accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/llama2-data" \
    --tokenizer-type Llama2Tokenizer --tokenizer-model "$LLAMA2" --append-eod
accel-bridge inspect "$OUT/llama2-data_text_document" \
    --tokenizer-type Llama2Tokenizer --tokenizer-model "$LLAMA2"

# Llama 3 and later, Qwen, Mistral: the directory as it comes.
accel-bridge preprocess --input "$DATA" --output-prefix "$OUT/llama3-data" \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$LLAMA3" --append-eod
accel-bridge inspect "$OUT/llama3-data_text_document" \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$LLAMA3"

# Llama's layers, in small: rotary embeddings, RMSNorm, SwiGLU, fewer keys than queries, no biases.
accel-bridge pretrain -- --data-path "$OUT/llama2-data_text_document" \
    --tokenizer-type Llama2Tokenizer --tokenizer-model "$LLAMA2" \
    --num-layers 4 --hidden-size 128 --ffn-hidden-size 344 --num-attention-heads 4 \
    --group-query-attention --num-query-groups 2 --seq-length 128 --max-position-embeddings 128 \
    --position-embedding-type rope --no-position-embedding --normalization RMSNorm --swiglu \
    --disable-bias-linear --untie-embeddings-and-output-weights \
    --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 8 --global-batch-size 16 \
    --train-iters "$ITERATIONS" --lr 2e-3 --min-lr 2e-4 --lr-warmup-fraction 0.05 \
    --log-interval 1 --eval-interval 1000 --eval-iters 1 --split 98,2,0 \
    2>&1 | tee -a "$OUT/training.log"

accel-bridge plot "$OUT/training.log" --names "llama-data" --png "$OUT/curve.png"
