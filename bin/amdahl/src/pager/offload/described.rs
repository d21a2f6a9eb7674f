//! What `migration_config.json` says of a guest's memory. Pure.

use amdahl_pager::PAGE;
use serde::Deserialize;

/// A slot, of `guest_ram_mappings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Described {
    pub slot: u32,
    pub gpa: u64,
    pub size: u64,
    pub file_offset: u64,
}

#[derive(Deserialize)]
struct Config {
    memory_manager_data: Data,
}

#[derive(Deserialize)]
struct Data {
    guest_ram_mappings: Vec<Described>,
}

/// More are no VM's.
pub const SLOTS_MAX: usize = 1024;

/// The slots of a migration's configuration.
pub fn described(config: &[u8]) -> Result<Vec<Described>, String> {
    let config: Config = serde_json::from_slice(config)
        .map_err(|error| format!("the slots of memory are not found: {error}"))?;
    let slots = config.memory_manager_data.guest_ram_mappings;
    let is_whole = |number: u64| number.is_multiple_of(PAGE as u64);
    let is_right = |slot: &Described| {
        let ends = [
            slot.gpa.checked_add(slot.size),
            slot.file_offset.checked_add(slot.size),
        ];
        slot.size > 0
            && [slot.gpa, slot.size, slot.file_offset]
                .into_iter()
                .all(is_whole)
            && ends.iter().all(|end| end.is_some_and(|end| end <= 1 << 52))
    };
    match !slots.is_empty() && slots.len() <= SLOTS_MAX && slots.iter().all(is_right) {
        true => Ok(slots),
        false => Err("the slots of memory are not of whole pages, none, or too many".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_and_odd_ones_refused() {
        let config = |slots: &str| {
            format!(
                r#"{{"vm_config":{{}},"memory_manager_data":{{"guest_ram_mappings":[{slots}],"boot_ram":1}}}}"#
            )
        };
        let slot = |gpa: u64, size: u64, offset: u64| {
            format!(
                r#"{{"slot":3,"gpa":{gpa},"size":{size},"zone_id":"mem0","virtio_mem":false,"file_offset":{offset}}}"#
            )
        };
        let text = config(&format!(
            "{},{}",
            slot(0, 8192, 0),
            slot(1 << 32, 4096, 8192)
        ));
        let found = described(text.as_bytes()).unwrap();
        assert_eq!(
            found[1],
            Described {
                slot: 3,
                gpa: 1 << 32,
                size: 4096,
                file_offset: 8192
            }
        );
        for wrong in [
            String::new(),
            "{}".to_owned(),
            config(""),
            config(&slot(0, 0, 0)),
            config(&slot(0, 100, 0)),
            config(&slot(1, 4096, 0)),
            config(&slot(0, 4096, u64::MAX - 4095)),
            config(&slot(0, 1 << 60, 0)),
        ] {
            assert!(described(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
