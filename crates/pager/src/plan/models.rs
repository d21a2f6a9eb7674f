//! All interleavings, by loom.

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::Ordering;
use loom::thread;

use super::in_flight::{Flight, InFlight};
use super::pages::{Claim, LANES, Pages, State};
use super::waits::{Left, Waits};

const LONG: Duration = Duration::from_secs(3600);

/// Fetches `page` or waits until it is there, as a faulting thread does. How many pages it fetched.
fn touch(pages: &Pages, waits: &Waits, page: usize, window: std::ops::Range<usize>) -> usize {
    loop {
        match pages.claim(page, window.clone()) {
            Claim::Taken { pages: taken, .. } => {
                pages.complete(taken.clone());
                waits.wake(taken.clone());
                return taken.len();
            }
            Claim::Busy => waits.wait(pages, page, LONG),
            Claim::Present => return 0,
        }
    }
}

#[test]
fn a_page_is_fetched_once_and_all_who_wait_are_woken() {
    loom::model(|| {
        let all = Arc::new((Pages::new(4, false), Waits::new(1)));
        let threads: Vec<_> = [0..2, 0..4]
            .into_iter()
            .map(|window| {
                let all = Arc::clone(&all);
                thread::spawn(move || touch(&all.0, &all.1, 1, window))
            })
            .collect();
        let fetched: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert!(fetched == 2 || fetched == 4, "{fetched} pages");
        assert_eq!(all.0.state(1), State::Present);
    });
}

#[test]
fn windows_over_two_words_never_share_a_page() {
    loom::model(|| {
        let all = Arc::new((Pages::new(LANES + 2, false), Waits::new(1)));
        let threads: Vec<_> = [LANES - 1, LANES]
            .into_iter()
            .map(|page| {
                let all = Arc::clone(&all);
                thread::spawn(move || touch(&all.0, &all.1, page, LANES - 2..LANES + 2))
            })
            .collect();
        let fetched: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(fetched, all.0.count_of(State::Present));
        assert_eq!(all.0.state(LANES), State::Present);
    });
}

#[test]
fn a_page_that_is_given_back_is_fetched_by_who_waited() {
    loom::model(|| {
        let all = Arc::new((Pages::new(1, false), Waits::new(1)));
        assert!(matches!(all.0.claim(0, 0..1), Claim::Taken { .. }));
        let other = {
            let all = Arc::clone(&all);
            thread::spawn(move || touch(&all.0, &all.1, 0, 0..1))
        };
        all.0.release(0..1, State::Missing);
        all.1.wake(0..1);
        assert_eq!(other.join().unwrap(), 1);
    });
}

#[test]
fn who_is_left_waiting_is_heard_of_whoever_else_comes_between() {
    loom::model(|| {
        let all = Arc::new((Pages::new(2, false), Left::new(2)));
        assert!(matches!(all.0.claim(0, 0..1), Claim::Taken { .. }));
        assert!(matches!(all.0.claim(1, 1..2), Claim::Taken { .. }));
        let complete = |page: usize| {
            let all = Arc::clone(&all);
            move || {
                all.0.complete(page..page + 1);
                all.1.take(page..page + 1)
            }
        };
        let (one, other) = (thread::spawn(complete(0)), thread::spawn(complete(1)));
        let is_left = all.1.leave(&all.0, 0);
        let (heard, _) = (one.join().unwrap(), other.join().unwrap());
        assert!(heard || !is_left);
    });
}

/// What the kernel has at a page. COPY puts content only where nothing is, as the real one does.
struct Kernel(loom::sync::atomic::AtomicU32);

const NOTHING: u32 = 0;
const CONTENT: u32 = 1;
const ZERO: u32 = 2;
const POISON: u32 = 3;

impl Kernel {
    fn put(&self, what: u32) {
        let _ = self
            .0
            .compare_exchange(NOTHING, what, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// A page of memory that was handed over, with its gate.
struct Page {
    pages: Pages,
    flights: InFlight,
    kernel: Kernel,
    gate: loom::sync::Mutex<()>,
}

impl Page {
    fn new() -> Arc<Page> {
        Arc::new(Page {
            pages: Pages::new(1, true),
            flights: InFlight::new(1),
            kernel: Kernel(loom::sync::atomic::AtomicU32::new(NOTHING)),
            gate: loom::sync::Mutex::new(()),
        })
    }

    /// A fetch that has claimed the page, as `Inner::fetch` and `place` do it.
    fn place(&self, mut flight: Flight<'_>) {
        let _open = self.gate.lock().unwrap();
        if !flight.settle() {
            return;
        }
        match self.pages.first_struck(0..1) {
            Some(_) => {
                self.pages.forgive(0);
                self.kernel.put(ZERO);
            }
            None => self.kernel.put(CONTENT),
        }
        self.pages.complete(0..1);
    }

    /// The watchdog, for which every fetch is late, as `Inner::lose` does it.
    fn give_up(&self) {
        for fetch in self.flights.give_up(u64::MAX) {
            let _open = self.gate.lock().unwrap();
            match self.pages.first_struck(fetch.pages.clone()) {
                Some(_) => {
                    self.pages.forgive(0);
                    self.pages.release(fetch.pages, State::Removed);
                }
                None => {
                    self.kernel.put(POISON);
                    self.pages.complete(fetch.pages);
                }
            }
        }
    }

    /// The owner gives the page up: it is told first, and then nothing is there.
    fn balloon(&self) {
        let closed = self.gate.lock().unwrap();
        self.pages.remove(0..1);
        drop(closed);
        self.kernel.0.store(NOTHING, Ordering::SeqCst);
    }
}

#[test]
fn a_late_fetch_never_puts_content_where_zeros_must_be() {
    loom::model(|| {
        let page = Page::new();
        assert!(matches!(page.pages.claim(0, 0..1), Claim::Taken { .. }));
        let others: [fn(&Page); 2] = [Page::give_up, Page::balloon];
        let others = others.map(|other| {
            let page = Arc::clone(&page);
            thread::spawn(move || other(&page))
        });
        let flight = page.flights.enter(&(0..1), None, 7, 1, true).unwrap();
        page.place(flight);
        for other in others {
            other.join().unwrap();
        }
        // Touched again, by whom it was given up.
        match page.pages.state(0) {
            State::Removed => {}
            // It was on its way when it was given up, and zeros were put, which the balloon may have taken away again.
            State::Present => {}
            state => panic!("{state:?}"),
        }
        let found = page.kernel.0.load(Ordering::SeqCst);
        assert!(found == NOTHING || found == ZERO, "{found}");
        assert!(page.flights.is_quiet());
    });
}

#[test]
fn only_the_late_one_of_two_fetches_in_a_slot_is_given_up() {
    loom::model(|| {
        let flights = Arc::new(InFlight::new(1));
        let watchdog = {
            let flights = Arc::clone(&flights);
            thread::spawn(move || {
                let late: Vec<_> = flights.give_up(50).map(|fetch| fetch.pages.start).collect();
                assert!(late.is_empty() || late == [3], "{late:?}");
                !late.is_empty()
            })
        };
        let mut late = flights.enter(&(3..4), None, 7, 1, true).unwrap();
        let is_mine = late.settle();
        drop(late);
        let mut other = flights.enter(&(8..9), None, 7, 100, true).unwrap();
        assert!(other.settle());
        assert_eq!(watchdog.join().unwrap(), !is_mine);
    });
}

/// Of a fetch ahead one page is taken by who waits for it, while the fetch ends or is given up: each page is one's, and comes to its end.
#[test]
fn a_page_that_is_taken_out_of_a_fetch_is_nobody_elses() {
    // More preemptions take too long.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        struct All {
            pages: Pages,
            flights: InFlight,
            put: [loom::sync::atomic::AtomicU32; 2],
        }
        impl All {
            fn put(&self, pages: std::ops::Range<usize>) {
                for page in pages {
                    self.put[page].fetch_add(1, Ordering::SeqCst);
                    self.pages.complete(page..page + 1);
                }
            }
        }
        let all = Arc::new(All {
            pages: Pages::new(2, false),
            flights: InFlight::new(1),
            put: [0, 0].map(loom::sync::atomic::AtomicU32::new),
        });
        assert!(matches!(all.pages.claim(0, 0..2), Claim::Taken { .. }));
        let mut ahead = all.flights.enter(&(0..2), None, 7, 1, true).unwrap();
        let faulting = {
            let all = Arc::clone(&all);
            thread::spawn(move || {
                if all.flights.carve(1..2) == 1 {
                    all.put(1..2);
                }
            })
        };
        let watchdog = {
            let all = Arc::clone(&all);
            thread::spawn(move || {
                for fetch in all.flights.give_up(u64::MAX) {
                    fetch
                        .own()
                        .for_each(|run| all.pages.release(run, State::Missing));
                }
            })
        };
        if ahead.settle() {
            ahead.own(0..2).for_each(|run| all.put(run));
        }
        drop(ahead);
        faulting.join().unwrap();
        watchdog.join().unwrap();
        for page in 0..2 {
            let put = all.put[page].load(Ordering::SeqCst);
            let state = match put {
                0 => State::Missing,
                _ => State::Present,
            };
            assert!(put <= 1 && all.pages.state(page) == state, "{page}: {put}");
        }
        assert!(all.flights.is_quiet());
    });
}
