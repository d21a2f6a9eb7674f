//! What this machine and GCC 12 on it can do, in the words of GCC's suite.

use crate::case::Language;
use crate::selector::Facts;

/// The machine and the language of a test.
pub struct Here {
    language: Language,
    cpu_flags: Vec<String>,
    triplet: String,
}

impl Here {
    /// Looks at this machine.
    pub fn read(language: Language) -> Here {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = text
            .lines()
            .find_map(|line| line.strip_prefix("flags")?.split_once(':'))
            .map(|(_, flags)| flags.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default();
        Here {
            language,
            cpu_flags: flags,
            triplet: format!("{}-pc-linux-gnu", std::env::consts::ARCH),
        }
    }

    fn has(&self, flag: &str) -> bool {
        self.cpu_flags.iter().any(|has| has == flag)
    }
}

impl Facts for Here {
    fn effective(&self, name: &str) -> Option<bool> {
        let is_x86 = self.triplet.starts_with("x86_64");
        Some(match name {
            "c" => self.language == Language::C,
            "c++" => self.language == Language::Cxx,
            "lp64" | "native" | "pthread" | "pthread_h" | "fopenmp" | "alloca" | "size32plus"
            | "tls" | "tls_native" | "tls_runtime" | "sync_int_long" | "sync_char_short"
            | "cas_int" | "cas_char" | "int128" | "wchar" | "fpic" | "sqrt_insn" | "dfp"
            | "fortran_integer_16" | "fortran_real_16" | "fortran_large_real"
            | "fortran_large_int" | "vect_int" | "vect_float" | "vect_double" | "double64"
            | "weak_undefined" | "fileio" | "signal" | "c99_runtime" | "exceptions"
            | "__float128" | "fd_truncate" | "lto" => true,
            "vect_simd_clones" | "sse2" | "avx" | "avx2" | "avx512f" | "x86" => is_x86,
            "sse2_runtime" => self.has("sse2"),
            "avx_runtime" => self.has("avx"),
            "avx2_runtime" => self.has("avx2"),
            "avx512f_runtime" => self.has("avx512f"),
            "ia32"
            | "ilp32"
            | "llp64"
            | "run_expensive_tests"
            | "simulator"
            | "offloading_enabled"
            | "aarch64_tiny" => false,
            // What DejaGnu tries out for it holds on the host as well: a region sees the variables of the program.
            "offload_device_shared_as" => true,
            // No accelerator: target regions run on the host.
            name if name.starts_with("offload_")
                || name.starts_with("openacc_")
                || name.starts_with("nvptx")
                || name.starts_with("hsa_")
                || name.starts_with("omp_usm")
                || name.starts_with("omp_managedmem") =>
            {
                false
            }
            _ => return None,
        })
    }

    fn triplet(&self) -> &str {
        &self.triplet
    }
}
