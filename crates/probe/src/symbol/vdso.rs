//! The vDSO: the same for all processes of one kernel and ABI, so our own will do.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::snapshot;

/// It has a few pages.
const VDSO_BYTES_MAX: u64 = 1 << 20;

/// The bytes of this process's vDSO.
pub(super) fn own() -> Option<Arc<[u8]>> {
    let text = snapshot::read(std::process::id()).ok()?;
    let line = snapshot::executable(&text).find(|line| line.path.as_os_str() == "[vdso]")?;
    let mut bytes = vec![0; usize::try_from((line.end - line.start).min(VDSO_BYTES_MAX)).ok()?];
    std::fs::File::open("/proc/self/mem")
        .ok()?
        .read_exact_at(&mut bytes, line.start)
        .ok()?;
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_an_elf_file() {
        let Some(bytes) = super::own() else {
            eprintln!("SKIPPED: this kernel maps no vDSO");
            return;
        };
        assert!(bytes.starts_with(b"\x7fELF"));
    }
}
