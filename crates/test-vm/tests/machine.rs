//! A machine computes what the model does, whatever its CPUs are, also when it is stopped and goes on elsewhere.

use std::sync::Arc;

use amdahl_pager::{Backing, Mapping, PAGE};
use amdahl_test_vm::{BOOT_PAGES, Kind, Machine, contents, kinds, model};

const CPUS: usize = 3;

fn memory() -> Arc<Mapping> {
    let memory = Mapping::new((BOOT_PAGES + 3 * 40) * PAGE, Backing::Small).unwrap();
    Machine::boot(&memory);
    for page in BOOT_PAGES..memory.len() / PAGE {
        memory.write(page * PAGE, &[page as u8; 100]);
    }
    Arc::new(memory)
}

#[test]
fn what_a_machine_computes_is_what_the_model_does() {
    for kind in kinds() {
        let memory = memory();
        let before = contents(&memory);
        let running = Machine::new(kind, memory, CPUS).unwrap().run().unwrap();
        running.wait_for(200);
        for (number, sum) in running.sums().unwrap().into_iter().enumerate() {
            assert!(sum.steps >= 200);
            let expected = model::expected(&before, CPUS, number, sum.steps);
            assert_eq!(sum, expected, "{kind}, CPU {number}");
        }
    }
}

#[test]
fn a_machine_goes_on_where_it_was_stopped_whatever_its_cpus_are_then() {
    let kinds = kinds();
    let memory = memory();
    let before = contents(&memory);
    let mut state = Machine::new(Kind::Threads, memory.clone(), CPUS)
        .unwrap()
        .state();
    let mut reached = 0;
    for turn in 0..6 {
        let kind = kinds[turn % kinds.len()];
        let machine = Machine::of_state(kind, memory.clone(), &state).unwrap();
        let running = machine.run().unwrap();
        running.wait_for(reached + 50);
        reached = running.steps();
        state = running.pause().unwrap().state();
    }
    let running = Machine::of_state(kinds[0], memory, &state).unwrap().run();
    for (number, sum) in running.unwrap().sums().unwrap().into_iter().enumerate() {
        assert_eq!(sum, model::expected(&before, CPUS, number, sum.steps));
    }
}

#[test]
fn one_changed_byte_changes_the_sum() {
    for kind in kinds() {
        let memory = memory();
        let before = contents(&memory);
        let last = memory.len() - 1;
        memory.write(last, &[before[last] ^ 1]);
        let sums = Machine::new(kind, memory, CPUS).unwrap().run().unwrap();
        let sums = sums.sums().unwrap();
        for (number, sum) in sums.iter().enumerate() {
            let expected = model::expected(&before, CPUS, number, sum.steps);
            assert_eq!(*sum == expected, number + 1 < CPUS, "{kind}, CPU {number}");
        }
    }
}

#[test]
fn what_is_no_state_is_refused() {
    assert!(Machine::of_state(Kind::Threads, memory(), &[0; 17]).is_err());
    assert!(Machine::of_state(Kind::Threads, memory(), &[]).is_err());
}
