//! What is done when the library is loaded: the environment is read, and shown if that was asked for. A program that
//! changes its environment later changes nothing here, as with GCC's runtime.
//!
//! Where the library is preloaded it is loaded into every program, and most of them never use it: shells, `env`,
//! compilers. They must not be bound to a place, since what they start inherits that. So then all this is done when
//! the program first uses OpenMP. Only on which CPUs the process may run is looked at at once: a copy of GCC's runtime that is
//! loaded later binds the thread that loads it, and programs bind threads of their own.

use amdahl_openmp::{binding, fork, icv, thread};

/// Whether a list of libraries to preload names this one, under whatever path.
fn names_this(preloaded: &[u8]) -> bool {
    let name = b"libgomp.so";
    preloaded.windows(name.len()).any(|part| part == name)
}

fn is_preloaded() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|list| names_this(list.as_encoded_bytes()))
}

extern "C" fn init() {
    fork::init();
    icv::look_at_cpus();
    if !is_preloaded() && icv::globals().places.is_some() {
        // SAFETY: the thread is the calling one.
        unsafe { binding::enter(thread::current()) };
    }
}

// The loader calls what is listed in this section, before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

#[cfg(test)]
mod tests {
    #[test]
    fn a_list_of_libraries_to_preload() {
        let is_named = |list: &str| super::names_this(list.as_bytes());
        assert!(is_named("/opt/amdahl/libgomp.so.1"));
        assert!(is_named("libjemalloc.so.2:/x/libgomp.so.1 /y/z.so"));
        assert!(!is_named("/x/libgompplus.so:libomp.so"));
        assert!(!is_named(""));
    }
}
