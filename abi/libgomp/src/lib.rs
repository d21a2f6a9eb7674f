//! The C names of [`amdahl_openmp`], as GCC's libgomp has them: `GOMP_*` is what the compiler calls, `omp_*` what
//! programs call. Nothing is decided here.

#![allow(non_snake_case)]

mod affinity;
mod alloc;
mod api;
mod critical;
mod fortran;
mod init;
mod interop;
mod lock;
mod loops;
mod memory;
mod ordered;
mod parallel;
mod sections;
mod single;
mod target;
mod task;
