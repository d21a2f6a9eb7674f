//! Whether thread ids mean the same to BPF programs as to this process.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::error::RecorderError;

/// Inode number of the first PID namespace of a kernel: `PROC_PID_INIT_INO` of its source, the same since Linux 3.8.
const FIRST: u64 = 0xefff_fffc;

/// Refuses where they do not: in another PID namespace than the kernel's first, as that of a container, a thread has an id there and
/// another one here. BPF programs are told the first, user space and its files below `/proc` know the second: nobody would be
/// watched, or a stranger who has the same number.
pub fn thread_ids_are_the_kernels() -> Result<(), RecorderError> {
    is_first(Path::new("/proc/self/ns/pid"))
}

fn is_first(namespace: &Path) -> Result<(), RecorderError> {
    // Where that cannot be read (before namespaces, without /proc) nothing speaks against it.
    match namespace.metadata() {
        Ok(file) if file.ino() != FIRST => Err(RecorderError::PidNamespace),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_namespace_is_refused() {
        // Some file, whose number is not that of the first namespace.
        let other = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(
            is_first(other.path()),
            Err(RecorderError::PidNamespace)
        ));
        assert!(is_first(Path::new("/nowhere")).is_ok());
    }
}
