//! Real programs, halted at known places: unwinding and naming must tell their chains.

mod hostile;
mod stripped;
mod target;

use std::path::Path;
use std::process::Command;

use amdahl_probe::symbol::{LATEST, StackEnd, Symbolizer};
use amdahl_speedup::event::{CallStack, Frame};
use target::{Captured, Halted, STACK_BYTES, compile};

const C: &[&str] = &["gcc", "-O2", "-fomit-frame-pointer", "-pthread"];

fn names(stack: &CallStack) -> Vec<&str> {
    stack
        .user
        .iter()
        .map(|frame| frame.symbol.as_str())
        .collect()
}

/// `expected` occur in this order, with others between.
#[track_caller]
fn assert_chain(stack: &CallStack, expected: &[&str]) {
    let mut found = names(stack).into_iter();
    for name in expected {
        assert!(
            found.any(|other| other == *name),
            "{name} is not in its place in {:#?}",
            names(stack)
        );
    }
}

fn named(symbolizer: &mut Symbolizer, captured: &Captured) -> (CallStack, StackEnd) {
    let unwound = symbolizer.unwind(&captured.raw());
    (symbolizer.names(&unwound.points, &[]), unwound.end)
}

fn full(symbolizer: &mut Symbolizer, captured: &Captured) -> CallStack {
    let unwound = symbolizer.unwind(&captured.raw());
    symbolizer.full(&unwound.points, &[])
}

#[track_caller]
fn frame<'a>(stack: &'a CallStack, name: &str) -> &'a Frame {
    let frame = stack.user.iter().find(|frame| frame.symbol == name);
    frame.unwrap_or_else(|| panic!("no {name} in {:#?}", names(stack)))
}

/// The line of a program's source that holds `text`.
fn line_of(source: &str, text: &str) -> u32 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/symbol/programs")
        .join(source);
    let source = std::fs::read_to_string(path).unwrap();
    source.lines().position(|line| line.contains(text)).unwrap() as u32 + 1
}

#[test]
fn c_without_frame_pointers_in_every_kind_of_executable() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [
        &["-fPIE", "-pie"][..],
        &["-fno-pie", "-no-pie"],
        &["-static"],
        &["-static-pie", "-fPIE"],
    ] {
        let command = [C, flags].concat();
        let Some(program) = compile(folder.path(), &command, "chain.c", &flags.concat()) else {
            return;
        };
        let halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
        let mut symbolizer = Symbolizer::new();
        let (stack, end) = named(&mut symbolizer, &halted.capture(STACK_BYTES));
        assert_eq!(end, StackEnd::Root, "{flags:?} {:#?}", names(&stack));
        assert_eq!(names(&stack)[0], "read", "{flags:?}");
        assert_chain(
            &stack,
            &["read", "inner", "middle", "outer", "main", "_start"],
        );
        assert_eq!(frame(&stack, "inner").module, program.to_str().unwrap());
    }
}

#[test]
fn waits_for_mutexes_and_conditions() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), C, "chain.c", "chain") else {
        return;
    };
    for (how, call) in [
        ("mutex", "pthread_mutex_lock"),
        ("condition", "pthread_cond_wait"),
    ] {
        let halted = Halted::in_syscall(&program, &[how], libc::SYS_futex);
        let (stack, _) = named(&mut Symbolizer::new(), &halted.capture(STACK_BYTES));
        assert_chain(&stack, &[call, "inner", "middle", "outer", "main"]);
    }
}

#[test]
fn full_tells_inlined_functions_and_lines() {
    let folder = tempfile::tempdir().unwrap();
    let command = [C, &["-g"]].concat();
    let Some(program) = compile(folder.path(), &command, "chain.c", "chain") else {
        return;
    };
    let halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
    let captured = halted.capture(STACK_BYTES);
    let mut symbolizer = Symbolizer::new();
    let stack = full(&mut symbolizer, &captured);
    assert_chain(
        &stack,
        &["read", "inner", "wrapped", "middle", "outer", "main"],
    );
    let place = |name: &str| {
        let frame = frame(&stack, name);
        assert!(
            frame.file.as_ref().unwrap().ends_with("chain.c"),
            "{frame:?}"
        );
        frame.line.unwrap()
    };
    assert_eq!(place("inner"), line_of("chain.c", "sink = read(0"));
    assert_eq!(place("wrapped"), line_of("chain.c", "    inner(how);"));
    assert_eq!(place("middle"), line_of("chain.c", "    wrapped(how);"));
    let (quick, _) = named(&mut symbolizer, &captured);
    assert!(
        !names(&quick).contains(&"wrapped"),
        "names() reads no debug information"
    );
}

/// Its debug information gives it several ranges and no address.
#[test]
fn a_function_in_two_parts_has_lines() {
    let folder = tempfile::tempdir().unwrap();
    let command = [C, &["-g"]].concat();
    let Some(program) = compile(folder.path(), &command, "parted.c", "parted") else {
        return;
    };
    let symbols = Command::new("nm").arg(&program).output();
    let symbols = symbols.expect("compilers come with it").stdout;
    assert!(
        String::from_utf8_lossy(&symbols).contains("take.cold"),
        "the compiler did not part it"
    );
    let halted = Halted::in_syscall(&program, &[], libc::SYS_read);
    let mut symbolizer = Symbolizer::new();
    let stack = full(&mut symbolizer, &halted.capture(STACK_BYTES));
    let take = frame(&stack, "take");
    let file = take.file.as_deref().unwrap_or_default();
    assert!(file.ends_with("parted.c"), "{take:?}");
    assert_eq!(take.line, Some(line_of("parted.c", "= read(fd")));
}

#[test]
fn the_chain_is_right_at_every_instruction() {
    // Prologues, epilogues, PLT stubs, the vDSO: wherever a sample may fall. Without
    // lazy binding: `_dl_runtime_resolve` has its CFA in a register that is not sampled.
    let folder = tempfile::tempdir().unwrap();
    let command = [C, &["-Wl,-z,now"]].concat();
    let Some(program) = compile(folder.path(), &command, "chain.c", "chain") else {
        return;
    };
    let halted = Halted::at_stop(&program, &["stop"]);
    let mut symbolizer = Symbolizer::new();
    let mut innermost = std::collections::BTreeSet::new();
    let mut vdso_steps = 0;
    for _ in 0..3000 {
        let (stack, end) = named(&mut symbolizer, &halted.capture(STACK_BYTES));
        assert_chain(&stack, &["inner", "middle", "outer", "main", "_start"]);
        assert_eq!(end, StackEnd::Root);
        innermost.insert(stack.user[0].symbol.clone());
        vdso_steps += u32::from(stack.user[0].module == "[vdso]");
        halted.step();
    }
    assert!(innermost.contains("inner"), "{innermost:?}");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", halted.pid)).unwrap();
    if maps.contains("[vdso]") && vdso_steps == 0 {
        eprintln!("SKIPPED: clock_gettime did not enter the vDSO: {innermost:?}");
    }
}

#[test]
fn a_short_copy_is_marked_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), C, "chain.c", "chain") else {
        return;
    };
    let halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
    let mut symbolizer = Symbolizer::new();
    // `middle` has more than this on its stack.
    let (stack, end) = named(&mut symbolizer, &halted.capture(400));
    assert_eq!(end, StackEnd::Truncated);
    assert_chain(&stack, &["read", "inner", "middle"]);
    assert!(!names(&stack).contains(&"outer"));
    let (stack, end) = named(&mut symbolizer, &halted.capture(0));
    assert_eq!((stack.user.len(), end), (1, StackEnd::Truncated));
}

#[test]
fn a_dead_process_is_named_from_its_events() {
    let folder = tempfile::tempdir().unwrap();
    let command = [C, &["-g"]].concat();
    let Some(program) = compile(folder.path(), &command, "chain.c", "chain") else {
        return;
    };
    let mut halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
    let captured = halted.capture(STACK_BYTES);
    let mut symbolizer = Symbolizer::new();
    halted.tell(symbolizer.maps_mut());
    halted.kill();
    symbolizer.maps_mut().exit(9, halted.pid);
    let (stack, end) = named(&mut symbolizer, &captured);
    assert_eq!(end, StackEnd::Root);
    assert_chain(
        &stack,
        &["read", "inner", "middle", "outer", "main", "_start"],
    );
    assert_chain(
        &full(&mut symbolizer, &captured),
        &["inner", "wrapped", "middle"],
    );
}

#[test]
fn a_deleted_program_is_named_if_it_was_touched() {
    let folder = tempfile::tempdir().unwrap();
    let command = [C, &["-g"]].concat();
    let Some(program) = compile(folder.path(), &command, "chain.c", "chain") else {
        return;
    };
    let mut halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
    let captured = halted.capture(STACK_BYTES);
    let mut symbolizer = Symbolizer::new();
    symbolizer.touch(halted.pid);
    std::fs::write(folder.path().join("other"), b"not a program").unwrap();
    std::fs::rename(folder.path().join("other"), &program).unwrap();
    halted.kill();
    let (stack, _) = named(&mut symbolizer, &captured);
    assert_chain(&stack, &["inner", "middle", "outer", "main"]);
    assert_chain(
        &full(&mut symbolizer, &captured),
        &["inner", "wrapped", "middle"],
    );
}

#[test]
fn a_program_of_another_mount_namespace_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), C, "chain.c", "chain") else {
        return;
    };
    let unshare = ["--mount", "--propagation", "private"];
    match Command::new("unshare").args(unshare).arg("true").output() {
        Ok(output) if output.status.success() => {}
        _ => return eprintln!("SKIPPED: no right to make a mount namespace"),
    }
    let hidden = folder.path().join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    let script = "mount -t tmpfs tmpfs $1 && cp $0 $1/inside && exec $1/inside read";
    let arguments = [&unshare[..], &["sh", "-c", script]].concat();
    let arguments = [
        &arguments[..],
        &[program.to_str().unwrap(), hidden.to_str().unwrap()],
    ]
    .concat();
    let mut halted =
        Halted::in_syscall_of("inside", Path::new("unshare"), &arguments, libc::SYS_read);
    let captured = halted.capture(STACK_BYTES);
    let mut symbolizer = Symbolizer::new();
    symbolizer.touch(halted.pid);
    halted.kill();
    assert!(!hidden.join("inside").exists());
    let (stack, _) = named(&mut symbolizer, &captured);
    assert_chain(&stack, &["read", "inner", "middle", "outer", "main"]);
    assert_eq!(
        frame(&stack, "main").module,
        hidden.join("inside").to_str().unwrap()
    );
}

#[test]
fn a_stripped_program_still_unwinds() {
    let folder = tempfile::tempdir().unwrap();
    let command = [C, &["-s"]].concat();
    let Some(program) = compile(folder.path(), &command, "chain.c", "stripped") else {
        return;
    };
    let halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
    let mut symbolizer = Symbolizer::new();
    let (stack, end) = named(&mut symbolizer, &halted.capture(STACK_BYTES));
    assert_eq!(end, StackEnd::Root);
    let own: Vec<&str> = stack
        .user
        .iter()
        .filter(|frame| frame.module == program.to_str().unwrap())
        .map(|frame| frame.symbol.as_str())
        .collect();
    // inner, middle, outer, main, _start
    assert_eq!(own.len(), 5, "{:#?}", names(&stack));
    assert!(
        own.iter().all(|name| name.starts_with("stripped+0x")),
        "{own:?}"
    );
    let inner = &symbolizer
        .resolve_names(halted.pid, &[halted.capture(8).ip], &[])
        .user[0];
    assert_eq!(inner.symbol, "read");
}

#[test]
fn names_come_from_a_separate_debug_file() {
    let folder = tempfile::tempdir().unwrap();
    let command = [C, &["-g"]].concat();
    let Some(program) = compile(folder.path(), &command, "chain.c", "chain") else {
        return;
    };
    let debug = folder.path().join("chain.debug");
    for arguments in [
        vec![
            "--only-keep-debug".as_ref(),
            program.as_os_str(),
            debug.as_os_str(),
        ],
        vec!["--strip-all".as_ref(), program.as_os_str()],
        vec![
            "--add-gnu-debuglink=chain.debug".as_ref(),
            program.as_os_str(),
        ],
    ] {
        let mut command = Command::new("objcopy");
        match command.current_dir(folder.path()).args(arguments).status() {
            Err(error) => return eprintln!("SKIPPED: cannot run objcopy: {error}"),
            Ok(status) => assert!(status.success()),
        }
    }
    let halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
    let captured = halted.capture(STACK_BYTES);
    let mut symbolizer = Symbolizer::new();
    let (stack, _) = named(&mut symbolizer, &captured);
    assert_chain(&stack, &["inner", "middle", "outer", "main"]);
    let stack = full(&mut symbolizer, &captured);
    assert_chain(&stack, &["inner", "wrapped", "middle", "outer", "main"]);
    assert_eq!(
        frame(&stack, "inner").line,
        Some(line_of("chain.c", "sink = read(0"))
    );
    assert_eq!(frame(&stack, "inner").module, program.to_str().unwrap());
}

#[test]
fn a_forked_child_is_unwound_by_its_parents_mappings() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), C, "chain.c", "chain") else {
        return;
    };
    let halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
    let mut symbolizer = Symbolizer::new();
    halted.tell(symbolizer.maps_mut());
    let child = u32::MAX;
    symbolizer.maps_mut().fork(5, halted.pid, child);
    let captured = halted.capture(STACK_BYTES);
    let parents = symbolizer.unwind(&captured.raw());
    let childs = symbolizer.unwind(
        &Captured {
            pid: child,
            ..captured
        }
        .raw(),
    );
    assert_eq!(parents, childs);
    assert_chain(
        &symbolizer.names(&childs.points, &[]),
        &["read", "inner", "main"],
    );
}

#[test]
fn generated_code_is_named_by_its_map() {
    if cfg!(not(target_arch = "x86_64")) {
        return eprintln!("SKIPPED: the program generates x86-64 code");
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), C, "chain.c", "chain") else {
        return;
    };
    let halted = Halted::in_syscall(&program, &["generated"], libc::SYS_read);
    let captured = halted.capture(STACK_BYTES);
    let mut symbolizer = Symbolizer::new();
    let unwound = symbolizer.unwind(&captured.raw());
    let stack = symbolizer.names(&unwound.points, &[]);
    assert_chain(
        &stack,
        &[
            "read",
            "inner",
            "called_by_generated",
            "generated_code",
            "generated",
            "main",
        ],
    );
    let depth = names(&stack)
        .iter()
        .position(|name| *name == "generated_code")
        .unwrap();
    assert_eq!(stack.user[depth].module, "[jit]");
    let code = symbolizer
        .code(halted.pid, unwound.addresses[depth])
        .unwrap();
    assert!(!code.is_function);
    let from_ip = &code.bytes[(code.ip - code.start) as usize..];
    assert_eq!(from_ip[..2], [0x5d, 0xc3], "pop rbp; ret");
}

#[test]
fn code_is_that_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [&[][..], &["-s"]] {
        let command = [C, flags].concat();
        let Some(program) = compile(folder.path(), &command, "chain.c", "chain") else {
            return;
        };
        let halted = Halted::in_syscall(&program, &["read"], libc::SYS_read);
        let mut symbolizer = Symbolizer::new();
        let unwound = symbolizer.unwind(&halted.capture(STACK_BYTES).raw());
        // read, inner, middle, outer, main
        for &address in &unwound.addresses[..5] {
            let code = symbolizer.code(halted.pid, address).unwrap();
            assert!(code.is_function, "a symbol or an FDE tells where it begins");
            let start = address - (code.ip - code.start);
            assert_eq!(*code.bytes, *halted.memory(start, code.bytes.len()));
        }
    }
}

#[test]
fn cpp_names_are_demangled() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), &["g++", "-O2", "-g"], "chain.cpp", "chain") else {
        return;
    };
    let halted = Halted::in_syscall(&program, &[], libc::SYS_read);
    let (stack, _) = named(&mut Symbolizer::new(), &halted.capture(STACK_BYTES));
    assert_chain(
        &stack,
        &[
            "read",
            "pool::block(std::vector<int, std::allocator<int> > const&)",
            "main",
        ],
    );
    assert!(
        names(&stack)
            .iter()
            .any(|name| name.contains("pool::Worker::run<main::{lambda(int)#1}>")),
        "{:#?}",
        names(&stack)
    );
}

#[test]
fn rust_names_are_demangled_in_both_schemes() {
    let folder = tempfile::tempdir().unwrap();
    for scheme in [
        "-Csymbol-mangling-version=legacy",
        "-Csymbol-mangling-version=v0",
    ] {
        let command = [
            "rustc",
            "--edition=2021",
            "-O",
            "-g",
            "--crate-name=chain",
            scheme,
        ];
        // The legacy scheme can only be asked for on a nightly compiler.
        let command = if scheme.ends_with("legacy") {
            &command[..5]
        } else {
            &command[..]
        };
        let Some(program) = compile(folder.path(), command, "chain.rs", "chain") else {
            return;
        };
        let halted = Halted::in_syscall(&program, &[], libc::SYS_read);
        let captured = halted.capture(STACK_BYTES);
        let mut symbolizer = Symbolizer::new();
        let (stack, end) = named(&mut symbolizer, &captured);
        assert_chain(
            &stack,
            &[
                "read",
                "chain::inner",
                "chain::outer",
                "chain::main",
                "main",
            ],
        );
        assert_eq!(end, StackEnd::Root);
        let stack = full(&mut symbolizer, &captured);
        let all = names(&stack);
        let wrapped = all
            .iter()
            .position(|name| name.starts_with("chain::wrapped"))
            .expect("inlined");
        assert!(
            all[..wrapped].contains(&"chain::inner")
                && all[wrapped + 1..].contains(&"chain::outer"),
            "{all:#?}"
        );
        assert_eq!(
            stack.user[wrapped].line,
            Some(line_of("chain.rs", "value.into() + "))
        );
    }
}

#[test]
fn goroutine_stacks_are_unwound() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [
        &[][..],
        &["-ldflags=-w"],
        &["-ldflags=-compressdwarf=false"],
    ] {
        let command = [&["go", "build"], flags].concat();
        let Some(program) = compile(folder.path(), &command, "chain.go", "chain") else {
            return;
        };
        let halted = Halted::in_syscall(&program, &[], libc::SYS_read);
        let captured = halted.capture(STACK_BYTES);
        let mut symbolizer = Symbolizer::new();
        let (stack, _) = named(&mut symbolizer, &captured);
        assert_chain(
            &stack,
            &[
                "syscall.read",
                "main.inner",
                "main.outer",
                "main.main",
                "runtime.main",
            ],
        );
        if !flags.contains(&"-ldflags=-w") {
            let stack = full(&mut symbolizer, &captured);
            assert_chain(
                &stack,
                &["syscall.read", "syscall.Read", "main.inner", "main.outer"],
            );
            assert_eq!(
                frame(&stack, "main.inner").line,
                Some(line_of("chain.go", "syscall.Read(0"))
            );
        }
    }
}

#[test]
fn kernel_addresses_are_named() {
    let kallsyms = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let entry = kallsyms.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let address = u64::from_str_radix(fields.next()?, 16).ok()?;
        (fields.nth(1)? == "do_exit").then_some(address)
    });
    let mut symbolizer = Symbolizer::new();
    let Some(address) = entry.filter(|&address| address != 0) else {
        let stack = symbolizer.names(&[], &[0xffff_ffff_8100_0010]);
        assert_eq!(stack.kernel[0].symbol, "[kernel]+0xffffffff81000010");
        return eprintln!("SKIPPED: /proc/kallsyms shows no addresses");
    };
    // The last one is a return address: the byte before its target is `do_exit`'s.
    // PERF_CONTEXT_KERNEL is no address.
    let stack = symbolizer.names(&[], &[-128_i64 as u64, address + 4, address + 1]);
    assert_eq!(stack.kernel.len(), 2);
    for frame in &stack.kernel {
        assert_eq!(
            (frame.symbol.as_str(), frame.module.as_str()),
            ("do_exit", "[kernel]")
        );
    }
}

#[test]
fn any_kernel_address_is_answered() {
    let stack = Symbolizer::new().names(&[], &[0, 1, 1 << 63, 0xffff_ffff_ffff_0000]);
    assert_eq!(stack.kernel.len(), 4);
    assert!(
        stack
            .kernel
            .iter()
            .all(|frame| frame.module == "[kernel]" && !frame.symbol.is_empty())
    );
}

#[test]
fn a_symbolizer_may_move_between_threads() {
    fn assert_send<T: Send>() {}
    assert_send::<Symbolizer>();
}

#[test]
fn own_process_is_read_without_events() {
    let mut symbolizer = Symbolizer::new();
    let here = own_process_is_read_without_events as *const () as u64;
    let points = symbolizer.locate(std::process::id(), LATEST, &[here]);
    let stack = symbolizer.names(&points, &[]);
    assert!(
        stack.user[0]
            .symbol
            .ends_with("own_process_is_read_without_events"),
        "{stack:?}"
    );
}
