//! The channel: every value arrives once, in order for one pair, and everybody wakes up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use amdahl_pool::{Pool, RecvError, SendError, SimulatedCpus, TryRecvError, TrySendError, channel};
use amdahl_topology::Topology;

#[test]
fn values_arrive_in_order() {
    for capacity in [1, 2, 7, 64] {
        let (to, from) = channel(capacity);
        let sender = std::thread::spawn(move || (0..5000).for_each(|n| to.send(n).unwrap()));
        for n in 0..5000 {
            assert_eq!(from.recv(), Ok(n), "capacity {capacity}");
        }
        assert_eq!(from.recv(), Err(RecvError));
        sender.join().unwrap();
    }
}

#[test]
fn each_value_goes_to_one() {
    let (to, from) = channel(3);
    let sum = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (from, sum) = (from.clone(), sum.clone());
            std::thread::spawn(move || {
                while let Ok(n) = from.recv() {
                    sum.fetch_add(n, Ordering::Relaxed);
                }
            })
        })
        .chain((0..4).map(|_| {
            let to = to.clone();
            std::thread::spawn(move || (1..=2000).for_each(|n| to.send(n).unwrap()))
        }))
        .collect();
    drop((to, from));
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(sum.load(Ordering::Relaxed), 4 * 2000 * 2001 / 2);
}

#[test]
fn the_ends_learn_of_each_others_end() {
    let (to, from) = channel(2);
    assert_eq!(from.try_recv(), Err(TryRecvError::Empty));
    to.send(1).unwrap();
    to.send(2).unwrap();
    assert_eq!(to.try_send(3), Err(TrySendError::Full(3)));
    drop(from);
    assert_eq!(to.try_send(4), Err(TrySendError::Closed(4)));
    assert_eq!(to.send(5), Err(SendError(5)));
    let (to, from) = channel::<u8>(2);
    let waiting = std::thread::spawn(move || from.recv());
    drop(to);
    assert_eq!(waiting.join().unwrap(), Err(RecvError));
    let (to, from) = channel(1);
    to.send(1).unwrap();
    let waiting = std::thread::spawn(move || to.send(2));
    drop(from);
    assert_eq!(waiting.join().unwrap(), Err(SendError(2)));
}

/// What is in it when both ends go is dropped once.
#[test]
fn values_left_in_it_are_dropped() {
    struct Counts(Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let (to, from) = channel(8);
    for _ in 0..5 {
        assert!(to.send(Counts(drops.clone())).is_ok());
    }
    drop(from.recv());
    drop((to, from));
    assert_eq!(drops.load(Ordering::Relaxed), 5);
}

/// A value sent at the instant at which the last receiver went stayed in the channel until the last sender went: whoever
/// waited for its destructor waited for ever.
#[test]
fn a_value_sent_while_the_last_receiver_goes_is_dropped() {
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    for _ in 0..rounds {
        let (to, from) = channel(4);
        let value = Arc::new(());
        let here = Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                here.wait();
                drop(from);
            });
            here.wait();
            while to.try_send(value.clone()).is_ok() {}
        });
        assert_eq!(Arc::strong_count(&value), 1, "nobody keeps it");
        drop(to);
    }
}

#[test]
fn futures_send_and_receive() {
    let pool = Pool::new().unwrap();
    let (to, from) = channel(1);
    let (back, answers) = channel(1);
    let echo = pool.spawn_future(async move {
        while let Ok(n) = from.recv_async().await {
            back.send_async(n + 1).await.unwrap();
        }
    });
    for n in 0..1000 {
        to.send(n).unwrap();
        assert_eq!(answers.recv(), Ok(n + 1));
    }
    drop(to);
    echo.join().unwrap();
    assert_eq!(answers.recv(), Err(RecvError));
}

/// A future that was woken and is dropped passes the value on.
#[test]
fn a_dropped_future_takes_nothing_with_it() {
    use std::future::Future;
    use std::task::{Context, Waker};
    let (to, from) = channel(1);
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut first = Box::pin(from.recv_async());
        assert!(first.as_mut().poll(&mut context).is_pending());
        let other = from.clone();
        let waiting = std::thread::spawn(move || other.recv());
        // The future is woken, being first.
        to.send(7).unwrap();
        drop(first);
        let got = waiting.join().unwrap();
        assert_eq!(got, Ok(7));
    }
    assert_eq!(from.try_recv(), Err(TryRecvError::Empty));
}

/// A worker that blocks in a channel lets another one run: else this would wait for itself on one CPU.
#[test]
fn workers_may_block_in_channels() {
    // Two workers wherever this runs: on one CPU as well.
    let cpus = SimulatedCpus::new(Topology::synthetic("2 core").unwrap());
    let pool = Pool::builder()
        .cpus(cpus)
        .follows_load(false)
        .build()
        .unwrap();
    let (to, from) = channel(1);
    let (done, all) = channel(1);
    let receiver = pool.spawn(move || (0..100).map(|_| from.recv().unwrap()).sum::<u32>());
    let sender = pool.spawn(move || (0..100).for_each(|n| to.send(n).unwrap()));
    pool.spawn(move || done.send(receiver.join().unwrap()).unwrap());
    assert_eq!(all.recv(), Ok(4950));
    sender.join().unwrap();
}
