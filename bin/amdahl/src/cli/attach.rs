//! The command line of `amdahl pager attach` as typed.

use std::path::PathBuf;

use clap::Args;

pub(super) const ATTACH_EXAMPLES: &str = "\
Examples:
  qemu-system-x86_64 -S -incoming defer -m 4G -object memory-backend-memfd,id=ram,size=4G,share=on \\
    -machine pc,memory-backend=ram ... &
  amdahl pager serve --image vm.mem --listen unix:/run/pager.sock &
  amdahl pager attach --pid $QEMU --map memory-backend-memfd --to unix:/run/pager.sock

The program stands still for some milliseconds, in which one of its threads makes a userfaultfd;
the memory is given up, and arrives from the image when it is touched. Nothing of the program has
to be written for that. The memory must be without a file (name it by its address, 0x..., of
/proc/PID/maps), or shared memory of a memfd or tmpfs. What it held is lost: attach before the
program puts anything there that it needs.

Needs the right to trace the program: root, or its user and kernel.yama.ptrace_scope=0; and the
program must be allowed a userfaultfd. x86-64 only. QEMU step by step: docs/pager-serve.md.";

/// `amdahl pager attach`.
#[derive(Debug, Args)]
pub struct PagerAttach {
    /// The program
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,
    /// Which of its memory: a part of its name in /proc/PID/maps, or where it begins as 0xADDRESS; and where in the image its
    /// content begins, if not at 0
    #[arg(long, value_name = "NAME[=OFFSET]", required = true, value_parser = memory)]
    pub map: Vec<(String, u64)>,
    /// Who serves it: the socket of `amdahl pager serve`, unix:PATH
    #[arg(long, value_name = "WHERE", value_parser = super::serve::socket)]
    pub to: PathBuf,
    /// In how many parts of about as many bytes it is handed over, each served like a VM of its own (of --max-vms), by a reader of its own: for many vCPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub parts: u32,
    /// Print what was attached as JSON
    #[arg(long)]
    pub json: bool,
}

fn memory(text: &str) -> Result<(String, u64), String> {
    let wrong = || {
        "NAME or NAME=OFFSET is needed, such as memory-backend-memfd=4G; the offset is of whole pages of 4K".to_owned()
    };
    let (name, offset) = match text.rsplit_once('=') {
        Some((name, offset)) => (name, super::pager::bytes(offset).ok_or_else(wrong)?),
        None => (text, 0),
    };
    match !name.is_empty() && offset.is_multiple_of(4096) {
        true => Ok((name.to_owned(), offset)),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_memory_is_read() {
        assert_eq!(memory("ram"), Ok(("ram".to_owned(), 0)));
        assert_eq!(memory("0x7f00=1G"), Ok(("0x7f00".to_owned(), 1 << 30)));
        assert_eq!(memory("a=b=4K"), Ok(("a=b".to_owned(), 4096)));
        for wrong in ["", "=4K", "a=", "a=1", "a=x"] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
    }
}
