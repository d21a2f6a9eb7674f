//! The first line of a script, which says who reads it.

/// What the kernel reads of a file to see what it is.
pub const HEAD_BYTES: usize = 256;

/// The interpreter and its arguments in the first line of a script, as the kernel divides it: one
/// argument at most.
pub fn interpreter(head: &[u8]) -> Option<(String, Option<String>)> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let line = line.trim_matches([' ', '\t', '\r']);
    let (path, argument) = match line.split_once([' ', '\t']) {
        Some((path, argument)) => (path, Some(argument.trim().to_owned())),
        None => (line, None),
    };
    (!path.is_empty()).then(|| (path.to_owned(), argument))
}

/// The program that `env` starts, given its argument in such a line.
pub fn of_env(argument: &str) -> Option<&str> {
    let mut words = argument
        .split([' ', '\t'])
        .map(|word| {
            word.trim_start_matches("-S")
                .trim_start_matches("--split-string=")
        })
        .filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        if ["-u", "--unset", "-C", "--chdir"].contains(&word) {
            words.next();
        } else if !word.starts_with('-') && !word.contains('=') {
            return Some(word);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_first_lines() {
        let of = |line: &str| {
            let (path, argument) = interpreter(line.as_bytes())?;
            Some(
                format!("{path} {}", argument.unwrap_or_default())
                    .trim()
                    .to_owned(),
            )
        };
        assert_eq!(of("#!/bin/sh\necho").as_deref(), Some("/bin/sh"));
        assert_eq!(of("#! /bin/sh -e -u\n").as_deref(), Some("/bin/sh -e -u"));
        assert_eq!(
            of("#!/usr/bin/env python3").as_deref(),
            Some("/usr/bin/env python3")
        );
        assert_eq!(of("#!\n/bin/sh"), None);
        assert_eq!(of("\x7fELF"), None);
        assert_eq!(interpreter(b"#!\xff\xfe\n"), None);
    }

    #[test]
    fn looks_through_env() {
        assert_eq!(of_env("python3"), Some("python3"));
        assert_eq!(of_env("-S python3 -u"), Some("python3"));
        assert_eq!(of_env("-Spython3 -u"), Some("python3"));
        assert_eq!(of_env("-i A=b ruby -w"), Some("ruby"));
        assert_eq!(of_env("-S -u NAME python3"), Some("python3"));
        assert_eq!(of_env("-i"), None);
    }
}
