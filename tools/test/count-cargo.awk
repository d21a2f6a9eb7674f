# Counts the tests in the output of `cargo test -- --show-output`: prints "passed failed skipped".
#
# A test that lacks what it needs prints a line `SKIPPED...: reason` and passes: it counts as
# skipped, once. Ignored tests do too. Reasons are appended to the file `skipped_list`.

function told(text) {
    if (skipped_list != "") print text >>skipped_list
}

/^test result: / {
    # test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; ...
    for (i = 1; i < NF; i++) {
        if ($(i + 1) == "passed;") passed += $i
        if ($(i + 1) == "failed;") failed += $i
        if ($(i + 1) == "ignored;") skipped += $i
    }
    next
}
/^test .* \.\.\. ignored/ {
    line = $0
    sub(/^test /, "", line)
    sub(/ \.\.\. ignored(, )?/, ": ignored ", line)
    told("SKIPPED " line)
    next
}
/^---- .* (stdout|stderr) ----$/ { name = $2; seen = 0; next }
/^SKIPPED/ {
    line = $0
    sub(/^SKIPPED:? */, "", line)
    told("SKIPPED " (name == "" ? "" : name ": ") line)
    if (!seen) { seen = 1; skipped++; passed-- }
}
END { print passed + 0, failed + 0, skipped + 0 }
