//! What is taken from a queue, in which order, and what is found.

use super::*;
use crate::icv;
use proptest::prelude::*;

/// The numbers of tasks that are linked by `newer`.
fn haul_of(mut task: *mut Task, tasks: &[Box<Task>]) -> Vec<usize> {
    let mut found = Vec::new();
    while !task.is_null() {
        found.extend(tasks.iter().position(|t| ptr::eq(&raw const **t, task)));
        // SAFETY: one of the tasks.
        task = unsafe { (*task).newer };
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_haul_is_the_oldest_in_their_order_and_whoever_searches_finds_all_of_it(
        count in 0_usize..40,
        wanted in 0_usize..40,
    ) {
        let (board, owner, thief) = (Board::default(), Queue::default(), Queue::default());
        board.enlist(0, &owner);
        board.enlist(1, &thief);
        let implicit = || Box::new(Task::implicit(ptr::null_mut(), icv::globals().initial));
        let mut tasks: Vec<_> = (0..count).map(|_| implicit()).collect();
        for task in &mut tasks {
            // SAFETY: this thread is the owner.
            unsafe { owner.push(&raw mut **task) };
        }
        prop_assert!(board.steal_haul(1, &mut || false).is_null());
        let haul = haul_of(board.steal_haul(1, &mut || true), &tasks);
        let many = match count / 2 {
            half if half < FEW as usize => 0,
            half => half.min(HAUL as usize),
        };
        prop_assert_eq!(&haul, &(0..many).collect::<Vec<_>>());
        prop_assert_eq!(owner.len() as usize, count - many);
        if many == 0 {
            return Ok(());
        }
        // SAFETY: this thread is the thief; the first one it runs.
        unsafe { thief.keep(tasks[0].newer) };
        prop_assert_eq!(thief.len() as usize, many - 1);
        // Those are nobody's descendants here.
        prop_assert!(thief.take_newest(FIRST_NUMBER, || true).is_null());
        // However few a search looks at in passing.
        let wanted = 1 + wanted % (many - 1);
        let target = &raw const *tasks[wanted];
        let is_wanted = |task: *mut Task| ptr::eq(task, target);
        let found = board.steal(0, &mut Search::Some(&is_wanted, 1));
        prop_assert!(ptr::eq(found, target));
        let mut left = Vec::new();
        loop {
            let task = thief.take_newest(0, || true);
            if task.is_null() {
                break;
            }
            left.extend(tasks.iter().position(|t| ptr::eq(&raw const **t, task)));
        }
        prop_assert_eq!(left, (1..many).filter(|&n| n != wanted).collect::<Vec<_>>());
        // The others are there, the oldest first for a thief.
        let mut rest = Vec::new();
        loop {
            let task = board.steal(1, &mut Search::Any(&mut || true));
            if task.is_null() {
                break;
            }
            rest.extend(tasks.iter().position(|t| ptr::eq(&raw const **t, task)));
        }
        prop_assert_eq!(rest, (many..count).collect::<Vec<_>>());
        prop_assert_eq!((owner.len(), thief.len()), (0, 0));
    }
}
