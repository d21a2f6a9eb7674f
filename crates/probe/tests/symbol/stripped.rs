//! Programs without symbols of which something else tells the functions.

use std::process::Command;

use amdahl_probe::symbol::Symbolizer;

use super::target::{Halted, STACK_BYTES, compile};
use super::{C, assert_chain, frame, named, names};

#[test]
fn a_stripped_go_program_is_named_by_its_runtimes_tables() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [&[][..], &["-buildmode=pie"]] {
        let command = [&["go", "build", "-ldflags=-s -w"], flags].concat();
        let Some(program) = compile(folder.path(), &command, "chain.go", "chain") else {
            return;
        };
        let halted = Halted::in_syscall(&program, &[], libc::SYS_read);
        let (stack, _) = named(&mut Symbolizer::new(), &halted.capture(STACK_BYTES));
        assert_chain(
            &stack,
            &["main.inner", "main.outer", "main.main", "runtime.main"],
        );
    }
}

#[test]
fn a_stripped_go_program_with_c_code_is_named() {
    // Code of C comes first in `.text` then, and Go 1.26 does not say in the table where its own begins.
    let folder = tempfile::tempdir().unwrap();
    if compile(folder.path(), C, "chain.c", "linkable").is_none() {
        return;
    }
    for flags in [&[][..], &["-buildmode=pie"]] {
        let command = [&["go", "build", "-ldflags=-s -w -linkmode=external"], flags].concat();
        let Some(program) = compile(folder.path(), &command, "chain_cgo.go", "chain") else {
            return;
        };
        let halted = Halted::in_syscall(&program, &[], libc::SYS_read);
        let (stack, _) = named(&mut Symbolizer::new(), &halted.capture(STACK_BYTES));
        assert_chain(&stack, &["main.inner", "main.main", "runtime.main"]);
    }
}

#[test]
fn names_come_from_packed_debug_data() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), C, "chain.c", "chain") else {
        return;
    };
    let debug = folder.path().join("chain.debug");
    let packed = folder.path().join("chain.debug.xz");
    let section = format!(".gnu_debugdata={}", packed.display());
    let (program_text, debug_text) = (program.to_str().unwrap(), debug.to_str().unwrap());
    for command in [
        &["objcopy", "--only-keep-debug", program_text, debug_text][..],
        &["objcopy", "--strip-debug", debug_text],
        &["xz", "--keep", debug_text],
        &["strip", "--strip-all", program_text],
        &["objcopy", "--add-section", &section, program_text],
    ] {
        if !ran(command) {
            return;
        }
    }
    std::fs::remove_file(&debug).unwrap();
    let halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
    let (stack, _) = named(&mut Symbolizer::new(), &halted.capture(STACK_BYTES));
    assert_chain(
        &stack,
        &["read", "inner", "middle", "outer", "main", "_start"],
    );
    assert_eq!(frame(&stack, "inner").module, program_text);
    assert!(
        !names(&stack).iter().any(|name| name.contains('+')),
        "{:#?}",
        names(&stack)
    );
}

/// Whether the tool is there; it must then do its work.
fn ran(command: &[&str]) -> bool {
    match Command::new(command[0]).args(&command[1..]).status() {
        Ok(status) => {
            assert!(status.success(), "{command:?}");
            true
        }
        Err(error) => {
            eprintln!("SKIPPED: cannot run {}: {error}", command[0]);
            false
        }
    }
}
