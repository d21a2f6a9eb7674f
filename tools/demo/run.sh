#!/bin/sh
# Measures a real program with amdahl: sorting words with 1, 2, ... threads.
#
#   run.sh PATH-OF-AMDAHL
set -eu

amdahl=${1:?path of the amdahl binary}
folder=${CARGO_TARGET_DIR:-target}/demo
mkdir -p "$folder"

# Three million words of five letters, the same every time, in no order.
words=$folder/words.txt
if [ ! -e "$words" ]; then
    awk 'BEGIN {
        state = 1
        for (i = 0; i < 3000000; i++) {
            # A linear congruential generator whose products stay exact in doubles.
            state = (state * 16807) % 2147483647
            n = state
            word = ""
            for (k = 0; k < 5; k++) { word = word sprintf("%c", 97 + n % 26); n = int(n / 26) }
            print word
        }
    }' >"$words.tmp"
    mv "$words.tmp" "$words"
fi

"$amdahl" doctor || true
echo
status=0
"$amdahl" scale --runs 2 --bare-runs 2 --output "$folder/sort" -- \
    sort "--parallel={cpus}" -S 1G "$words" -o /dev/null || status=$?
echo
echo "The same as a page: $(cd "$folder/sort" && pwd)/report.html"
exit "$status"
