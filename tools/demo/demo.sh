#!/bin/sh
# Trains a byte-level model of about 10 million parameters on the C headers of this machine, with its state spread over
# three memory tiers, and compares it with a bigram model of the same bytes.
set -eu
out=build/demo
offload=build/offload
fraction=0.01
steps=${STEPS:-180}
mkdir -p "$out/nvme"

# Orders the headers by a hash of their names, which mixes the folders, so that the held-out end resembles the rest.
find /usr/include/linux /usr/include/asm-generic /usr/include/*-linux-gnu -name '*.h' -type f 2>/dev/null |
    while IFS= read -r file; do
        sum=$(printf '%s' "$file" | cksum)
        printf '%s %s\n' "${sum%% *}" "$file"
    done | sort -n | cut -d' ' -f2- | tr '\n' '\0' | xargs -0 cat > "$out/corpus.txt"
bytes=$(wc -c < "$out/corpus.txt")
if [ "$bytes" -lt 1000000 ]; then
    echo "demo: /usr/include holds only $bytes bytes of C headers; install linux-libc-dev and libc6-dev" >&2
    exit 1
fi
echo "corpus: $bytes bytes of C headers from /usr/include, the last 1 % held out"

"$offload" train --model tools/demo/model.json --data "$out/corpus.txt" --output "$out/run" --overwrite-output-dir \
    --device-mem 80MiB --host-mem 64MiB --nvme "$out/nvme:320MiB" \
    --max-seq-length 128 --per-device-train-batch-size 4 --gradient-accumulation-steps 2 --max-steps "$steps" \
    --learning-rate 8e-4 --lr-scheduler-type cosine --min-lr-ratio 0.1 --warmup-steps 10 --eval-fraction "$fraction" \
    --logging-steps 20 --eval-steps 0 --eval-windows 0 > "$out/result.txt"
cat "$out/result.txt"

bigram=$(build/demo-bigram "$out/corpus.txt" "$fraction")
ours=$(sed -n 's/.*perplexity \([0-9.]*\) per token.*/\1/p' "$out/result.txt")
echo "held-out perplexity per byte: $ours (this model), $bigram (bigram model of the same bytes)"
awk -v ours="$ours" -v bigram="$bigram" 'BEGIN { exit !(ours > 0 && ours < 0.8 * bigram) }' || {
    echo "demo: the model is not clearly better than the bigram model, which is a bug; please report it" >&2
    exit 1
}
