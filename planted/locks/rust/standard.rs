//! Of the standard library.

use std::sync::{Condvar, Mutex, OnceLock, RwLock};

use super::{Family, family, keep_it, stay};

pub const FAMILIES: [Family; 5] = [
    family("std-mutex", hold_mutex, want_mutex),
    family("std-read", hold_for_writing, want_to_read),
    family("std-write", hold_for_reading, want_to_write),
    family("std-condvar", ring, wait_for_the_bell),
    family("std-once", open, want_it_open),
];

static VAULT: Mutex<u32> = Mutex::new(0);
static ARCHIVE: RwLock<u32> = RwLock::new(0);
static RUNG: Mutex<u32> = Mutex::new(0);
static BELL: Condvar = Condvar::new();
/// More than there are rounds.
static DOORS: [OnceLock<u32>; 256] = [const { OnceLock::new() }; 256];

const NOBODY_PANICS: &str = "nobody panics";

fn hold_mutex(round: u32) {
    let held = VAULT.lock().expect(NOBODY_PANICS);
    keep_it(round);
    drop(held);
    stay();
}

#[inline(never)]
fn want_mutex(round: u32) {
    *VAULT.lock().expect(NOBODY_PANICS) = round;
}

fn hold_for_writing(round: u32) {
    let held = ARCHIVE.write().expect(NOBODY_PANICS);
    keep_it(round);
    drop(held);
    stay();
}

#[inline(never)]
fn want_to_read(round: u32) {
    assert!(*ARCHIVE.read().expect(NOBODY_PANICS) <= round);
}

fn hold_for_reading(round: u32) {
    let held = ARCHIVE.read().expect(NOBODY_PANICS);
    keep_it(round);
    drop(held);
    stay();
}

#[inline(never)]
fn want_to_write(round: u32) {
    *ARCHIVE.write().expect(NOBODY_PANICS) = round;
}

fn ring(round: u32) {
    keep_it(round);
    *RUNG.lock().expect(NOBODY_PANICS) = round;
    BELL.notify_one();
    stay();
}

#[inline(never)]
fn wait_for_the_bell(round: u32) {
    let rung = RUNG.lock().expect(NOBODY_PANICS);
    let rung = BELL.wait_while(rung, |rung| *rung != round);
    drop(rung.expect(NOBODY_PANICS));
}

fn open(round: u32) {
    DOORS[round as usize].get_or_init(|| {
        keep_it(round);
        round
    });
    stay();
}

#[inline(never)]
fn want_it_open(round: u32) {
    assert_eq!(*DOORS[round as usize].get_or_init(|| 0), round);
}
