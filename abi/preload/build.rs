//! Keeps std out of the library, which uses nothing of it.
//!
//! Every library links std's unwinding personality, and through it std as a whole and
//! libgcc_s.so, which a target (one that uses musl) may not have: it would not start.
//! No function here has anything to unwind, so the personality is never called; without
//! it the linker drops std, and only libc is needed. `tests/linkage.rs` watches over it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym=rust_eh_personality=0");
}
