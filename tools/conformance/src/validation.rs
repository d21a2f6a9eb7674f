//! The OpenMP Validation and Verification Suite: which tests a checkout has, and how each is compiled and run.

use std::path::{Path, PathBuf};

use crate::case::{Language, Recipe};
use crate::suite::{SuiteError, Test, files_below};

/// The checkout in `given`, if it is one.
pub fn source(given: &Path) -> Result<PathBuf, SuiteError> {
    let folder = given.canonicalize().map_err(|source| SuiteError::Read {
        path: given.to_owned(),
        source,
    })?;
    if folder.join("tests").is_dir() && folder.join("ompvv").is_dir() {
        Ok(folder)
    } else {
        Err(SuiteError::NoValidation(folder))
    }
}

/// All tests of a language: `VERSION/FEATURE/FILE`, by name.
pub fn tests(suite: &Path, language: Language) -> Result<Vec<Test>, SuiteError> {
    let root = suite.join("tests");
    let mut files = Vec::new();
    files_below(&root, &mut files)?;
    let endings: &[&str] = match language {
        Language::C => &["c"],
        Language::Cxx => &["cpp"],
        Language::Fortran => &["F90", "F95", "F03", "F"],
    };
    let is_of_language = |file: &PathBuf| {
        let ending = file.extension().unwrap_or_default().to_string_lossy();
        endings.contains(&ending.as_ref())
    };
    let tests = files.into_iter().filter(is_of_language).map(|source| {
        let path = source.strip_prefix(&root).expect("below it");
        Test {
            name: path.to_string_lossy().into_owned(),
            source,
            language,
        }
    });
    let mut tests: Vec<Test> = tests.collect();
    tests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tests)
}

/// How a test of the checkout `suite` is built and run, whose text is `text`.
pub fn recipe(test: &Test, suite: &Path, text: &str) -> Recipe {
    let headers = suite.join("ompvv");
    let mut recipe = Recipe {
        // The runtime is what is tested: target regions run on the host, whatever compilers for devices there are.
        options: vec![
            "-O2".into(),
            "-foffload=disable".into(),
            format!("-I{}", headers.display()),
        ],
        timeout_factor: 1.0,
        ..Recipe::default()
    };
    if test.language == Language::Fortran {
        recipe.options.push("-ffree-line-length-none".into());
    }
    if text.contains("libompvv.h") {
        let library = headers.join("libompvv.c");
        recipe.sources.push(library.display().to_string());
    }
    let stem = test.source.file_stem().unwrap_or_default();
    if let Some((variable, value)) = variable(&stem.to_string_lossy()) {
        recipe.environment.insert(variable, value);
    }
    recipe
}

/// What `test_VARIABLE_env_VALUE` is to be run with.
fn variable(stem: &str) -> Option<(String, String)> {
    let (variable, value) = stem.strip_prefix("test_")?.rsplit_once("_env_")?;
    Some((variable.to_ascii_uppercase(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_variables() {
        let of = |stem| variable(stem).map(|(name, value)| format!("{name}={value}"));
        assert_eq!(
            of("test_omp_places_env_ll_caches").as_deref(),
            Some("OMP_PLACES=ll_caches")
        );
        assert_eq!(of("test_target_if"), None);
        assert_eq!(of("linked_env_list"), None);
    }
}
