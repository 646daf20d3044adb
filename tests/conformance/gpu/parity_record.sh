#!/bin/sh
# Records the runs that docs/parity.md compares: 30 steps of a GPT of 10 million parameters in
# float32 and bfloat16, on whatever hardware is here, and 100 steps of 124 million parameters with
# and without the recorder.
#
# usage: parity_record.sh DIRECTORY NAME [RUNS]
#   DIRECTORY  gets NAME-float32.rec, NAME-bfloat16.rec, NAME-124m.rec and NAME-124m.txt
#   RUNS    some of: float32 bfloat16 124m (default: all)
#
# On a machine that cannot reach a package registry, see tests/conformance/gpu/README.md.
set -eu
directory=$(cd "$1" && pwd)
name=$2
runs=${3:-float32 bfloat16 124m}
python=${PYTHON:-python3}
# Away from the checkout, whose directories are not the installed package.
cd "$directory"

# The local spec, so that machines with and without Transformer Engine run the same modules.
common="--transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion
--no-masked-softmax-fusion --disable-jit-fuser --mock-data --tokenizer-type NullTokenizer
--position-embedding-type rope --no-rope-fusion --attention-dropout 0 --hidden-dropout 0 --seed 42
--lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --lr-warmup-iters 10 --clip-grad 1.0
--log-interval 1 --eval-iters 0 --eval-interval 1000"
small="--num-layers 8 --hidden-size 256 --num-attention-heads 8 --seq-length 128
--max-position-embeddings 128 --micro-batch-size 4 --global-batch-size 8 --vocab-size 8191
--train-iters 30 --lr-decay-iters 30"
gpt2="--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length ${SEQUENCE:-1024}
--max-position-embeddings 1024 --micro-batch-size ${BATCH:-8} --global-batch-size ${BATCH:-8}
--vocab-size 50256 --train-iters ${STEPS:-100} --lr-decay-iters 100 --bf16"

for run in $runs; do
    case $run in
    124m)
        # Unquoted on purpose: the variables hold many words.
        for recorded in "" recorded; do
            log="$directory/$name-124m-${recorded:-plain}.log"
            command="pretrain"
            [ -z "$recorded" ] || command="parity record --out $directory/$name-124m.rec"
            # shellcheck disable=SC2086
            "$python" -m accel_bridge $command --nproc-per-node 1 -- $common $gpt2 >"$log" 2>&1
            sed -n 's/.*elapsed time per iteration (ms): \([0-9.]*\).*/\1/p' "$log" | sed 1,5d |
                awk -v run="${recorded:-plain}" '{ sum += $1; count++ }
                    END { printf "%s: %.2f ms/step over %d steps\n", run, sum / count, count }'
            rm "$log"
        done | tee "$directory/$name-124m.txt"
        ls -l "$directory/$name-124m.rec" | tee -a "$directory/$name-124m.txt"
        ;;
    *)
        precision=
        [ "$run" = float32 ] || precision=--bf16
        # shellcheck disable=SC2086
        "$python" -m accel_bridge parity record --out "$directory/$name-$run.rec" \
            --nproc-per-node 1 -- $common $small $precision
        ;;
    esac
done
