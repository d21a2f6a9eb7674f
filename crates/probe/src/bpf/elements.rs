//! Maps of an object, by their descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use aya::Ebpf;
use aya::maps::Map;

use super::error::{RecorderError, chain, system};
use super::wire::Totals;
use crate::mapping::Mapping;

/// A map as its type.
pub fn convert<T: TryFrom<Map>>(map: Map) -> Result<T, RecorderError>
where
    T::Error: std::error::Error,
{
    T::try_from(map).map_err(|error| RecorderError::Load(chain(&error)))
}

/// Descriptor of the map `name`.
pub fn map_fd<'a>(bpf: &'a Ebpf, name: &str) -> Result<BorrowedFd<'a>, RecorderError> {
    let map = bpf
        .map(name)
        .unwrap_or_else(|| panic!("the object has the map {name}"));
    let (Map::Array(data) | Map::PerfEventArray(data) | Map::HashMap(data)) = map else {
        panic!("{name} is an array or a hash");
    };
    Ok(data.fd().as_fd())
}

/// The map `name`, mapped into memory.
pub fn map(bpf: &Ebpf, name: &str, len: usize) -> Result<Mapping, RecorderError> {
    let page = rustix::param::page_size();
    Mapping::new(map_fd(bpf, name)?, len.next_multiple_of(page)).map_err(system("map a BPF ring"))
}
#[repr(C)]
struct ElementAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;

fn element<T>(
    command: libc::c_long,
    map: BorrowedFd<'_>,
    key: u32,
    value: *mut T,
) -> io::Result<()> {
    let attr = ElementAttr {
        map_fd: map.as_raw_fd() as u32,
        pad: 0,
        key: &raw const key as u64,
        value: value as u64,
        flags: 0,
    };
    // SAFETY: attr is the prefix of union bpf_attr for these commands, key and value are valid
    // for the sizes that the callers' maps have (u32 keys; the value types are asserted there).
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw const attr,
            size_of::<ElementAttr>(),
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Writes an element of an array.
pub fn update_element(map: BorrowedFd<'_>, key: u32, mut value: u32) -> io::Result<()> {
    element(BPF_MAP_UPDATE_ELEM, map, key, &raw mut value)
}

/// Reads an element of an array.
pub fn lookup_element(map: BorrowedFd<'_>, key: u32, value: &mut Totals) -> io::Result<()> {
    element(BPF_MAP_LOOKUP_ELEM, map, key, value)
}

/// Reads an element of an array of `u32`.
pub fn lookup_u32(map: BorrowedFd<'_>, key: u32) -> io::Result<u32> {
    let mut value = 0;
    element(BPF_MAP_LOOKUP_ELEM, map, key, &raw mut value)?;
    Ok(value)
}

/// Reads an element of an array of `u64`.
pub fn lookup_u64(map: BorrowedFd<'_>, key: u32) -> io::Result<u64> {
    let mut value = 0;
    element(BPF_MAP_LOOKUP_ELEM, map, key, &raw mut value)?;
    Ok(value)
}
