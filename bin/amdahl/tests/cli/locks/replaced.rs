//! Files that are replaced while they are mapped.

use std::path::Path;
use std::process::Command;

use amdahl_report::locks::schema::LockRow;

use super::{SOURCES, ready, result, rows};
use crate::tool::{Place, alone, bpf, skipped};
use crate::workload::{compiled, put_in_place, replaced_while_watched};

#[test]
fn a_program_that_is_replaced_while_it_runs_keeps_its_names_or_has_none() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    // The same functions at other addresses.
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-std=gnu11",
        "-O0",
        "-g",
        "-pthread",
        "-falign-functions=4096",
        "-o",
    ])
    .arg(place.join("other"))
    .arg(Path::new(SOURCES).join("families.c"));
    assert!(place.run(place.here(gcc)).status.success());
    let script = "./\"$0\" mutex \"$1\" & \
        until it=$(readlink /proc/$!/exe); [ \"$it\" = \"$PWD/$0\" ] || [ -z \"$it\" ]; do :; done; \
        cp other new; mv new \"$0\"; wait";
    for (name, rounds, must_be_known) in [("short", "20", false), ("long", "600", true)] {
        std::fs::copy(&program, place.join(name)).expect("a copy");
        let mut tool = place.tool(["locks", "--json", "--quiet", "--", "sh", "-c", script]);
        tool.args([name, rounds]);
        let found = result(&place.run(tool).ends_with(0));
        let of_it = |row: &&LockRow| row.site.module.contains(name) && row.class == "lock";
        let rows: Vec<&LockRow> = found.rows.iter().filter(of_it).collect();
        assert!(!rows.is_empty(), "{}", self::rows(&found));
        for row in rows {
            let symbol = &*row.site.symbol;
            let is_known = ["want_mutex", "hold_mutex"].contains(&symbol);
            let is_unknown = symbol.starts_with(&format!("{name}+0x"));
            assert!(is_known || is_unknown && !must_be_known, "{name}: {symbol}");
        }
    }
}

const LATCH: &str = r#"
    #include <pthread.h>
    static pthread_mutex_t latch = PTHREAD_MUTEX_INITIALIZER;
    static volatile long held;
    #ifdef OTHER
    #define FOUR(it) it it it it
    void somebody_else(void) { FOUR(FOUR(FOUR(FOUR(held++;)))) }
    #endif
    void hold_the_latch(void)
    {
        pthread_mutex_lock(&latch);
        for (int i = 0; i < 300000; i++)
            held++;
        pthread_mutex_unlock(&latch);
    }
"#;

/// Two threads that want a latch until there is a file of that name, and each has had it beside the other some times.
const GUESTS: &str = r#"
    #include <pthread.h>
    #include <stdatomic.h>
    #include <unistd.h>
    void hold_the_latch(void);
    static char *enough;
    static atomic_int rounds[2];
    static void *guest(void *own)
    {
        do {
            hold_the_latch();
            ++*(atomic_int *)own;
        } while (rounds[0] < 20 || rounds[1] < 20 || access(enough, F_OK) != 0);
        return 0;
    }
    int main(int argc, char **argv)
    {
        pthread_t other;
        enough = argv[argc - 1];
        pthread_create(&other, 0, guest, &rounds[0]);
        guest(&rounds[1]);
        return pthread_join(other, 0);
    }
"#;

#[test]
fn a_library_that_is_replaced_while_it_is_used_keeps_its_names_or_has_none() {
    let _alone = alone();
    if let Err(why) = bpf() {
        return skipped(why);
    }
    let place = Place::new();
    let it = place.join("liblatch.so");
    let flags = ["-g", "-O0", "-fPIC", "-shared"];
    // Where the function was is another one.
    let moved = [&flags[..], &["-DOTHER"]].concat();
    let (Some(library), Some(other)) = (
        compiled(&place, "liblatch.so", LATCH, &flags),
        compiled(&place, "other.so", LATCH, &moved),
    ) else {
        return;
    };
    assert_eq!(library, it);
    let path = it.to_str().expect("a path");
    let flags = ["-g", "-O0", "-Wl,--no-as-needed", path];
    let program = compiled(&place, "guests", GUESTS, &flags).expect("a program");
    let kept = place.join("kept.so");
    std::fs::copy(&it, &kept).expect("a copy");
    for is_known in [true, false] {
        put_in_place(&place, &kept, &it);
        let mut tool = place.tool(["locks", "--json", "--quiet", "--"]);
        tool.arg(&program).arg(place.join("enough"));
        let ran = replaced_while_watched(&place, tool, &program, (&it, &other), is_known);
        let found = result(&ran.ends_with(0));
        let of_it = |row: &&LockRow| row.site.module.contains("liblatch.so") && row.class == "lock";
        let rows: Vec<&LockRow> = found.rows.iter().filter(of_it).collect();
        assert!(!rows.is_empty(), "{}", self::rows(&found));
        for row in rows {
            let symbol = &*row.site.symbol;
            let is_nameless = symbol.starts_with("liblatch.so+0x");
            let is_it = symbol == "hold_the_latch" || is_nameless && !is_known;
            assert!(is_it, "{symbol}");
        }
    }
}
