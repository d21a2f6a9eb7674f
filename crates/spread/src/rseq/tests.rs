//! That the kernel aborts sequences as we tell it, and that each way of registering is found.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::{env, mem, thread};

use super::area::UNREGISTERED;
use super::{
    Registration, Rows, add, add_fetch, cpu, own, register_thread, registration, sequence,
};

#[path = "../../tests/again/mod.rs"]
mod again;

/// Words for all CPUs that can be.
fn words() -> (Vec<AtomicI64>, Rows) {
    let cpus = crate::LlcMap::of_this_machine().cpus();
    let words: Vec<AtomicI64> = (0..16 * cpus).map(|_| AtomicI64::new(0)).collect();
    let rows = Rows {
        base: words.as_ptr().cast_mut().cast(),
        stride: 128,
        cpus,
    };
    (words, rows)
}

fn total(words: &[AtomicI64]) -> i64 {
    words.iter().map(|word| word.load(Ordering::Relaxed)).sum()
}

fn area() -> *mut super::area::Area {
    match registration() {
        Registration::Libc { offset } => sequence::area_from_thread_pointer(offset),
        _ => own::area(),
    }
}

/// Additions that take microseconds, of threads that are pushed about, so that most interruptions hit one.
#[test]
fn interrupted_sequences_begin_again() {
    const ABORTS: u64 = 200;
    let registration = registration();
    if registration == Registration::None {
        eprintln!("SKIPPED: sequences: this kernel or emulator has none");
        return;
    }
    let cpus: Vec<u32> = amdahl_topology::allowed().unwrap().iter().collect();
    let (words, rows) = words();
    // Raw pointers are not shared between threads, addresses are.
    let base = rows.base.expose_provenance();
    let (added, aborts, stop) = (AtomicI64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (added, aborts, stop) = (&added, &aborts, &stop);
        for _ in 0..cpus.len().min(8) + 2 {
            let (send, receive) = std::sync::mpsc::channel();
            scope.spawn(move || {
                // SAFETY: takes nothing.
                send.send(unsafe { libc::gettid() } as u32).unwrap();
                register_thread(registration);
                let rows = Rows {
                    base: std::ptr::with_exposed_provenance_mut(base),
                    ..rows
                };
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: registered above; each possible CPU has a word.
                    let begun = unsafe { sequence::add_slowly_at(area(), &rows, 1) };
                    aborts.fetch_add(begun - 1, Ordering::Relaxed);
                    // SAFETY: as above.
                    let fast = unsafe { add(registration, &rows, 1) };
                    // SAFETY: as above.
                    let fetched = unsafe { add_fetch(registration, &rows, 1) };
                    assert!(fast && fetched.is_some());
                    added.fetch_add(3, Ordering::Relaxed);
                }
            });
            let thread = receive.recv().unwrap();
            let cpus = &cpus;
            scope.spawn(move || {
                for n in 0.. {
                    let one = [cpus[n % cpus.len()]].into_iter().collect();
                    if amdahl_topology::set_allowed(thread, &one).is_err() {
                        // It has ended.
                        assert!(stop.load(Ordering::Relaxed));
                        break;
                    }
                    if aborts.load(Ordering::Relaxed) >= ABORTS {
                        stop.store(true, Ordering::Relaxed);
                        break;
                    }
                    thread::yield_now();
                }
            });
        }
    });
    assert_eq!(total(&words), added.into_inner());
}

/// Threads without words for their CPU add nothing; others are told where they were.
#[test]
fn a_cpu_without_a_word_is_left_alone() {
    let registration = registration();
    let (words, rows) = words();
    let none = Rows { cpus: 0, ..rows };
    // SAFETY: no words are claimed.
    assert!(!unsafe { add(registration, &none, 1) });
    // SAFETY: as above.
    assert_eq!(unsafe { add_fetch(registration, &none, 1) }, None);
    assert_eq!(total(&words), 0);
    if registration != Registration::None {
        // SAFETY: each possible CPU has a word.
        let (cpu, sum) = unsafe { add_fetch(registration, &rows, 5) }.unwrap();
        assert_eq!(
            (sum, words[16 * cpu as usize].load(Ordering::Relaxed)),
            (5, 5)
        );
    }
}

/// The instructions themselves, also where no kernel interrupts them: an area that says what we want.
#[test]
fn sequences_add_to_the_word_of_the_cpu() {
    let words: Vec<AtomicI64> = (0..48).map(|_| AtomicI64::new(10)).collect();
    let rows = Rows {
        base: words.as_ptr().cast_mut().cast(),
        stride: 128,
        cpus: 3,
    };
    let mut area = super::area::Area {
        cpu_id_start: 0,
        cpu_id: 0,
        rseq_cs: 0,
        flags: 0,
        padding: [0; 3],
    };
    let area = &raw mut area;
    for cpu in 0..5 {
        // SAFETY: the area and the words are this thread's.
        let (added, fetched) = unsafe {
            (*area).cpu_id = if cpu == 4 { UNREGISTERED } else { cpu };
            let added = sequence::add_at(area, &rows, i64::MAX);
            (added, sequence::add_fetch_at(area, &rows, -3))
        };
        let sum = 10_i64.wrapping_add(i64::MAX) - 3;
        assert_eq!(
            (added, fetched),
            match cpu {
                0..3 => (true, Some((cpu, sum))),
                _ => (false, None),
            }
        );
        // SAFETY: as above.
        unsafe {
            assert_ne!((*area).rseq_cs, 0, "armed");
            assert_eq!((*area).rseq_cs % 32, 0, "descriptors are aligned");
        }
        if cpu < 3 {
            assert_eq!(words[16 * cpu as usize].load(Ordering::Relaxed), sum);
        }
    }
    let changed = words
        .iter()
        .filter(|word| word.load(Ordering::Relaxed) != 10);
    assert_eq!(changed.count(), 3);
}

#[test]
fn the_cpu_is_the_one_the_kernel_says() {
    register_thread(registration());
    let Some(_) = cpu(registration()) else {
        eprintln!("SKIPPED: the CPU: this kernel or emulator does not tell");
        return;
    };
    for number in amdahl_topology::allowed().unwrap().iter() {
        amdahl_topology::set_allowed(0, &[number].into_iter().collect()).unwrap();
        assert_eq!(cpu(registration()), Some(number));
    }
}

/// Run by the tests below in processes of their own.
#[test]
fn registration_is_as_expected() {
    let found = match registration() {
        Registration::Libc { .. } => "libc",
        Registration::Own => "own",
        Registration::None => "none",
    };
    match env::var(again::EXPECTED) {
        Ok(expected) => assert_eq!(found, expected),
        Err(_) => println!("registration here: {found}"),
    }
}

#[test]
fn all_of_it_where_the_c_library_does_not_register() {
    if registration() == Registration::None {
        eprintln!("SKIPPED: own registration: this kernel or emulator has no sequences");
        return;
    }
    again::unregistered();
}

#[test]
fn all_of_it_where_the_kernel_refuses() {
    again::refused();
}

/// A thread that ends is no longer registered by us: the kernel would write to memory that is gone.
#[test]
fn threads_come_and_go() {
    let (words, rows) = words();
    let registration = registration();
    let base = rows.base.expose_provenance();
    let mut added = 0;
    for _ in 0..200 {
        let one = thread::spawn(move || {
            let rows = Rows {
                base: std::ptr::with_exposed_provenance_mut(base),
                ..rows
            };
            // SAFETY: each possible CPU has a word.
            i64::from(unsafe { add(registration, &rows, 1) })
        });
        added += one.join().unwrap();
    }
    assert_eq!(total(&words), added);
    assert!(added == 0 || added == 200);
    assert_eq!(mem::size_of::<super::area::Area>(), 32);
}
