//! GCC's OpenMP runtime is replaced by ours, which does not spin while others could run.

use std::path::Path;

use crate::run::facts::{Beyond, Facts, Image, Kind, Runtime};

use super::{Outcome, Remedy, Verdict, are_more_than};

/// Preloads our `libgomp.so.1`.
///
/// The loader takes a library that is there already for one that is asked for by the same name, so
/// that GCC's is not even loaded. A copy under another name is loaded, but the names in it are
/// looked for in all libraries in their order, and the preloaded ones come first.
pub struct OpenMp;

/// The variable that the loader reads.
const PRELOAD: &str = "LD_PRELOAD";
/// Has the runtime print at the end what it counted.
const STATS: &str = "AMDAHL_OMP_STATS";

impl Remedy for OpenMp {
    fn name(&self) -> &'static str {
        "openmp"
    }

    fn about(&self) -> &'static str {
        "GCC's OpenMP runtime (libgomp) is replaced by one that hands CPUs over at barriers"
    }

    fn judge(&self, facts: &Facts, _: &[Verdict]) -> Verdict {
        let of_kind = |kinds: &[Kind]| -> Option<&Runtime> {
            let runtimes = &facts.program.runtimes;
            runtimes
                .iter()
                .find(|runtime| kinds.contains(&runtime.kind))
        };
        let replaceable = of_kind(&[Kind::Gomp, Kind::GompCopy]);
        let inside = of_kind(&[Kind::GompInside]);
        let because = match (replaceable, inside) {
            (Some(runtime), _) => runtime.via.clone(),
            (None, Some(runtime)) => runtime.via.clone(),
            (None, None) if facts.asks_for(self.name()) => "asked for by --with".to_owned(),
            (None, None) => {
                let mut verdict = Verdict::new(self, Outcome::NotNeeded, nothing_found(facts));
                tell_of_packages(facts, &mut verdict);
                return verdict;
            }
        };
        let impossible = |why: String| Verdict::new(self, Outcome::Impossible, why);
        if let Some(why) = cannot_preload(facts) {
            return impossible(why);
        }
        if replaceable.is_none()
            && let Some(runtime) = inside
            && !facts.asks_for(self.name())
        {
            return impossible(format!(
                "{}: code that is linked in cannot be replaced; link it with -fopenmp and without \
                 -static or libgomp.a",
                runtime.via
            ));
        }
        if let Some(mkl) = of_kind(&[Kind::Mkl])
            && !facts.asks_for(self.name())
        {
            return Verdict::new(
                self,
                Outcome::LeftAlone,
                format!(
                    "{}: MKL asks for omp_* by names without a version, which it would find in ours in the middle of \
                     Intel's runtime; --with openmp has it so (with MKL_THREADING_LAYER=GNU)",
                    mkl.via
                ),
            );
        }
        let beyond = &facts.program.beyond;
        let needed = beyond.iter().find(|beyond| beyond.is_needed);
        if let Some(beyond) = needed.or(beyond.first().filter(|_| !facts.asks_for(self.name()))) {
            let Beyond { who, what, .. } = beyond;
            return impossible(if beyond.is_needed {
                format!("{who} wants {what} of libgomp, which ours does not have")
            } else {
                format!(
                    "{who} has code for accelerators ({what}), which ours would run on the CPUs; \
                     --with openmp has it so"
                )
            });
        }
        let own = match &facts.libgomp {
            Ok(own) => own,
            Err(why) => return impossible(why.clone()),
        };
        let Some(own_text) = own.to_str() else {
            return impossible(format!(
                "the path of {} is not UTF-8; install amdahl elsewhere",
                own.display()
            ));
        };
        if facts.is_unreadable(PRELOAD) {
            return impossible(format!("{PRELOAD} is set to something that is not UTF-8"));
        }
        let before = facts.variable(PRELOAD).unwrap_or("").trim();
        let is_gomp = |name: &str| {
            name.rsplit('/')
                .next()
                .is_some_and(|file| file.starts_with("libgomp"))
        };
        let is_there = is_there(facts, own);
        if !is_there && names(before).any(is_gomp) {
            return Verdict::new(
                self,
                Outcome::LeftAlone,
                format!("{PRELOAD} has a libgomp of your own: {before}"),
            );
        }
        if !is_there && own_text.contains([':', ' ']) {
            return impossible(format!(
                "{own_text} has a space or colon in its path, at which the loader divides \
                 {PRELOAD}; install amdahl elsewhere"
            ));
        }
        let mut verdict = if is_there {
            Verdict::new(
                self,
                Outcome::LeftAlone,
                format!("{own_text} is loaded already"),
            )
        } else {
            Verdict::new(self, Outcome::Applied, because)
        };
        if !is_there {
            let value = if before.is_empty() {
                own_text.to_owned()
            } else {
                format!("{before}:{own_text}")
            };
            verdict.set(PRELOAD, value);
        }
        if facts.stats {
            verdict.set(STATS, "true");
        }
        if !verdict.changes.is_empty() {
            verdict.outcome = Outcome::Applied;
        }
        tell_of_too_many_threads(facts, &mut verdict);
        if let Some(copy) = of_kind(&[Kind::GompCopy]) {
            verdict.note(format!(
                "{} is loaded as well, but not called, unless a library is opened with \
                 RTLD_DEEPBIND or linked with -Bsymbolic",
                copy.path.display()
            ));
        }
        if let Some(runtime) = inside {
            verdict.note(format!("{}: that copy stays what it is", runtime.via));
        }
        tell_of_packages(facts, &mut verdict);
        verdict
    }
}

/// Whether the program gets our runtime in the place of GCC's: by what was `said`, or without us.
pub fn is_ours(facts: &Facts, said: &[Verdict]) -> bool {
    let is_set = said.iter().any(|verdict| verdict.sets(PRELOAD));
    let is_there = || matches!(&facts.libgomp, Ok(own) if is_there(facts, own));
    cannot_preload(facts).is_none() && (is_set || is_there())
}

/// The libraries in a value of [`PRELOAD`].
fn names(value: &str) -> impl Iterator<Item = &str> {
    value.split([':', ' '])
}

/// The program loads `own` whatever we do.
fn is_there(facts: &Facts, own: &Path) -> bool {
    let before = facts.variable(PRELOAD).unwrap_or("").trim();
    let mut runtimes = facts.program.runtimes.iter();
    names(before).any(|name| Path::new(name) == own) || runtimes.any(|runtime| runtime.path == own)
}

/// A program may rely on having as many threads as it was told to have: only who knows it can let it have fewer.
fn tell_of_too_many_threads(facts: &Facts, verdict: &mut Verdict) {
    let cpus = facts.machine.cpus();
    let Some(value) = facts.variable("OMP_NUM_THREADS") else {
        return;
    };
    let is_said = ["OMP_DYNAMIC", "AMDAHL_OMP_DYNAMIC"]
        .iter()
        .any(|name| facts.variable(name).is_some());
    if are_more_than(cpus, value) && !is_said {
        verdict.note(format!(
            "OMP_NUM_THREADS={value} is more than can run at once ({cpus}); if the program works with any number, \
             OMP_DYNAMIC=true has each region use no more"
        ));
    }
}

fn tell_of_packages(facts: &Facts, verdict: &mut Verdict) {
    if facts.program.is_looked_at_in_part {
        verdict.note("its packages have too many files to look at all of them");
    }
}

fn nothing_found(facts: &Facts) -> String {
    match &facts.program.image {
        Image::Static => {
            "it is linked statically and has no OpenMP in it that can be seen".to_owned()
        }
        Image::Unknown(why) => format!("{why}: what it loads is not known; --with openmp tries"),
        _ => {
            "it loads no OpenMP runtime of GCC that can be seen; if it opens one later, or starts \
              programs that do: --with openmp"
                .to_owned()
        }
    }
}

/// Why the loader would not take our library.
fn cannot_preload(facts: &Facts) -> Option<String> {
    let path = facts
        .program
        .interpreters
        .last()
        .unwrap_or(&facts.program.path);
    let path = path.display();
    match &facts.program.image {
        Image::Dynamic | Image::Unknown(_) => None,
        Image::Static => Some(format!(
            "{path} is linked statically: there is no loader that could give it another library; \
             link it without -static"
        )),
        Image::OtherLoader(loader) => Some(format!(
            "{path} is loaded by {loader}, and our library is for glibc's loader"
        )),
        Image::OtherMachine(machine) => Some(format!(
            "{path} is for {machine}, and our library is for {}",
            std::env::consts::ARCH
        )),
    }
}
