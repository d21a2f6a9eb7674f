#![no_main]

libfuzzer_sys::fuzz_target!(
    |bytes: &[u8]| (amdahl_fuzz_targets::target("clean_offer").run)(bytes)
);
