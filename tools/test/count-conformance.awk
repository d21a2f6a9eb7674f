# Counts the tests in the output of amdahl-conformance: "passed failed skipped".
#
# A reason for which tests are skipped is one line, appended to the file `skipped_list`; that the
# suite is not here at all is one skipped test.

/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ {
    passed = $1
    failed = $3
    skipped = $5
}
/^SKIPPED conformance: / { skipped++ }
/^SKIPPED/ {
    line = $0
    sub(/^SKIPPED /, "", line)
    if (line !~ /^conformance: /) line = "conformance " line
    if (skipped_list != "") print "SKIPPED " line >>skipped_list
}
END { print passed + 0, failed + 0, skipped + 0 }
