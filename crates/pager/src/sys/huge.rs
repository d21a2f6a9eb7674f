//! Whether the system gives transparent huge pages to shared memory.

use std::fs;

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// Whether a mapping of a memfd with `MADV_HUGEPAGE` gets pages of more than 4 KiB, of whatever size: by what /sys says now.
pub(crate) fn is_for_shared() -> bool {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let all = read(format!("{FOLDER}/shmem_enabled"));
    let sizes = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let sizes = sizes.filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("hugepages-")
    });
    let sizes: Vec<String> = sizes
        .map(|entry| read(format!("{}/shmem_enabled", entry.path().display())))
        .filter(|size| !size.is_empty())
        .collect();
    is_given(&all, &sizes)
}

/// By the setting for all sizes and those of each; before Linux 6.11 there are none of these.
fn is_given(all: &str, sizes: &[String]) -> bool {
    let gives = |word: Option<&str>| matches!(word, Some("always" | "within_size" | "advise"));
    match chosen(all) {
        Some("force") => true,
        Some("deny") => false,
        all if sizes.is_empty() => gives(all),
        all => sizes.iter().any(|size| match chosen(size) {
            Some("inherit") => gives(all),
            own => gives(own),
        }),
    }
}

/// The word in brackets.
fn chosen(setting: &str) -> Option<&str> {
    let (_, after) = setting.split_once('[')?;
    Some(after.split_once(']')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_of_a_size_goes_before_that_of_all_unless_that_is_forced() {
        let all = |word: &str| format!("always within_size advise never deny force [{word}]\n");
        let sizes = |words: &[&str]| -> Vec<String> {
            let line = |word: &&str| format!("always inherit within_size advise [{word}] never\n");
            words.iter().map(line).collect()
        };
        for (top, own, given) in [
            ("never", &["inherit", "never"][..], false),
            ("advise", &["inherit", "never"], true),
            ("advise", &["never", "never"], false),
            ("never", &["inherit", "within_size"], true),
            ("deny", &["always"], false),
            ("force", &["never"], true),
            ("advise", &[], true),
            ("within_size", &[], true),
            ("always", &[], true),
            ("never", &[], false),
            ("nonsense", &["nonsense"], false),
        ] {
            assert_eq!(is_given(&all(top), &sizes(own)), given, "{top} {own:?}");
        }
        assert!(!is_given("", &[]));
        assert!(!is_given("always [never", &[]));
    }
}
