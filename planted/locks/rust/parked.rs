//! Of `parking_lot`.

use parking_lot::{Condvar, Mutex, RwLock};

use super::{Family, family, keep_it, stay};

pub const FAMILIES: [Family; 4] = [
    family("parking_lot-mutex", hold_mutex, want_mutex),
    family("parking_lot-read", hold_for_writing, want_to_read),
    family("parking_lot-write", hold_for_reading, want_to_write),
    family("parking_lot-condvar", ring, wait_for_the_bell),
];

static VAULT: Mutex<u32> = Mutex::new(0);
static ARCHIVE: RwLock<u32> = RwLock::new(0);
static RUNG: Mutex<u32> = Mutex::new(0);
static BELL: Condvar = Condvar::new();

fn hold_mutex(round: u32) {
    let held = VAULT.lock();
    keep_it(round);
    drop(held);
    stay();
}

#[inline(never)]
fn want_mutex(round: u32) {
    *VAULT.lock() = round;
}

fn hold_for_writing(round: u32) {
    let held = ARCHIVE.write();
    keep_it(round);
    drop(held);
    stay();
}

#[inline(never)]
fn want_to_read(round: u32) {
    assert!(*ARCHIVE.read() <= round);
}

fn hold_for_reading(round: u32) {
    let held = ARCHIVE.read();
    keep_it(round);
    drop(held);
    stay();
}

#[inline(never)]
fn want_to_write(round: u32) {
    *ARCHIVE.write() = round;
}

fn ring(round: u32) {
    keep_it(round);
    *RUNG.lock() = round;
    BELL.notify_one();
    stay();
}

#[inline(never)]
fn wait_for_the_bell(round: u32) {
    let mut rung = RUNG.lock();
    BELL.wait_while(&mut rung, |rung| *rung != round);
}
