# Counts the cases in the output of the test of the planted programs: "passed failed skipped".
# Reasons of skipped cases are appended to the file `skipped_list`.

/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ {
    passed = $1
    failed = $3
    skipped = $5
}
/^ *[0-9]+\/[0-9]+ .* SKIPPED \(/ { was_skipped[$2] = $2 }
# After the table: `case: reason`.
/^[a-z0-9_-]+: / {
    name = $1
    sub(/:$/, "", name)
    if (name in was_skipped && skipped_list != "") print "SKIPPED planted " $0 >>skipped_list
}
/^SKIPPED planted/ && skipped_list != "" { print >>skipped_list }
END { print passed + 0, failed + 0, skipped + 0 }
