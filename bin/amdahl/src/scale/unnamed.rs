//! Code that a report should name and cannot: stripped files, files without debug information.

use amdahl_report::schema::{CauseReport, Notice, Site};

/// Places that take less of the capacity are not worth a notice.
const LEADING: f64 = 0.01;
/// Files that a notice names.
const FILES_MAX: usize = 4;

const REMEDY: &str = "for a Debian package install its -dbgsym package. Then measure again.";

/// One notice for files whose functions have no names, one for those whose functions have no lines.
pub fn notices(causes: &[CauseReport]) -> Vec<Notice> {
    let sites = causes.iter().flat_map(|cause| &cause.sites);
    let leading = sites.filter(|site| site.fraction >= LEADING && is_of_file(site));
    let (mut stripped, mut without_lines) = (Vec::new(), Vec::new());
    for site in leading {
        if is_nameless(site) {
            stripped.push(site.module.as_str());
        } else if site.file.is_none() {
            without_lines.push(site.module.as_str());
        }
    }
    // Functions that a stripped file exports have names; there is nothing more to say of it.
    without_lines.retain(|file| !stripped.contains(file));
    let mut notices = Vec::new();
    let mut add = |code: &str, files: &[&str], what: &str| {
        if !files.is_empty() {
            notices.push(Notice {
                code: code.to_owned(),
                text: format!("Functions of {} have {what}; {REMEDY}", list(files)),
            });
        }
    };
    add(
        "stripped",
        &stripped,
        "offsets in place of names, as those of stripped files have, or of files that could not be read. Do not strip what you build (strip, -s)",
    );
    add(
        "no-debug-info",
        &without_lines,
        "no file and line, and inlined ones are not told apart: there is no debug information. Compile with -g",
    );
    notices
}

/// Code of a file that somebody has compiled, not the kernel's, generated, or unknown.
fn is_of_file(site: &Site) -> bool {
    !site.module.is_empty() && !site.module.starts_with('[')
}

/// It has an offset in place of a name.
fn is_nameless(site: &Site) -> bool {
    let file = site.module.rsplit('/').next().unwrap_or_default();
    let offset = site.symbol.strip_prefix(file);
    let offset = offset.and_then(|rest| rest.strip_prefix("+0x"));
    offset.is_some_and(|digits| digits.chars().all(|c| c.is_ascii_hexdigit()))
}

/// Each once, in the order given.
fn list(files: &[&str]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for file in files {
        if !distinct.contains(file) {
            distinct.push(file);
        }
    }
    let more = distinct.len().saturating_sub(FILES_MAX);
    distinct.truncate(FILES_MAX);
    match more {
        0 => distinct.join(", "),
        more => format!("{} and {more} more", distinct.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(module: &str, symbol: &str, file: Option<&str>) -> Site {
        Site {
            module: module.to_owned(),
            symbol: symbol.to_owned(),
            file: file.map(str::to_owned),
            fraction: 0.1,
            ..Site::default()
        }
    }

    fn told(sites: &[Site]) -> Vec<(String, String)> {
        let cause = CauseReport {
            sites: sites.to_vec(),
            ..CauseReport::default()
        };
        let notices = notices(&[cause.clone(), cause]).into_iter();
        notices.map(|notice| (notice.code, notice.text)).collect()
    }

    #[test]
    fn each_kind_of_file_is_told_once() {
        let told = told(&[
            site("/usr/bin/sort", "sort+0x4c20", None),
            site("/usr/bin/sort", "sort+0x5100", None),
            // Exported functions of a stripped file have names.
            site("/usr/bin/sort", "quicksort", None),
            site("/lib/libz.so.1", "inflate", None),
            site("/lib/libz.so.1", "crc32", None),
            site("/src/prog", "main", Some("main.c")),
        ]);
        let codes: Vec<&str> = told.iter().map(|(code, _)| code.as_str()).collect();
        assert_eq!(codes, ["stripped", "no-debug-info"]);
        let of = |file: &str| format!("Functions of {file} have ");
        assert!(told[0].1.starts_with(&of("/usr/bin/sort")), "{told:?}");
        assert!(told[1].1.starts_with(&of("/lib/libz.so.1")), "{told:?}");
        for (_, text) in told {
            assert!(text.contains("-dbgsym"), "{text}");
        }
    }

    #[test]
    fn code_that_nobody_can_name_better_is_not_meant() {
        let small = Site {
            fraction: 0.009,
            ..site("/usr/bin/sort", "sort+0x4c20", None)
        };
        let sites = [
            site("[kernel]", "[kernel]+0xffffffff81000000", None),
            site("[kernel]", "do_mmap", None),
            site("[vdso]", "__vdso_clock_gettime", None),
            site("[jit]", "[jit]", None),
            site("", "[unknown]", None),
            site("", "CPU quota", None),
            small,
        ];
        assert_eq!(told(&sites), []);
    }

    #[test]
    fn many_files_are_counted() {
        let sites: Vec<Site> = (0..7)
            .map(|n| site(&format!("/lib/{n}.so"), "f", None))
            .collect();
        let (_, text) = told(&sites).remove(0);
        let wanted = "/lib/0.so, /lib/1.so, /lib/2.so, /lib/3.so and 3 more have no file";
        assert!(text.contains(wanted), "{text}");
    }

    #[test]
    fn names_that_look_like_offsets_are_names() {
        let odd = site("/x/a", "a+0xyz", None);
        let other = site("/x/a", "b+0x10", None);
        assert!(!is_nameless(&odd) && !is_nameless(&other));
    }
}
