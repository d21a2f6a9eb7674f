//! Names as people write them.

use std::fmt::Write as _;

/// Longer names are cut: deep templates make names of megabytes.
const NAME_BYTES_MAX: usize = 2048;

/// What GCC and LLVM append to the name of a copy or a part of a function.
const CLONE_SUFFIXES: [&str; 7] = [
    ".constprop.",
    ".isra.",
    ".part.",
    ".cold",
    ".lto_priv.",
    ".llvm.",
    ".localalias",
];

/// Demangles Rust (both schemes) and C++; other names stay. The suffix of a clone is
/// dropped, so that a function and its parts have one name.
pub(super) fn demangle(raw: &[u8]) -> String {
    let name = String::from_utf8_lossy(&raw[..raw.len().min(16 * NAME_BYTES_MAX)]);
    let name = without_clone_suffix(&name);
    let plain = rust(name)
        .or_else(|| cpp(name))
        .unwrap_or_else(|| name.to_owned());
    shortened(plain)
}

fn without_clone_suffix(name: &str) -> &str {
    let cut = CLONE_SUFFIXES
        .iter()
        .filter_map(|suffix| name.find(suffix))
        .filter(|&at| at > 0)
        .min();
    &name[..cut.unwrap_or(name.len())]
}

fn rust(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut plain = Limited::default();
    // The alternate form leaves out the hash. An error means that it got too long.
    let _ = write!(plain, "{demangled:#}");
    Some(plain.text)
}

fn cpp(name: &str) -> Option<String> {
    if !name.starts_with("_Z") && !name.starts_with("__Z") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    let options = cpp_demangle::DemangleOptions::new().recursion_limit(128);
    let mut plain = Limited::default();
    match symbol.structured_demangle(&mut plain, &options) {
        Ok(()) => Some(plain.text),
        Err(_) => (plain.full && !plain.text.is_empty()).then_some(plain.text),
    }
}

/// Stops a demangler that writes too much.
#[derive(Default)]
struct Limited {
    text: String,
    full: bool,
}

impl std::fmt::Write for Limited {
    fn write_str(&mut self, piece: &str) -> std::fmt::Result {
        if self.text.len() + piece.len() > 2 * NAME_BYTES_MAX {
            self.full = true;
            return Err(std::fmt::Error);
        }
        self.text.push_str(piece);
        Ok(())
    }
}

fn shortened(mut name: String) -> String {
    if name.len() > NAME_BYTES_MAX {
        let cut = (0..=NAME_BYTES_MAX - 3)
            .rev()
            .find(|&at| name.is_char_boundary(at))
            .unwrap_or(0);
        name.truncate(cut);
        name.push('…');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn languages() {
        assert_eq!(demangle(b"pthread_mutex_lock"), "pthread_mutex_lock");
        assert_eq!(demangle(b"_ZN4pool6Worker3runEi"), "pool::Worker::run(int)");
        assert_eq!(
            demangle(b"_ZN4core3fmt5write17h0123456789abcdefE"),
            "core::fmt::write"
        );
        assert_eq!(
            demangle(b"_RNvCskwGfYPst2Cb_3foo16example_function"),
            "foo::example_function"
        );
        assert_eq!(demangle(b"main.(*Pool).Run"), "main.(*Pool).Run");
    }

    #[test]
    fn a_part_is_called_like_its_function() {
        assert_eq!(demangle(b"contend.constprop.0"), "contend");
        assert_eq!(demangle(b"contend.part.0.isra.1"), "contend");
        assert_eq!(demangle(b"_Z4spinv.cold"), "spin()");
        assert_eq!(demangle(b".cold"), ".cold");
    }

    #[test]
    fn long_names_are_cut() {
        let name = "x".repeat(100 * NAME_BYTES_MAX);
        assert!(demangle(name.as_bytes()).len() <= NAME_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn any_name_is_demangled(prefix in "(_Z|_R|_ZN|__Z|)", rest in "[ -~]{0,200}") {
            let name = demangle(format!("{prefix}{rest}").as_bytes());
            prop_assert!(name.len() <= NAME_BYTES_MAX);
        }
    }
}
