//! What the tests share that take descriptors away: each is alone in its process, since the limit is everybody's.

use std::process::Child;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A process that ends with its test.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets this process have so many files open.
pub fn limit(open_files: Option<u64>) {
    let limit = Rlimit {
        current: open_files,
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).expect("a soft limit");
}
