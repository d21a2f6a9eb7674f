# Reads what init.sh printed: each measurement against what is planted.
#
# Sizes say nothing under emulation, where kernel code is dear and locks are held for as long
# as the host likes. Whether a cause is there, where, and that nothing is unexplained does.
function fail(what) { print "  " name ": " what; failed = 1 }

/BPF recorder:/ { loads = /loads and attaches/; if (!loads) print "  " $0 }
/kernel symbol names:/ && !/^ok/ { print "  " $0; failed = 1 }

$1 == "VIEW" {
    views++
    name = $2
    if ($3 < 1) fail(substr($0, length("VIEW " name " ")))
}

$1 == "GOROUTINES" {
    name = "goroutines"
    if ($2 < 1) fail("no wait was told: " substr($0, 14))
}

$1 == "HOLDS" {
    holds++
    name = $2
    if ($3 != 1) fail("no hold of mmap_lock was told")
}

$1 == "LIMITED" { limited[$2] = $3; kind = $4 }

$1 == "BEGIN" {
    name = $2; cause = $3; code = $4; source = $5
    share = 0; site = ""; how = ""; unexplained = 1; in_causes = is_cause = 0
    delete stack
}
# That of the last point, which is the largest.
/^      "stack": \{/ { in_stack = 1; next }
in_stack && /^ *\}/ { in_stack = 0 }
in_stack { gsub(/[",:]/, ""); stack[$1] = $2 }
/"what": "scheduling"/ { getline; how = $2; gsub(/[",]/, "", how) }
/^  "causes": \[/ { in_causes = 1 }
/^  \]/ { in_causes = 0 }
in_causes && /^      "id":/ { is_cause = index($0, "\"" cause "\"") > 0 }
in_causes && is_cause && /^          "symbol":/ && site == "" { site = $0 }

$1 == "DONE" {
    measured++
    if (how != source) fail("recorded by " how " instead of " source)
    if (!("unexplained" in stack) || stack["unexplained"] > 0.02)
        fail("unexplained: " stack["unexplained"])
    if (cause == "none") {
        split("lock-wait barrier user-spin page-fault mmap-lock sleep io", waits, " ")
        for (i in waits)
            if (stack[waits[i]] > 0.1) fail(waits[i] " " stack[waits[i]] ", but nothing is planted")
    } else {
        if (stack[cause] < 0.03) fail(cause " is " stack[cause])
        if (source == "bpf" && site !~ code) fail(cause " in" site " instead of " code)
    }
    printf "  %-18s %-10s %5.1f %%\n", name, cause, 100 * stack[cause]
}
END {
    if (!loads) { print "  the BPF recorder does not load"; failed = 1 }
    if (measured < 6) { print "  " measured " programs measured"; failed = 1 }
    if (views < 5) { print "  " views + 0 " views recorded"; failed = 1 }
    if (holds < 2) { print "  holds of " holds + 0 " views looked at"; failed = 1 }
    name = "quota of the caller"
    if (limited["groups"] !~ "^0::/limited/amdahl-") fail("runs were in " limited["groups"])
    if (limited["throttled"] < 1) fail("runs were not throttled")
    if (limited["left"] != 0 || kind != "domain") fail("left: " limited["left"] " groups, now " kind)
    exit failed
}
