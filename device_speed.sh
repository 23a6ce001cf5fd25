#!/bin/bash
# From the repository root on the device: bash device_speed.sh; BUDGET seconds (100). Results in $OUT, table last.
BUDGET=${BUDGET:-100}; OUT=${OUT:-/tmp/out}; export OUT; mkdir -p "$OUT"; export PYTHONPATH="src:${PYTHONPATH:-}" OMP_NUM_THREADS=1
T0=$(date +%s); left() { echo $((BUDGET - $(date +%s) + T0)); }
py() { timeout -k 2 "$1" python3 device_speed.py "${@:2}"; }
variants="old R R+F1 R+F1+F2 R+F1+F2+P32 R+F1+F2+P64 R+F1+F2+P32+ca R+F1+F2+P32+L1"
steps=(); count=0
for v in $variants; do py 75 step "$v" > "$OUT/step-$v.txt" 2>&1 & steps+=($!); count=$((count+1)); done
checking=(); for k in 0 1 2 3 4 5; do py 55 check $k 6 > "$OUT/check-$k.txt" 2>&1 & checking+=($!); done
compiling=(); for k in 0 1 2 3 4 5 6 7; do nice -n 5 timeout 45 python3 device_speed.py compile $k 8 > "$OUT/compile-$k.txt" 2>&1 & compiling+=($!); done
while [ "$(ls "$OUT" | grep -c ^ready-)" -lt $count ] && [ "$(left)" -gt $((BUDGET - 45)) ]; do sleep 0.5; done
echo "networks compiled after $((BUDGET - $(left))) s"
wait "${checking[@]}" "${compiling[@]}"; echo "checked, tiles compiled after $((BUDGET - $(left))) s"
touch "$OUT/go"; wait "${steps[@]}"; echo "steps timed after $((BUDGET - $(left))) s"
TUNE_S=18 py 30 tune > "$OUT/tune.txt" 2>&1; echo "tiles timed after $((BUDGET - $(left))) s"
[ "$(left)" -gt 12 ] && py "$(( $(left) - 2 ))" step tuned > "$OUT/step-tuned.txt" 2>&1; echo "tuned step after $((BUDGET - $(left))) s"
for which in new old; do [ "$(left)" -gt 20 ] && EPOCHS=3 py "$(( $(left) - 2 ))" epoch $which > "$OUT/epoch-$which.txt" 2>&1; echo "epoch $which after $((BUDGET - $(left))) s"; done
echo; echo "== (c) tiles"; tail -60 "$OUT/tune.txt"; tail -qn 2 "$OUT"/compile-*.txt | sort -u | head -8
echo "== (b) epochs"; tail -qn 2 "$OUT"/epoch-*.txt 2>/dev/null
echo "== (b) steps of eight WRN-28-2, batch 128"; for v in $variants tuned; do tail -qn 1 "$OUT/step-$v.txt" | cut -c1-180; done
echo "== (a) check"; tail -qn 3 "$OUT"/check-*.txt | cut -c1-300
