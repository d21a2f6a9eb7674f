//! The protocol of the slots under loom, with one mutex for all leaves. Fences stand in for the kernel's.

use loom::cell::UnsafeCell;

use super::readers::Readers;
use super::{Place, Span};
use crate::sync::{Arc, Mutex, MutexGuard, thread};

const SPAN: Span = Span { start: 3, last: 7 };

struct Model {
    readers: Readers,
    /// How many readers are in the leaves.
    leaves: Mutex<usize>,
    data: UnsafeCell<u32>,
}

// SAFETY: `data` is used by who has the lock, which is what is explored: loom reports who has not.
unsafe impl Sync for Model {}
// SAFETY: it is a number.
unsafe impl Send for Model {}

impl Model {
    fn leaves(&self) -> MutexGuard<'_, usize> {
        self.leaves.lock().expect("no panic")
    }

    fn spread(&self) {
        self.readers.spread(|now| {
            let _leaves = self.leaves();
            now();
        });
    }

    /// Reads if it can be done by way of a slot.
    fn read(&self) -> Option<Place> {
        let place = self.readers.take(SPAN)?;
        // SAFETY: it is locked for reading.
        self.data.with(|data| unsafe { *data });
        Some(place)
    }

    fn give(&self, place: Place) {
        let is_in_leaves = match place.as_note() {
            Some(at) => !self.readers.give(at, || *self.leaves() += 1),
            None => true,
        };
        if is_in_leaves {
            *self.leaves() -= 1;
        }
    }

    /// Writes unless somebody reads. Returns whether it did.
    fn write(&self) -> bool {
        loop {
            let leaves = self.leaves();
            if !self.readers.are_in_leaves() {
                drop(leaves);
                self.readers.gather(|span| {
                    assert_eq!(span, SPAN);
                    *self.leaves() += 1;
                });
                continue;
            }
            if *leaves == 0 {
                // SAFETY: nobody reads, and `leaves` is locked until this is done.
                self.data.with_mut(|data| unsafe { *data += 1 });
            }
            return *leaves == 0;
        }
    }
}

fn explore(preemptions: Option<usize>, test: impl Fn(Arc<Model>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let model = Arc::new(Model {
            readers: Readers::new(),
            leaves: Mutex::new(0),
            data: UnsafeCell::new(0),
        });
        model.spread();
        test(Arc::clone(&model));
        assert_eq!(*model.leaves(), 0, "somebody is left behind");
        assert!(model.write(), "nobody reads any more");
    });
}

fn spawn(model: &Arc<Model>, work: impl FnOnce(&Model) + Send + 'static) -> thread::JoinHandle<()> {
    let model = Arc::clone(model);
    thread::spawn(move || work(&model))
}

fn read_twice(model: &Model) {
    for _ in 0..2 {
        if let Some(place) = model.read() {
            model.give(place);
        }
    }
}

#[test]
fn a_reader_and_a_writer() {
    explore(None, |model| {
        let reader = spawn(&model, read_twice);
        model.write();
        reader.join().expect("no panic");
    });
}

#[test]
fn readers_spread_again_while_one_is_moved() {
    explore(Some(3), |model| {
        let reader = spawn(&model, read_twice);
        model.write();
        model.spread();
        model.write();
        reader.join().expect("no panic");
    });
}

#[test]
fn two_readers_and_two_writers() {
    explore(Some(2), |model| {
        let readers = [spawn(&model, read_twice), spawn(&model, read_twice)];
        let writer = spawn(&model, |model| {
            model.write();
            model.spread();
        });
        model.write();
        for thread in readers.into_iter().chain([writer]) {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn another_thread_gives_back() {
    explore(Some(3), |model| {
        let writer = spawn(&model, |model| {
            model.write();
        });
        if let Some(place) = model.read() {
            let other = spawn(&model, move |model| model.give(place));
            // Its slot has room for two: the first may still be there.
            for place in [model.read(), model.read()].into_iter().flatten() {
                model.give(place);
            }
            other.join().expect("no panic");
        }
        writer.join().expect("no panic");
    });
}

#[test]
fn a_guard_is_split_while_readers_are_gathered() {
    explore(Some(3), |model| {
        let writer = spawn(&model, |model| {
            model.write();
        });
        if let Some(place) = model.read() {
            if let Some(at) = place.as_note() {
                model.readers.move_one(at, || *model.leaves() += 1);
            }
            model.give(Place::LEAVES);
        }
        writer.join().expect("no panic");
    });
}
